//! Two turns never overlap, tokens rise, and every task gets its turns.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::{task::JoinSet, time::Instant};
use tower_distributed_lock::Locks;

use crate::support::{SECOND, fleet, nothing_left, nothing_left_soon, settle};

const TASKS: usize = 64;
const TURNS: usize = 6_400;

/// The turns at one key, in their order.
#[derive(Default)]
struct Log {
    somebody_is_inside: AtomicBool,
    turns: Mutex<Vec<Turn>>,
}

#[derive(Clone, Copy)]
struct Turn {
    task: usize,
    instance: usize,
    token: u64,
}

impl Log {
    /// Takes turns until there were enough of them in all. Says nothing of its own: the log does.
    async fn take_turns(self: Arc<Self>, locks: Locks, task: usize, instance: usize) {
        loop {
            let guard = locks.lock("hot").await.unwrap();
            assert!(!self.somebody_is_inside.swap(true, Ordering::SeqCst));
            let token = guard.token();
            let enough = {
                let mut turns = self.turns.lock().unwrap();
                turns.push(Turn {
                    task,
                    instance,
                    token,
                });
                turns.len() >= TURNS
            };
            tokio::task::yield_now().await;
            assert!(guard.is_held());
            self.somebody_is_inside.store(false, Ordering::SeqCst);
            drop(guard);
            if enough {
                return;
            }
        }
    }

    fn turns(&self) -> Vec<Turn> {
        self.turns.lock().unwrap().clone()
    }
}

async fn contend(fleet: &[Locks; 2]) -> Vec<Turn> {
    let log = Arc::<Log>::default();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let instance = task % 2;
        let locks = fleet[instance].clone();
        tasks.spawn(log.clone().take_turns(locks, task, instance));
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
    log.turns()
}

#[track_caller]
fn tokens_rise(turns: &[Turn]) {
    assert!(turns.windows(2).all(|pair| pair[0].token < pair[1].token));
}

#[track_caller]
fn assert_fair(turns: &[Turn], at_least: usize) {
    for task in 0..TASKS {
        let had = turns.iter().filter(|turn| turn.task == task).count();
        assert!(had >= at_least, "task {task} had {had} turns");
    }
}

/// The longest time that one instance kept the key to itself, in turns.
fn longest_run(turns: &[Turn]) -> usize {
    let runs = turns.chunk_by(|one, next| one.instance == next.instance);
    runs.map(<[_]>::len).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn sixty_four_tasks_of_two_instances_take_turns() {
    let (store, fleet) = fleet::<2>();
    let turns = contend(&fleet).await;
    tokens_rise(&turns);
    // On one thread the order is exact: round robin among the tasks of an instance, and the
    // instances change after the turn during which the other came, and as many more as may be
    // passed on then.
    assert_fair(&turns, TURNS / TASKS - 2);
    assert!(longest_run(&turns) <= 1 + 16);
    nothing_left(store, fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_tasks_on_several_threads_take_turns() {
    let (store, fleet) = fleet::<2>();
    let turns = contend(&fleet).await;
    tokens_rise(&turns);
    assert_fair(&turns, 10);
    for instance in 0..2 {
        let share = turns
            .iter()
            .filter(|turn| turn.instance == instance)
            .count();
        assert!(share > turns.len() / 4, "instance {instance} had {share}");
    }
    nothing_left_soon(store, fleet).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_cannot_be_locked() {
    let (store, [one, other]) = fleet();
    let guard = one.lock("k").await.unwrap();
    assert!(one.lock("k").now().await.unwrap().is_none());
    assert!(other.lock("k").now().await.unwrap().is_none());
    assert!(other.lock("another").now().await.unwrap().is_some());
    drop(guard);
    settle().await;
    assert!(other.lock("k").now().await.unwrap().is_some());
    nothing_left(store, [one, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_the_same_turn_held_once_more() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let clone = guard.clone();
    assert_eq!(guard.token(), clone.token());
    drop(guard);
    settle().await;
    assert!(clone.is_held());
    assert!(locks.lock("k").now().await.unwrap().is_none());
    drop(clone);
    assert!(locks.lock("k").now().await.unwrap().is_some());
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn two_callers_of_lock_all_with_keys_in_different_orders_do_not_deadlock() {
    let (store, [one, other]) = fleet();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..20 {
        let locks = if task % 2 == 0 { &one } else { &other }.clone();
        let mut keys = ["a", "b", "c"];
        keys.rotate_left(task % 3);
        tasks.spawn(async move {
            for _ in 0..20 {
                let guards = locks.lock_all(keys).await.unwrap();
                let locked: Vec<_> = guards.iter().map(|guard| guard.key().as_str()).collect();
                assert_eq!(locked, keys, "guards come in the order that was asked for");
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
    // A deadlock would last until `max_hold`, which is ten minutes.
    assert!(began.elapsed() < SECOND);
    nothing_left(store, [one, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_asked_for_twice_is_one_turn() {
    let (store, [locks]) = fleet();
    let guards = locks.lock_all(["b", "a", "b"]).await.unwrap();
    assert_eq!(guards[0].token(), guards[2].token());
    assert_eq!(locks.stats().keys, 2);
    assert!(locks.lock_all(Vec::<&str>::new()).await.unwrap().is_empty());
    drop(guards);
    nothing_left(store, [locks]).await;
}
