//! The one background task of an instance: it renews all leases in time, and tells when one is over.
//!
//! 1. A lease is tracked from its grant until its release or loss. It stands in `due` while its next renewal can be sent, in
//!    `ends` while one is on its way, and in neither while its end is being decided.
//! 2. The task never waits for the store, so a store that hangs cannot keep a loss from being told.
//! 3. The task holds the instance weakly, and ends with it.
//! 4. The task is gone when its runtime is. The next use of the instance within a runtime starts a new task, which
//!    finds everything where the old one left it; whoever watches for a loss is woken, so that this use comes soon.
//! 5. Each round of the task costs time in what is due, not in what is tracked.
//!
//! Locks: the scheduler's mutex is a leaf; nothing is called while it is held. It is taken under the lock of a line.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};

use super::{
    Lease, Loss,
    renewal::{Pace, Renewal},
};
use crate::{
    LockKey,
    store::{Hint, Hints},
    sync::{
        HashMap, Mutex, Notify, Runtime,
        atomic::{AtomicBool, Ordering},
        yield_now,
    },
    time::{Instant, can_sleep, later, now, sleep_until},
};

/// After so many rounds the task lets others run, should it have been ready all the time.
const ROUNDS_AT_ONCE: u64 = 32;

/// What the scheduler tells its instance.
pub(crate) trait LeaseEvents: Send + Sync + 'static {
    /// Where hints come from, asked for at each start of the task.
    fn watch(&self) -> Hints;
    /// The store says that something may be worth doing at once.
    fn on_hint(self: &Arc<Self>, hint: Hint);
    /// A lease seems to be over for this reason. Ends in [`Scheduler::untrack`] or [`Scheduler::track_on`].
    fn on_end(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss);
    /// The renewal of these leases is due. Ends in one of the scheduler's methods for each of them.
    fn on_due(self: &Arc<Self>, leases: Vec<Arc<Lease>>);
}

pub(crate) struct Scheduler {
    pace: Pace,
    queue: Mutex<Queue>,
    /// The queue has an earlier due time.
    changed: Notify,
    running: AtomicBool,
    /// Where the task runs, or ran.
    runtime: Mutex<Option<Runtime>>,
}

#[derive(Default)]
struct Queue {
    leases: HashMap<u64, Tracked>,
    due: BTreeSet<(Instant, u64)>,
    ends: BTreeSet<(Instant, u64)>,
    closed: bool,
}

struct Tracked {
    lease: Arc<Lease>,
    renewal: Renewal,
    place: Place,
}

/// Where a lease stands in the queue.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Due(Instant),
    Ends(Instant),
    Nowhere,
}

/// What is to be done now, and when to look again.
#[derive(Default)]
struct Agenda {
    renew: Vec<Arc<Lease>>,
    over: Vec<(Arc<Lease>, Loss)>,
    next: Option<Instant>,
    closed: bool,
}

