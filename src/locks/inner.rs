//! The state that the clones of a [`Locks`](crate::Locks) share.
//!
//! [`Inner`] connects the parts that know nothing of each other: the [`Lines`], the [`Scheduler`]
//! and the store.
//!
//! ```text
//! a request ──▶ with_line ──▶ Lines ──▶ FollowUp ──▶ finish_transition ──▶ a contender starts, the log is written
//! scheduler ──▶ on_time   ──▶ Lines::look ──▶ renewals ──▶ Renewing ──▶ the store
//! scheduler ──▶ take_over ──▶ Lines::take_over ──▶ contenders in the place of those that ended with their runtime
//! store     ──▶ on_hint   ──▶ the line of the key, or all lines
//!           ──▶ released  ──▶ the ending of the owner
//! ```

use std::sync::Arc;

use super::{
    config::Config,
    contender::Contender,
    line::{FollowUp, Granted, Line, Transition, lost_error},
    lines::Lines,
    renewing::Renewing,
    troubles::Troubles,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::{Background, Lease, LeaseEvents, Scheduler},
    store::{
        Answer, Endings, Hint, Hints, Instance, Outcome, Owner, Release, Released, Store,
        ends::{Caller, Callers, tell},
    },
    sync::{
        Notify,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        oneshot,
    },
    time::Instant,
    trace,
};

/// The state that the clones of a [`Locks`](crate::Locks) share.
pub(crate) struct Inner {
    /// The store that leases live in.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) instance: Instance,
    /// See [`Store::space`].
    pub(crate) space: Arc<str>,
    pub(crate) lines: Lines,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) troubles: Troubles,
    /// How often the store was away and came back.
    reconnects: AtomicU64,
    /// Contenders and renewals under way.
    pub(crate) background: Arc<Counter>,
    /// Handlers that run.
    pub(crate) busy: Arc<Counter>,
}

impl Inner {
    pub(crate) fn new(store: Arc<dyn Store>, config: Config, background: Background) -> Self {
        trace::describe();
        let scheduler = Arc::new(Scheduler::new(background));
        let instance = Instance::new();
        Self {
            space: store.space(),
            instance,
            lines: Lines::new(config, instance, scheduler.clone()),
            scheduler,
            store,
            troubles: Troubles::new(instance),
            reconnects: AtomicU64::new(0),
            background: Arc::default(),
            busy: Arc::default(),
            config,
        }
    }

    /// Runs a transition on the line of a key, if there is one, and then the follow-up of the
    /// transition. Must not be called with a lock held.
    pub(crate) fn with_line<T>(
        self: &Arc<Self>,
        key: &LockKey,
        work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T,
    ) -> Option<T> {
        let mut follow_up = FollowUp::default();
        let outcome = self.lines.with(key, work, &mut follow_up)?;
        self.finish_transition(key, &mut follow_up);
        Some(outcome)
    }

    /// Does the follow-up of a transition, after the lock of the line is free.
    pub(crate) fn finish_transition(self: &Arc<Self>, key: &LockKey, follow_up: &mut FollowUp) {
        if !follow_up.releases.is_empty() {
            // Releases may have to be repeated.
            self.scheduler.start(self);
        }
        for release in follow_up.releases.drain(..) {
            self.send_release(release);
        }
        follow_up.wakers.wake();
        for (callers, outcome) in follow_up.told.drain(..) {
            tell(callers, &outcome);
        }
        for (lease, loss) in follow_up.lost.drain(..) {
            lease.wake_watchers();
            if let Some(at) = self.troubles.lost(lease.owner, loss) {
                self.scheduler.look_by(at);
            }
        }
        for owner in follow_up.released.drain(..) {
            trace::released(key.as_str(), owner);
        }
        if let Some(number) = follow_up.contend {
            Contender::new(self.clone(), key.clone(), number).go_on();
        }
        if let Some(contender) = follow_up
            .asks_alone
            .take()
            .and_then(|first| first.give_up_contender())
        {
            contender.go_on();
        }
    }

    /// Sends the release of an ending, whose answer settles the ending.
    pub(crate) fn send_release(self: &Arc<Self>, release: Release) {
        let answer = Answer::to(self.clone(), release.key.clone(), release.owner);
        self.store.release(release, answer);
    }

    /// Ends a turn, without a word from the store.
    pub(crate) fn end_turn(self: &Arc<Self>, granted: &Granted) {
        self.with_line(&granted.lease.key, |line, t| line.end(granted, None, t));
    }

    /// Runs a transition, and waits until its caller is told whether the lease was held until then.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        lease: &Lease,
        work: impl FnOnce(&mut Line, Caller, &mut Transition<'_>),
    ) -> Result<(), Error> {
        let (caller, mut answer) = oneshot::channel();
        self.with_line(&lease.key, |line, t| work(line, caller, t));
        loop {
            let told = lease.loss_told();
            // Looked at after that: whoever ends the background wakes the watchers of all leases.
            self.scheduler.start(self);
            tokio::select! {
                biased;
                // There is no line any more if the caller is gone.
                outcome = &mut answer => return outcome.unwrap_or_else(|_| Err(lost_error(lease.loss()))),
                () = told => {}
            }
        }
    }

