//! A key goes from one instance to another that waits for it.

use std::time::{Duration, Instant};

use tokio::{runtime::Runtime, time::sleep};

use super::keys::Random;
use crate::{
    bench::Bench,
    closed_loop::{Actor, Slice},
    contest::{Contestant, Group},
    peers::{AsyncRedisLock, Awaited, Client, HandWritten, Key, Rslock},
};

/// Measures the time from the beginning of the release to the grant at the other instance.
pub(super) fn hand_over(bench: &mut Bench) {
    let about = "An operation is a lock, a second instance that begins to wait, the release, and the grant there. Latency: from the \
                 beginning of the release to the grant. The rate is that of the test, which lets 3 to 13 ms pass before each release.";
    let contestants = vec![
        contestant::<HandWritten>(bench),
        contestant::<Rslock>(bench),
        contestant::<AsyncRedisLock>(bench),
        contestant::<Awaited>(bench),
    ];
    let slice = Slice::cut_short(bench.plan.slice * 5);
    bench.contest(Group::new("Hand-over", about), slice, contestants);
}

fn contestant<C: Client>(bench: &Bench) -> Contestant {
    let url = bench.server.url().to_owned();
    let connect = async || (C::connect(&url).await, C::connect(&url).await);
    between(C::NAME, bench.runtime.block_on(connect()))
}

pub(super) fn between<C: Client>(name: &str, (here, there): (C, C)) -> Contestant {
    let actors = move |_: &Runtime| {
        vec![HandOver {
            here: here.clone(),
            there: there.clone(),
            key: Key::new(format!("hand-over/{}", uuid::Uuid::new_v4())),
            random: Random(7),
        }]
    };
    Contestant::new(name, C::COMMANDS, actors, |_| {})
}

struct HandOver<C> {
    here: C,
    there: C,
    key: Key,
    random: Random,
}

impl<C: Client> Actor for HandOver<C> {
    async fn act(&mut self) -> Duration {
        let held = self.here.lock(&self.key).await;
        let (there, key) = (self.there.clone(), self.key.clone());
        let waiting = tokio::spawn(async move {
            let guard = there.lock(&key).await;
            let granted = Instant::now();
            there.release(guard).await;
            granted
        });
        // Random, so that the release does not keep step with anybody's retries.
        sleep(Duration::from_secs_f64(0.003 + 0.01 * self.random.next())).await;
        let begin = Instant::now();
        self.here.release(held).await;
        let granted = waiting.await.expect("the other instance gets the key");
        granted.duration_since(begin)
    }
}
