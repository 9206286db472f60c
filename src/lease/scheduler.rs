//! The one background task of an instance: it renews all leases, tells their loss, and polls the store calls that
//! nobody else polls (contenders, releases, calls whose request was cancelled).
//!
//! 1. A lease is tracked from its grant until its release or loss; `due` has exactly one entry for each.
//! 2. Nothing here waits for the store while it could tell a loss: calls are polled beside the timers.
//! 3. The task holds the instance weakly. Calls hold it strongly, so the instance ends after the last of them.
//! 4. The task is gone when its runtime is. The next use of the instance within a runtime starts a new one, which
//!    finds everything where the old one left it; whoever waits for a loss is woken, so that this use comes soon.
//!
//! Locks: the scheduler's queue is a leaf; nothing is called while it is held.

use std::{
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{runtime::Handle, sync::Notify, time::Instant};

use super::{Lease, Loss, Pace, Renewal, Step};
use crate::{
    store::{Hint, Hints},
    sync::Mutex,
    time::later,
};

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the scheduler asks of its instance.
pub(crate) trait Background: Send + Sync + 'static {
    /// Where hints come from, asked for at each start of the task.
    fn watch(&self) -> Hints;
    /// Something may be worth doing at once.
    fn on_hint(self: &Arc<Self>, hint: Hint);
    /// A lease is lost for this reason; it is tracked no longer.
    fn on_loss(self: &Arc<Self>, lease: Arc<Lease>, loss: Loss);
    /// These leases are due: the call that renews them and reports back what came of it.
    fn renew(self: Arc<Self>, leases: Vec<Arc<Lease>>, sent: Instant) -> Call;
}

pub(crate) struct Scheduler {
    pace: Pace,
    queue: Mutex<Queue>,
    /// There is something new in the queue, or it has an earlier due time.
    changed: Notify,
    /// The last call has ended.
    idle: Notify,
    running: AtomicBool,
    calls: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    leases: HashMap<u64, Tracked>,
    due: BTreeSet<(Instant, u64)>,
    adopted: Vec<Call>,
    closed: bool,
}

struct Tracked {
    lease: Arc<Lease>,
    renewal: Renewal,
    /// Under which time it stands in `due`.
    due: Instant,
}

/// What is to be done now, and when to look again.
#[derive(Default)]
struct Agenda {
    renew: Vec<Arc<Lease>>,
    lost: Vec<(Arc<Lease>, Loss)>,
    adopted: Vec<Call>,
    next: Option<Instant>,
    closed: bool,
}

