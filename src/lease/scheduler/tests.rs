//! The scheduler on its own: the cost of a look, fairness to other tasks, and a store that panics.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::*;
use crate::{
    LockKey,
    lease::{Entry, Lease, Schedule},
    store::{Instance, Owner},
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

#[test]
fn leases_whose_renewals_hang_cost_a_look_nothing_until_they_end() {
    const LEASES: u64 = 20_000;
    let (sent, instance) = (now(), Instance::new());
    let mut schedule = Schedule::default();
    for attempt in 1..=LEASES {
        let key = LockKey::new(format!("k/{attempt}")).unwrap();
        let lease = Lease::new(
            key,
            Owner { instance, attempt },
            None,
            sent,
            LEASE,
            crate::store::Mode::Exclusive,
        );
        schedule.add(&lease, Entry::End(lease.deadline()));
    }
    let nearly_over = sent + crate::lease::validity(LEASE) - Duration::from_millis(1);
    // A look at each of these leases takes more than ten milliseconds. One fast look of many is
    // enough, since other work on the machine slows down some of them.
    let is_fast = || {
        let began = std::time::Instant::now();
        let due = schedule.take_due(nearly_over, nearly_over + SECOND);
        assert!(due.is_empty());
        began.elapsed() < Duration::from_millis(1)
    };
    assert!(std::iter::repeat_with(is_fast).take(200).any(|fast| fast));
    let over = schedule.take_due(sent + LEASE, sent + LEASE);
    assert_eq!(over.len() as u64, LEASES);
}

/// Leases that need attention again at once, so that the task always has something to do.
struct AlwaysDue;

impl LeaseEvents for AlwaysDue {
    fn watch(&self) -> Hints {
        crate::sync::mpsc::unbounded_channel().1
    }

    fn on_hint(self: &Arc<Self>, _: Hint) {}

    fn on_time(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        Some(now)
    }

    fn take_over(self: &Arc<Self>) {}

    fn on_stop(&self) {}
}

#[test]
fn a_task_that_is_always_busy_lets_other_tasks_run() {
    let (sender, other_has_run) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        runtime.block_on(async {
            let (scheduler, events) = (
                Arc::new(Scheduler::new(Background::default())),
                Arc::new(AlwaysDue),
            );
            assert!(scheduler.start(&events));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            sender.send(()).unwrap();
            scheduler.close();
        });
    });
    let other_has_run = other_has_run.recv_timeout(20 * SECOND);
    assert_ne!(other_has_run, Err(RecvTimeoutError::Timeout));
    other_has_run.unwrap();
}

/// A store whose first subscription panics.
#[derive(Default)]
struct PanicsOnce(AtomicBool);

impl LeaseEvents for PanicsOnce {
    fn watch(&self) -> Hints {
        assert!(self.0.swap(true, Ordering::AcqRel), "on purpose");
        crate::sync::mpsc::unbounded_channel().1
    }

    fn on_hint(self: &Arc<Self>, _: Hint) {}

    fn on_time(self: &Arc<Self>, _: Instant) -> Option<Instant> {
        None
    }

    fn take_over(self: &Arc<Self>) {}

    fn on_stop(&self) {}
}

/// Fault: the scheduler was marked as running for ever, and no lease was renewed.
#[tokio::test]
async fn a_store_that_panics_in_watch_does_not_keep_the_task_from_starting_later() {
    let (scheduler, events) = (
        Arc::new(Scheduler::new(Background::default())),
        Arc::<PanicsOnce>::default(),
    );
    let start = AssertUnwindSafe(|| scheduler.start(&events));
    assert!(catch_unwind(start).is_err());
    assert!(!scheduler.is_running());
    assert!(scheduler.start(&events));
    scheduler.close();
}
