//! The scheduler by itself: the cost of its rounds.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::*;
use crate::{
    LockKey,
    store::{Instance, Owner},
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn scheduler() -> Scheduler {
    Scheduler::new(Pace {
        every: LEASE / 3,
        every_when_passing: SECOND,
        retry: SECOND,
        give_up_after: None,
    })
}

/// Tracks the leases of one instance. Says when they were asked for.
fn track(scheduler: &Scheduler, leases: u64) -> Instant {
    let (sent, instance) = (now(), Instance::new());
    for attempt in 1..=leases {
        let key = LockKey::new(format!("k/{attempt}")).unwrap();
        let owner = Owner { instance, attempt };
        scheduler.track(Arc::new(Lease::new(key, owner, None, sent, LEASE)), sent);
    }
    sent
}

#[test]
fn leases_whose_renewals_hang_cost_a_round_nothing_until_they_end() {
    const LEASES: u64 = 20_000;
    let scheduler = scheduler();
    let sent = track(&scheduler, LEASES);
    let due = scheduler.agenda(sent + LEASE / 3);
    assert_eq!(due.renew.len() as u64, LEASES);
    let nearly_over = sent + crate::lease::validity(LEASE) - Duration::from_millis(1);
    // The best round counts, since other work on the machine slows down some of them.
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let began = std::time::Instant::now();
        let agenda = scheduler.agenda(nearly_over);
        best = best.min(began.elapsed());
        assert!(agenda.renew.is_empty() && agenda.over.is_empty());
    }
    // A round that looks at each of these leases takes more than ten milliseconds.
    assert!(best < Duration::from_millis(1), "{best:?}");
    let over = scheduler.agenda(sent + LEASE);
    assert_eq!(over.over.len() as u64, LEASES);
}

/// Renewals whose answers are outdated at once, so that the task always has something to do.
struct AlwaysDue(Arc<Scheduler>);

impl LeaseEvents for AlwaysDue {
    fn watch(&self) -> Hints {
        crate::sync::mpsc::unbounded_channel().1
    }

    fn on_hint(self: &Arc<Self>, _: Hint) {}

    fn on_end(self: &Arc<Self>, lease: &Arc<Lease>, _: Loss) {
        self.0.untrack(lease);
    }

    fn on_due(self: &Arc<Self>, leases: Vec<Arc<Lease>>) {
        for lease in leases {
            self.0.outdated(&lease);
        }
    }
}

#[test]
fn a_task_that_is_always_busy_lets_other_tasks_run() {
    let (sender, other_has_run) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        runtime.block_on(async {
            let scheduler = Arc::new(scheduler());
            let events = Arc::new(AlwaysDue(scheduler.clone()));
            assert!(scheduler.start(&events));
            track(&scheduler, 1);
            scheduler.doubt_all();
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
