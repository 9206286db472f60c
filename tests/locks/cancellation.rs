//! Futures dropped at every await point, guards dropped by panics: the key is free at once, the
//! line goes on.

use std::pin::{Pin, pin};

use tokio::{task::JoinHandle, time::Instant};
use tower_distributed_lock::{
    LockGuard, Locks,
    store::{Fault, FaultyStore},
};

use crate::support::{SECOND, fleet, nothing_left, poll_once, settle};

/// The obstacle between a caller and the key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Obstacle {
    None,
    HeldElsewhere,
    HeldHere,
    /// The store does not react.
    Hang,
    /// The store carries out every call, and does not answer.
    Mute,
    /// The lease of the last turn is being given back.
    Releasing,
}

const OBSTACLES: [Obstacle; 6] = [
    Obstacle::None,
    Obstacle::HeldElsewhere,
    Obstacle::HeldHere,
    Obstacle::Hang,
    Obstacle::Mute,
    Obstacle::Releasing,
];

/// More than any of the futures here is polled.
const POLLS: usize = 5;

type Attempt<'a> = Pin<Box<dyn Future<Output = Vec<LockGuard>> + 'a>>;

/// Each way to ask for a key.
fn attempts(locks: &Locks) -> [(&'static str, Attempt<'_>); 4] {
    [
        (
            "lock",
            Box::pin(async { vec![locks.lock("k").await.unwrap()] }),
        ),
        (
            "within",
            Box::pin(async { Vec::from_iter(locks.lock("k").within(SECOND).await) }),
        ),
        (
            "now",
            Box::pin(async { Vec::from_iter(locks.lock("k").now().await.unwrap()) }),
        ),
        (
            "lock_all",
            Box::pin(async { locks.lock_all(["z", "k", "a"]).await.unwrap() }),
        ),
    ]
}

struct World {
    store: FaultyStore,
    fleet: [Locks; 2],
    /// Who has the key.
    guard: Option<LockGuard>,
}

impl World {
    async fn with(obstacle: Obstacle) -> Self {
        let (store, fleet) = fleet();
        let mut guard = None;
        match obstacle {
            Obstacle::None => {}
            Obstacle::HeldElsewhere => guard = Some(fleet[1].lock("k").await.unwrap()),
            Obstacle::HeldHere => guard = Some(fleet[0].lock("k").await.unwrap()),
            Obstacle::Hang => store.set_fault(Some(Fault::Hang)),
            Obstacle::Mute => store.set_fault(Some(Fault::Mute)),
            Obstacle::Releasing => {
                drop(fleet[0].lock("k").await.unwrap());
                store.set_fault(Some(Fault::Hang));
                settle().await;
            }
        }
        Self {
            store,
            fleet,
            guard,
        }
    }

    fn remove_obstacle(&mut self) {
        self.store.set_fault(None);
        self.guard = None;
    }

    /// A later caller of the same instance.
    fn next_in_line(&self) -> JoinHandle<LockGuard> {
        let locks = self.fleet[0].clone();
        tokio::spawn(async move { locks.lock("k").await.unwrap() })
    }
}

/// Polls an attempt `polls` times, and lets everything else go on after each; then something may
/// happen. At last the attempt is dropped, with the guards that it has got, if any. Says whether it
/// had come to its end.
async fn poll_and_drop(
    mut attempt: Attempt<'_>,
    polls: usize,
    mut after: impl FnMut(usize),
) -> bool {
    for poll in 1..=polls {
        if poll_once(attempt.as_mut()).await.is_ready() {
            return true;
        }
        settle().await;
        after(poll);
        // Not settled here: the next step must happen at the next poll, or while the future is
        // dropped.
    }
    false
}

/// Drops one way to lock after so many polls, at one obstacle that goes away after `obstructed` of
/// them. If `late`, what was on its way when the future was dropped arrives before the obstacle
/// goes away.
async fn drop_one(way: usize, obstacle: Obstacle, polls: usize, obstructed: usize, late: bool) {
    let case = (way, obstacle, polls, obstructed, late);
    let mut world = World::with(obstacle).await;
    let locks = world.fleet[0].clone();
    let attempt = attempts(&locks).into_iter().nth(way).unwrap().1;
    let mut next = None;
    poll_and_drop(attempt, polls, |poll| {
        if poll == 1 {
            next = Some(world.next_in_line());
        }
        if poll == obstructed {
            world.remove_obstacle();
        }
    })
    .await;
    if late {
        settle().await;
    }
    world.remove_obstacle();
    let dropped = Instant::now();

    // The next in line is not lost, no matter where the one before it went away,
    if let Some(next) = next {
        let guard = next.await.unwrap();
        assert!(guard.is_held(), "{case:?}");
    }
    settle().await;
    // and then the keys are free for the whole fleet.
    for key in ["a", "k", "z"] {
        let free = world.fleet[1].lock(key).now().await.unwrap().is_some();
        assert!(free, "{key} is still held: {case:?}");
    }
    assert_eq!(dropped.elapsed(), std::time::Duration::ZERO, "{case:?}");
    drop(locks);
    nothing_left(world.store, world.fleet).await;
}