impl Scheduler {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            queue: Mutex::new(Queue::default()),
            changed: Notify::new(),
            idle: Notify::new(),
            running: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
        }
    }

    /// Starts the task, unless it runs. Says `false` if there is no runtime to run it on.
    pub(crate) fn start<B: Background>(self: &Arc<Self>, background: &Arc<B>) -> bool {
        if self.is_running() {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        if !self.running.swap(true, Ordering::AcqRel) {
            let hints = background.watch();
            let running = Running(self.clone());
            runtime.spawn(run(running, Arc::downgrade(background), hints));
        }
        // A runtime that is shutting down has dropped the task by now.
        self.is_running()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// The instance is gone: end the task.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }

    /// Begins to renew a lease that was asked for at `sent`.
    pub(crate) fn track(&self, lease: Arc<Lease>, sent: Instant) {
        let renewal = Renewal::new(&self.pace, sent, lease.turn_began());
        let (id, due) = (lease.owner.attempt, renewal.due());
        let mut queue = self.queue.lock();
        queue.leases.insert(
            id,
            Tracked {
                lease,
                renewal,
                due,
            },
        );
        queue.due.insert((due, id));
        let first = queue.due.first() == Some(&(due, id));
        drop(queue);
        if first {
            self.changed.notify_one();
        }
    }

    /// Stops renewing a lease.
    pub(crate) fn untrack(&self, lease: &Lease) {
        let mut queue = self.queue.lock();
        if let Some(tracked) = queue.leases.remove(&lease.owner.attempt) {
            queue.due.remove(&(tracked.due, lease.owner.attempt));
        }
    }

    pub(crate) fn tracks(&self, lease: &Lease) -> bool {
        self.queue.lock().leases.contains_key(&lease.owner.attempt)
    }

    /// Renews a lease at once.
    pub(crate) fn hurry(&self, lease: &Lease) {
        self.change(lease, |renewal, _| renewal.hurry(Instant::now()));
    }

    /// Renews a lease as often as one that is passed on wants it.
    pub(crate) fn quicken(&self, lease: &Lease) {
        self.change(lease, |renewal, pace| renewal.quicken(pace, Instant::now()));
    }

    /// Renews all leases at once; until then, none of them is taken for granted.
    pub(crate) fn hurry_all(&self) {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let Queue { leases, due, .. } = &mut *queue;
        due.clear();
        for (id, tracked) in leases {
            tracked.lease.set_confirmed(false);
            tracked.renewal.hurry(now);
            tracked.due = tracked.renewal.due();
            due.insert((tracked.due, *id));
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// The store has confirmed the lease.
    pub(crate) fn renewed(&self, lease: &Lease) {
        self.change(lease, |renewal, pace| lease.extend(renewal.renewed(pace)));
    }

    /// The store has not answered. Says whether to give up.
    pub(crate) fn unknown(&self, lease: &Lease) -> Option<Loss> {
        let mut loss = None;
        self.change(lease, |renewal, pace| {
            loss = renewal.unknown(pace, Instant::now());
        });
        loss
    }

    /// Polls a call to its end, in the background. Where there is no task to poll it, the call is dropped.
    pub(crate) fn adopt(&self, call: Call) {
        let mut queue = self.queue.lock();
        // Looked at under the lock, so that a task that ends takes with it all that was adopted before.
        if !self.is_running() {
            drop(queue);
            return;
        }
        self.calls.fetch_add(1, Ordering::AcqRel);
        queue.adopted.push(call);
        drop(queue);
        self.changed.notify_one();
    }

    /// How many leases are tracked, and how many calls are under way.
    pub(crate) fn load(&self) -> (usize, usize) {
        (
            self.queue.lock().leases.len(),
            self.calls.load(Ordering::Acquire),
        )
    }

    /// Notified whenever the last call under way has ended.
    pub(crate) fn idle(&self) -> &Notify {
        &self.idle
    }

    fn change(&self, lease: &Lease, change: impl FnOnce(&mut Renewal, &Pace)) {
        let id = lease.owner.attempt;
        let mut queue = self.queue.lock();
        let Queue { leases, due, .. } = &mut *queue;
        let Some(tracked) = leases.get_mut(&id) else {
            return;
        };
        change(&mut tracked.renewal, &self.pace);
        due.remove(&(tracked.due, id));
        tracked.due = tracked.renewal.due();
        due.insert((tracked.due, id));
        let first = due.first() == Some(&(tracked.due, id));
        drop(queue);
        if first {
            self.changed.notify_one();
        }
    }

    fn agenda(&self, now: Instant) -> Agenda {
        let mut agenda = Agenda::default();
        let mut queue = self.queue.lock();
        let Queue { leases, due, .. } = &mut *queue;
        let mut looked_at = Vec::new();
        while let Some(&(at, id)) = due.first()
            && at <= later(now, self.pace.together)
        {
            due.pop_first();
            let Some(tracked) = leases.get_mut(&id) else {
                continue;
            };
            let turn_began = tracked.lease.turn_began();
            match tracked.renewal.step(&self.pace, now, turn_began) {
                Some(Step::Lose(loss)) => {
                    agenda.lost.push((tracked.lease.clone(), loss));
                    leases.remove(&id);
                    continue;
                }
                Some(Step::Renew) => agenda.renew.push(tracked.lease.clone()),
                None => {}
            }
            tracked.due = tracked.renewal.due();
            looked_at.push((tracked.due, id));
        }
        due.extend(looked_at);
        agenda.next = due.first().map(|(at, _)| *at);
        agenda.adopted = std::mem::take(&mut queue.adopted);
        agenda.closed = queue.closed;
        agenda
    }

    fn ended_one_call(&self) {
        if self.calls.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }
}

async fn run<B: Background>(running: Running, background: Weak<B>, mut hints: Hints) {
    let scheduler = &*running.0;
    let mut calls = FuturesUnordered::new();
    loop {
        let changed = scheduler.changed.notified();
        let agenda = scheduler.agenda(Instant::now());
        if agenda.closed {
            return;
        }
        calls.extend(
            agenda
                .adopted
                .into_iter()
                .map(|call| counted(scheduler, call)),
        );
        if let Some(background) = background.upgrade() {
            for (lease, loss) in agenda.lost {
                background.on_loss(lease, loss);
            }
            if !agenda.renew.is_empty() {
                let call = background.renew(agenda.renew, Instant::now());
                scheduler.calls.fetch_add(1, Ordering::AcqRel);
                calls.push(counted(scheduler, call));
            }
        }
        tokio::select! {
            () = changed => {}
            () = sleep_until(agenda.next) => {}
            Some(()) = calls.next(), if !calls.is_empty() => {}
            Some(hint) = hints.recv() => {
                if let Some(background) = background.upgrade() {
                    background.on_hint(hint);
                }
            }
        }
    }
}

/// A panic in one call (a bug in a store) must not take the renewal of every other lease down.
fn counted(scheduler: &Scheduler, call: Call) -> impl Future<Output = ()> {
    let ended = EndedCall(scheduler);
    async move {
        let _ended = ended;
        let _ = AssertUnwindSafe(call).catch_unwind().await;
    }
}

struct EndedCall<'a>(&'a Scheduler);

impl Drop for EndedCall<'_> {
    fn drop(&mut self) {
        self.0.ended_one_call();
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The task's mark, taken away however the task ends.
struct Running(Arc<Scheduler>);

impl Drop for Running {
    fn drop(&mut self) {
        let scheduler = &self.0;
        // What was not polled yet cannot be polled any more; dropping it lets its line go on.
        let (abandoned, unwatched) = {
            let mut queue = scheduler.queue.lock();
            scheduler.running.store(false, Ordering::Release);
            let leases = queue.leases.values();
            let unwatched: Vec<_> = leases.map(|tracked| tracked.lease.clone()).collect();
            (std::mem::take(&mut queue.adopted), unwatched)
        };
        scheduler.calls.fetch_sub(abandoned.len(), Ordering::AcqRel);
        drop(abandoned);
        scheduler.idle.notify_waiters();
        // Nobody would tell their loss any more, were it not for those who wait for it on another runtime.
        for lease in unwatched {
            lease.stir();
        }
    }
}