    /// Ends a lease as lost, if the reason still holds.
    pub(crate) fn lose(self: &Arc<Self>, lease: &Lease, loss: Loss) {
        self.with_line(&lease.key, |line, t| line.lost(lease, loss, t));
    }

    /// Notes that the store has answered a call.
    pub(crate) fn store_answered(&self) {
        if let Some(at) = self.troubles.answered() {
            self.scheduler.look_by(at);
        }
    }

    /// How often the store has come back so far.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Acquire)
    }

    /// Spawns a task on the runtime of the background. The task is dropped if there is none, or
    /// when that runtime ends.
    pub(crate) fn run_in_background(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.scheduler.start(self);
        let under_way = Counter::one(&self.background);
        self.scheduler.spawn(async move {
            task.await;
            drop(under_way);
        });
    }
}

impl LeaseEvents for Inner {
    fn watch(&self) -> Hints {
        self.store.watch(self.instance)
    }

    fn on_hint(self: &Arc<Self>, hint: Hint) {
        trace::hint(hint.kind());
        match hint {
            Hint::Free(key) => drop(self.with_line(&key, |line, _| line.wake_contender())),
            Hint::Next(key) => drop(self.with_line(&key, |line, _| line.is_next())),
            Hint::Wanted(key) => drop(self.with_line(&key, |line, t| line.wanted(t.now))),
            Hint::Listening => self.lines.wake_contenders(),
            Hint::Reconnected => {
                // Counted first, so that a lease granted in the meantime is doubted either here or
                // by its contender.
                self.reconnects.fetch_add(1, Ordering::AcqRel);
                self.lines.doubt_leases(|_| true);
                self.lines.hurry_ends();
                self.lines.wake_contenders();
            }
            #[cfg(feature = "redis")]
            Hint::Moved(keys) => {
                self.reconnects.fetch_add(1, Ordering::AcqRel);
                self.lines.doubt_leases(|key| keys.contains(key));
                self.lines.hurry_ends();
                self.lines.wake_contenders();
            }
        }
    }

    fn on_time(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let due = self.lines.look(now);
        for (key, mut follow_up) in due.follow_ups {
            self.finish_transition(&key, &mut follow_up);
        }
        for release in due.releases {
            self.send_release(release);
        }
        if !due.given_up.is_empty() {
            let error = "the lease's time was over before the store has answered the release";
            tell(
                due.given_up,
                &Err(Error::new(ErrorKind::Unreachable, error)),
            );
        }
        if !due.renewals.is_empty() {
            trace::renewing(due.renewals.len());
            let renewing = Renewing::new(self.clone(), due.renewals, now);
            self.run_in_background(renewing.run());
        }
        let looks = [due.next, self.troubles.look(now)];
        looks.into_iter().flatten().min()
    }

    fn take_over(self: &Arc<Self>) {
        for (key, number) in self.lines.take_over() {
            Contender::new(self.clone(), key, number).go_on();
        }
    }

    fn on_stop(&self) {
        // Nothing is left that renews a lease, reports a loss or asks the store. Those who wait on
        // another runtime start the background again.
        for lease in self.lines.leases() {
            lease.wake_watchers();
        }
        for turn in self.lines.waiting() {
            turn.wake();
        }
        interrupt(self.lines.give_up_waiting());
    }
}

impl Endings for Inner {
    fn released(self: Arc<Self>, key: &LockKey, owner: Owner, outcome: Outcome<Released>) {
        if matches!(outcome, Outcome::Answered(_)) {
            self.store_answered();
            self.troubles.release_answered();
        }
        let told = self.lines.released(key, owner, outcome);
        if let Some((callers, result)) = told.callers {
            tell(callers, &result);
        }
        if let Some(error) = told.failed {
            self.troubles.release_failed(owner, &error);
            // Looked at last: whoever ends the background does the same.
            if !self.scheduler.start(&self) && told.are_waiting {
                interrupt(self.lines.give_up_waiting());
            }
        }
    }
}

/// Tells callers that wait for a release to be repeated that nobody will, for now.
fn interrupt(callers: Callers) {
    let error = "the release was not answered, and the runtime that would repeat it has shut down";
    tell(callers, &Err(Error::interrupted(error)));
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.scheduler.close();
        self.troubles.close();
    }
}

/// Counts things under way, and notifies when none is left.
///
/// `Locks::close` waits for two counters: of background calls, and of handlers that run.
#[derive(Default)]
pub(crate) struct Counter {
    count: AtomicUsize,
    /// Notified when the count drops to zero.
    ended: Notify,
}

impl Counter {
    /// Adds one to the count until the returned value is dropped.
    pub(crate) fn one(counter: &Arc<Self>) -> Counted {
        counter.count.fetch_add(1, Ordering::AcqRel);
        Counted(counter.clone())
    }

    /// The present count.
    pub(crate) fn get(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Resolves when the count drops to zero after this call.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + '_ {
        self.ended.notified()
    }
}

/// One unit of a [`Counter`].
pub(crate) struct Counted(Arc<Counter>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}