impl Scheduler {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            queue: Mutex::new(Queue::default()),
            changed: Notify::new(),
            running: AtomicBool::new(false),
            runtime: Mutex::new(None),
        }
    }

    /// Starts the task, unless it runs. Says `false` if there is no runtime with a clock to run it on.
    pub(crate) fn start<E: LeaseEvents>(self: &Arc<Self>, events: &Arc<E>) -> bool {
        if self.is_running() {
            return true;
        }
        let Some(runtime) = Runtime::current().filter(|_| can_sleep()) else {
            return false;
        };
        if !self.running.swap(true, Ordering::AcqRel) {
            *self.runtime.lock() = Some(runtime.clone());
            let hints = events.watch();
            let running = Running(self.clone());
            runtime.spawn(run(running, Arc::downgrade(events), hints));
        }
        // A runtime that is shutting down has dropped the task by now.
        self.is_running()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Where the task runs, or ran last.
    pub(crate) fn runtime(&self) -> Option<Runtime> {
        self.runtime.lock().clone()
    }

    /// Whether the task runs where the caller does, so that both are driven or none is.
    pub(crate) fn is_on_this_runtime(&self) -> bool {
        let runtime = self.runtime.lock();
        runtime.as_ref().is_some_and(Runtime::is_current)
    }

    /// The instance is gone: end the task.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }

    /// Begins to renew a lease that was asked for at `sent`.
    pub(crate) fn track(&self, lease: Arc<Lease>, sent: Instant) {
        let tracked = Tracked {
            renewal: Renewal::new(&self.pace, lease.length, sent),
            lease,
            place: Place::Nowhere,
        };
        let id = tracked.lease.owner.attempt;
        let mut queue = self.queue.lock();
        queue.leases.insert(id, tracked);
        self.put(queue, id);
    }

    /// Stops renewing a lease.
    pub(crate) fn untrack(&self, lease: &Lease) {
        let id = lease.owner.attempt;
        let mut queue = self.queue.lock();
        if let Some(tracked) = queue.leases.remove(&id) {
            queue.forget_place(id, tracked.place);
        }
    }

    pub(crate) fn tracks(&self, lease: &Lease) -> bool {
        self.queue.lock().leases.contains_key(&lease.owner.attempt)
    }

    pub(crate) fn leases(&self) -> usize {
        self.queue.lock().leases.len()
    }

    /// The end of a lease has changed: a turn has begun, or a lease that seemed to be over is not.
    pub(crate) fn track_on(&self, lease: &Lease) {
        self.change(lease, |_, _| {});
    }

    /// Renews a lease at once.
    pub(crate) fn hurry(&self, lease: &Lease) {
        self.change(lease, |renewal, _| renewal.hurry(now()));
    }

    /// Renews a lease as often as one that is passed on wants it.
    pub(crate) fn quicken(&self, lease: &Lease) {
        self.change(lease, |renewal, pace| renewal.quicken(pace, now()));
    }

    /// Doubts all leases, and renews them at once.
    pub(crate) fn doubt_all(&self) {
        self.doubt_where(|_| true);
    }

    /// Doubts the leases of some keys, and renews them at once.
    pub(crate) fn doubt_where(&self, is_concerned: impl Fn(&LockKey) -> bool) {
        let now = now();
        let mut queue = self.queue.lock();
        let concerned = queue.leases.iter();
        let concerned = concerned.filter(|(_, tracked)| is_concerned(&tracked.lease.key));
        let ids: Vec<u64> = concerned.map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(tracked) = queue.leases.get_mut(&id) {
                tracked.lease.doubt();
                tracked.renewal.hurry(now);
                queue.place(id);
            }
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// The store has confirmed the lease.
    pub(crate) fn renewed(&self, lease: &Lease) {
        self.change(lease, |renewal, _| renewal.renewed());
    }

    /// The store has answered, but the lease was doubted meanwhile.
    pub(crate) fn outdated(&self, lease: &Lease) {
        self.change(lease, |renewal, _| renewal.outdated(now()));
    }

    /// The store has not answered. Says whether to give up.
    pub(crate) fn unknown(&self, lease: &Lease) -> bool {
        let unknown = self.change(lease, |renewal, pace| renewal.unknown(pace, now()));
        unknown.unwrap_or(false)
    }

    fn change<T>(&self, lease: &Lease, change: impl FnOnce(&mut Renewal, &Pace) -> T) -> Option<T> {
        let id = lease.owner.attempt;
        let mut queue = self.queue.lock();
        let tracked = queue.leases.get_mut(&id)?;
        let outcome = change(&mut tracked.renewal, &self.pace);
        self.put(queue, id);
        Some(outcome)
    }

    /// Puts a lease where it belongs, and wakes the task if it is first there.
    fn put(&self, mut queue: crate::sync::MutexGuard<'_, Queue>, id: u64) {
        let at = queue.place(id);
        let is_first = at.is_some() && at == queue.next();
        drop(queue);
        if is_first {
            self.changed.notify_one();
        }
    }

    fn agenda(&self, now: Instant) -> Agenda {
        let mut agenda = Agenda::default();
        let mut queue = self.queue.lock();
        let soon = later(now, self.pace.together());
        let mut looked_at = Vec::new();
        while let Some(id) = queue.pop_due(soon).or_else(|| queue.pop_ended(now)) {
            let Some(tracked) = queue.leases.get_mut(&id) else {
                continue;
            };
            match tracked.over(now) {
                Some(loss) => agenda.over.push((tracked.lease.clone(), loss)),
                None => {
                    if tracked.renewal.send_if_due(&self.pace, now) {
                        agenda.renew.push(tracked.lease.clone());
                    }
                    looked_at.push(id);
                }
            }
        }
        for id in looked_at {
            queue.place(id);
        }
        agenda.next = queue.next();
        agenda.closed = queue.closed;
        agenda
    }
}

impl Tracked {
    /// When the lease or its turn is over.
    fn end(&self) -> Instant {
        self.lease.deadline().min(self.lease.turn_ends())
    }

    fn over(&self, now: Instant) -> Option<Loss> {
        if now >= self.lease.deadline() {
            return Some(Loss::Expired);
        }
        (now >= self.lease.turn_ends()).then_some(Loss::MaxHold)
    }
}

impl Queue {
    /// Puts a lease where it belongs. Says at which time.
    fn place(&mut self, id: u64) -> Option<Instant> {
        let tracked = self.leases.get_mut(&id)?;
        let end = tracked.end();
        let place = match tracked.renewal.due() {
            Some(next) if next < end => Place::Due(next),
            _ => Place::Ends(end),
        };
        let before = std::mem::replace(&mut tracked.place, place);
        if before != place {
            self.forget_place(id, before);
            match place {
                Place::Due(at) => self.due.insert((at, id)),
                Place::Ends(at) => self.ends.insert((at, id)),
                Place::Nowhere => false,
            };
        }
        match place {
            Place::Due(at) | Place::Ends(at) => Some(at),
            Place::Nowhere => None,
        }
    }

    fn forget_place(&mut self, id: u64, place: Place) {
        match place {
            Place::Due(at) => self.due.remove(&(at, id)),
            Place::Ends(at) => self.ends.remove(&(at, id)),
            Place::Nowhere => false,
        };
    }

    fn pop_due(&mut self, until: Instant) -> Option<u64> {
        let (_, id) = pop_until(&mut self.due, until)?;
        self.now_nowhere(id)
    }

    fn pop_ended(&mut self, until: Instant) -> Option<u64> {
        let (_, id) = pop_until(&mut self.ends, until)?;
        self.now_nowhere(id)
    }

    fn now_nowhere(&mut self, id: u64) -> Option<u64> {
        if let Some(tracked) = self.leases.get_mut(&id) {
            tracked.place = Place::Nowhere;
        }
        Some(id)
    }

    fn next(&self) -> Option<Instant> {
        let first = |set: &BTreeSet<(Instant, u64)>| set.first().map(|(at, _)| *at);
        match (first(&self.due), first(&self.ends)) {
            (Some(due), Some(end)) => Some(due.min(end)),
            (due, end) => due.or(end),
        }
    }
}

fn pop_until(set: &mut BTreeSet<(Instant, u64)>, until: Instant) -> Option<(Instant, u64)> {
    let is_due = set.first().is_some_and(|(at, _)| *at <= until);
    is_due.then(|| set.pop_first())?
}

async fn run<E: LeaseEvents>(running: Running, events: Weak<E>, mut hints: Hints) {
    let scheduler = &*running.0;
    for round in 1_u64.. {
        let changed = scheduler.changed.notified();
        let agenda = scheduler.agenda(now());
        if agenda.closed {
            return;
        }
        if let Some(events) = events.upgrade() {
            for (lease, loss) in &agenda.over {
                events.on_end(lease, *loss);
            }
            if !agenda.renew.is_empty() {
                events.on_due(agenda.renew);
            }
        }
        tokio::select! {
            biased;
            Some(hint) = hints.recv() => {
                if let Some(events) = events.upgrade() {
                    events.on_hint(hint);
                }
            }
            () = changed => {}
            () = sleep_until_some(agenda.next) => {}
        }
        if round.is_multiple_of(ROUNDS_AT_ONCE) {
            yield_now().await;
        }
    }
}

async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The task's mark, taken away however the task ends.
struct Running(Arc<Scheduler>);

impl Drop for Running {
    fn drop(&mut self) {
        let scheduler = &self.0;
        let unwatched: Vec<Arc<Lease>> = {
            let queue = scheduler.queue.lock();
            scheduler.running.store(false, Ordering::Release);
            let leases = queue.leases.values();
            leases.map(|tracked| tracked.lease.clone()).collect()
        };
        // Nobody would tell their loss any more, were it not for those who watch for it on another runtime.
        for lease in unwatched {
            lease.wake_watchers();
        }
    }
}

#[cfg(test)]
mod tests;
