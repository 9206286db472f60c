//! Who contends for a key at the same moment does not split the vote for ever.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Barrier,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_distributed_lock::Locks;

use crate::{Fleet, support::eventually};

const ROUNDS: usize = 200;
/// A few votes, or at worst the poll interval.
const BOUND: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_attempts_at_the_same_moment_do_not_split_the_vote_for_ever() {
    let fleet = Fleet::start_not_young(3).await;
    let instances: Vec<Locks> = (0..3).map(|_| fleet.locks()).collect();
    let mut first_wins = Vec::new();
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(instances.len()));
        let mut contenders = JoinSet::new();
        for locks in instances.clone() {
            let barrier = barrier.clone();
            contenders.spawn(async move {
                barrier.wait().await;
                let asked = Instant::now();
                let guard = timeout(3 * BOUND, locks.lock(format!("k/{round}"))).await;
                let guard = guard.expect("everybody has a turn").unwrap();
                let won = asked.elapsed();
                sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
                won
            });
        }
        let won = contenders.join_all().await;
        first_wins.push(won.into_iter().min().unwrap());
    }
    first_wins.sort_unstable();
    let (p50, p99, worst) = (
        first_wins[ROUNDS / 2],
        first_wins[ROUNDS * 99 / 100],
        first_wins[ROUNDS - 1],
    );
    println!("the first of three wins after {p50:?} (p50), {p99:?} (p99), {worst:?} (worst)");
    assert!(worst < BOUND, "{worst:?}");
    eventually("nothing is left", async || fleet.is_empty().await).await;
}