#[tokio::test(start_paused = true)]
async fn asking_for_a_key_can_be_dropped_after_every_poll() {
    for way in 0..4 {
        for obstacle in OBSTACLES {
            for polls in 0..=POLLS {
                for obstructed in 1..=POLLS {
                    for late in [false, true] {
                        drop_one(way, obstacle, polls, obstructed, late).await;
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_way_of_asking_has_the_await_points_where_it_is_dropped() {
    let ways = attempts(&fleet::<1>().1[0]).map(|(name, _)| name);
    for (way, name) in ways.into_iter().enumerate() {
        for obstacle in OBSTACLES {
            let mut world = World::with(obstacle).await;
            let locks = world.fleet[0].clone();
            let attempt = attempts(&locks).into_iter().nth(way).unwrap().1;
            let at_once = poll_and_drop(attempt, 1, |_| ()).await;
            let waits = match obstacle {
                Obstacle::None => false,
                Obstacle::HeldElsewhere | Obstacle::HeldHere => name != "now",
                Obstacle::Hang | Obstacle::Mute | Obstacle::Releasing => true,
            };
            assert_eq!(waits, !at_once, "{name} with {obstacle:?}");
            world.remove_obstacle();
            settle().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn releasing_can_be_dropped_after_every_poll() {
    for fault in [None, Some(Fault::Hang), Some(Fault::Mute)] {
        for waiters in 0..=2 {
            for polls in 0..=3 {
                let (store, fleet) = fleet::<2>();
                let guard = fleet[0].lock("k").await.unwrap();
                let waiting: Vec<_> = (0..waiters)
                    .map(|_| {
                        let locks = fleet[0].clone();
                        tokio::spawn(async move { locks.lock("k").await.map(drop) })
                    })
                    .collect();
                settle().await;
                store.set_fault(fault);
                {
                    let mut release = pin!(guard.release());
                    for _ in 0..polls {
                        if poll_once(release.as_mut()).await.is_ready() {
                            break;
                        }
                        settle().await;
                    }
                }
                store.set_fault(None);
                for waiter in waiting {
                    waiter.await.unwrap().unwrap();
                }
                settle().await;
                let free = fleet[1].lock("k").now().await.unwrap().is_some();
                assert!(free, "{fault:?}, {waiters} waiters, {polls} polls");
                nothing_left(store, fleet).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_keeps_the_line_in_order() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let locks = locks.clone();
        waiting.push(tokio::spawn(async move {
            locks.lock("k").await.unwrap().token()
        }));
        settle().await;
    }
    for gone in [0, 3, 4, 9] {
        waiting[gone].abort();
    }
    settle().await;
    assert_eq!(locks.stats().waiting, 6);
    drop(guard);
    let mut tokens = Vec::new();
    for task in waiting {
        tokens.extend(task.await);
    }
    assert_eq!(tokens.len(), 6);
    assert!(tokens.is_sorted());
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_contender_keeps_its_place_while_requests_come_and_go() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    let mut first = Box::pin(locks.lock("k"));
    assert!(poll_once(first.as_mut()).await.is_pending());
    settle().await;
    let place = crate::support::inspect(&store, "k").await.queue;
    let mut second = Box::pin(locks.lock("k"));
    assert!(poll_once(second.as_mut()).await.is_pending());
    drop(first);
    settle().await;
    assert_eq!(crate::support::inspect(&store, "k").await.queue, place);
    drop(second);
    settle().await;
    assert_eq!(crate::support::inspect(&store, "k").await.queue, []);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_the_key_is_held_frees_it() {
    let (store, [locks, other]) = fleet();
    let panicking = tokio::spawn({
        let locks = locks.clone();
        async move {
            let _guard = locks.lock("k").await.unwrap();
            let _clone = _guard.clone();
            panic!("on purpose, while the key is held");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    settle().await;
    assert!(other.lock("k").now().await.unwrap().is_some());
    nothing_left(store, [locks, other]).await;
}
