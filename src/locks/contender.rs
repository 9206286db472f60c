//! Asking the store for a key, on behalf of all requests in a line.
//!
//! 1. A line that contends has exactly one [`Contender`]. A contender settles its line once: with a
//!    lease, a record, a failure, or because no request is left. A contender that is dropped
//!    before, with its runtime, leaves the line behind: the background gives it another contender,
//!    on the next runtime if necessary ([`Lines::take_over`](super::lines::Lines::take_over)).
//! 2. The request that came first polls the first question to the store, which saves two task
//!    switches. The contender moves to a task of the background when that request goes away, or is
//!    not alone any more, and for all further questions. So nobody but the first request depends on
//!    whether its task is polled.
//! 3. The attempt belongs to the line, not to a request: the attempt keeps its place in the store's
//!    queue while requests come and go, and leaves the queue with the last request.
//! 4. After a question whose outcome is not known, the store is asked in the name of a new owner,
//!    and the old one is an ending. A connection that breaks is no reason to fail a request: the
//!    next question follows at once, a few times.
//! 5. No contender is silent for longer than the poll interval: pauses count from the last
//!    question, and not from its answer or failure. A question that takes longer than that, up to
//!    the store's time limit, is followed by the next one after a short pause.
//!
//! The life of a contender for a key that another instance holds:
//!
//! ```text
//!   0 ms  ask: Acquire { owner: 0c6f…:7, queueing: Wait }   held, for another 8 s; the attempt is in the queue
//!         pause until the poll interval (about 1 s) is over, or a wake-up
//! 640 ms  Hint::Next arrives: the attempt ahead was offered the key
//!         the pause is shortened to the head start (300 ms)
//! 655 ms  Hint::Free arrives: the attempt ahead is served, and this one is next
//!         ask: Acquire { owner: 0c6f…:7, .. }               granted, with a lease and tokens
//! 656 ms  the line has the lease, and the contender ends
//! ```

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    config::HEAD_START,
    inner::Inner,
    line::{Line, Transition, Unanswered, Wake},
};
use crate::{
    Error, ErrorKind, LockKey,
    lease::AT_ONCE,
    store::{Acquire, Acquired, Grant, Held, Outcome, Owner, StoreFuture},
    sync::Notify,
    time::{BackOff, Instant, jittered, later, now, timeout_at},
    trace,
};

/// The shortest pause between two questions, so that a contender does not spin while a lease is
/// about to expire.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The pause after the first failure of the store. Each further pause is twice as long, up to the
/// poll interval.
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);

/// The part of a pause that is left out at random.
const JITTER: f64 = 0.2;

/// Asks the store for a key until a line is settled.
pub(crate) struct Contender {
    inner: Arc<Inner>,
    key: LockKey,
    /// Identifies the contender among those that the line has had.
    number: u64,
    /// The question that the store has not answered yet.
    question: Option<Question>,
    /// How long to pause after failures in a row.
    back_off: BackOff,
    /// How many questions in a row were followed by the next one at once.
    at_once: u32,
    /// The line does not need this contender any more.
    settled: bool,
    /// The store is being called. Still set when the contender is dropped, the store has panicked.
    is_in_store: bool,
}

/// An `acquire` that the store has not answered yet.
struct Question {
    owner: Owner,
    /// When the question was sent.
    sent: Instant,
    /// How often the store had come back before the question was sent.
    reconnects: u64,
    answer: StoreFuture<Outcome<Acquired>>,
}

/// The next step after a question was answered.
enum Step {
    /// The contender has nothing left to do.
    Settled,
    /// Ask again: at once, or at this time, unless a wake-up comes before.
    AskAgain(Option<Instant>),
}

impl Contender {
    /// Creates a contender that has not asked yet.
    pub(crate) fn new(inner: Arc<Inner>, key: LockKey, number: u64) -> Self {
        Self {
            inner,
            key,
            number,
            question: None,
            back_off: BackOff::default(),
            at_once: 0,
            settled: false,
            is_in_store: false,
        }
    }

    /// Creates the contender of a new line, and asks the first question.
    pub(crate) fn first(inner: &Arc<Inner>, key: &LockKey, number: u64, demand: Acquire) -> Self {
        let mut contender = Self::new(inner.clone(), key.clone(), number);
        contender.question = Some(contender.ask(demand));
        contender
    }

    /// Polls the first question on behalf of a request. Returns the contender while the store has
    /// not answered.
    pub(crate) fn poll_first(mut self, cx: &mut Context<'_>) -> Option<Self> {
        match self.poll(cx) {
            Poll::Pending => Some(self),
            Poll::Ready(Step::Settled) => None,
            Poll::Ready(Step::AskAgain(at)) => {
                self.inner.clone().run_in_background(async move {
                    self.pause(at).await;
                    self.contend().await;
                });
                None
            }
        }
    }

    /// Continues in a task of the background.
    pub(crate) fn go_on(self) {
        self.inner.clone().run_in_background(self.contend());
    }

    /// Asks until the line is settled.
    async fn contend(mut self) {
        while let Step::AskAgain(at) = poll_fn(|cx| self.poll(cx)).await {
            self.pause(at).await;
        }
    }

    /// Asks the next question, unless one is under way, and handles the answer.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        // Taken out, so that a question that panics is not polled again.
        let mut question = match self.question.take() {
            Some(question) => question,
            None => {
                let Some(demand) = self.demand() else {
                    return Poll::Ready(Step::Settled);
                };
                self.ask(demand)
            }
        };
        self.is_in_store = true;
        let answer = question.answer.as_mut().poll(cx);
        self.is_in_store = false;
        match answer {
            Poll::Pending => {
                self.question = Some(question);
                Poll::Pending
            }
            Poll::Ready(answer) => Poll::Ready(self.answered(question, answer)),
        }
    }

    /// The next question of the line. The line is settled if no request is left.
    fn demand(&mut self) -> Option<Acquire> {
        let demand = self.line(|line, t| line.demand(&self.key, t)).flatten();
        self.settled = demand.is_none();
        demand
    }

    /// Sends the question to the store.
    fn ask(&mut self, demand: Acquire) -> Question {
        Question {
            owner: demand.owner,
            sent: now(),
            reconnects: self.inner.reconnects(),
            answer: self.inner.store.acquire(demand),
        }
    }

    /// Handles the store's answer.
    fn answered(&mut self, question: Question, outcome: Outcome<Acquired>) -> Step {
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::Refused(error) => {
                return self.unanswered(&question, &error, Unanswered::Refused);
            }
            Outcome::Unknown(error) => {
                return self.unanswered(&question, &error, Unanswered::Unknown);
            }
        };
        self.inner.store_answered();
        self.at_once = 0;
        match answer {
            Acquired::Granted(grant) => self.granted(&question, &grant),
            Acquired::Held(held) => self.held(&question, &held),
            Acquired::Recorded(record) => {
                self.line(|line, t| line.recorded(&record, t));
                self.settled = true;
                Step::Settled
            }
        }
    }

    /// Gives the granted leases to the line. Leases whose time was over before the answer came are
    /// released instead, and the question counts as failed.
    fn granted(&mut self, question: &Question, grant: &Grant) -> Step {
        trace::granted(self.key.as_str(), question.owner, grant.others_wait);
        let granted = self.line(|line, t| {
            // A later reconnect finds the leases in their line and doubts them there. An earlier
            // one is found here.
            let is_doubted = self.inner.reconnects() != question.reconnects;
            line.granted(&self.key, grant, is_doubted, t)
        });
        if let Some(Err(error)) = granted {
            let why = Unanswered::TooLate(grant.count as usize);
            return self.failed(question, &error, why);
        }
        self.settled = true;
        Step::Settled
    }

    /// Handles the answer that the key is held. The next question follows when the remaining time
    /// of the lease is over, or after the poll interval, whichever comes first.
    fn held(&mut self, question: &Question, held: &Held) -> Step {
        trace::held_elsewhere(self.key.as_str());
        self.back_off = BackOff::default();
        if self.line(|line, t| line.held(held, t)) != Some(true) {
            // At once, so that the contender of a line without requests ends here, and not in a
            // task of its own.
            return match self.demand() {
                Some(demand) => {
                    self.question = Some(self.ask(demand));
                    Step::AskAgain(None)
                }
                None => Step::Settled,
            };
        }
        let expiry = later(now(), held.remaining.max(SHORTEST_PAUSE));
        let poll = self.next(question, self.inner.config.poll_interval, SHORTEST_PAUSE);
        Step::AskAgain(Some(expiry.min(poll)))
    }

    /// Handles a question without an answer.
    fn unanswered(&mut self, question: &Question, error: &Error, why: Unanswered) -> Step {
        if error.is_interrupted() {
            let asks_again = self.line(|line, t| line.interrupted(&self.key, why, t));
            self.settled = asks_again != Some(true);
            return if self.settled {
                Step::Settled
            } else {
                Step::AskAgain(Some(self.next(question, FIRST_BACK_OFF, FIRST_BACK_OFF)))
            };
        }
        if why == Unanswered::Unknown && error.is_broken() && self.at_once < AT_ONCE {
            self.at_once += 1;
            self.line(|line, t| line.end_question(&self.key, why, t));
            return Step::AskAgain(None);
        }
        self.failed(question, error, why)
    }

    /// Handles a failure: asks again with growing pauses as long as patient requests wait.
    fn failed(&mut self, question: &Question, error: &Error, why: Unanswered) -> Step {
        self.inner.troubles.question_failed(question.owner, error);
        let asks_again = self.line(|line, t| line.ask_failed(&self.key, error, why, t));
        if asks_again != Some(true) {
            self.settled = true;
            return Step::Settled;
        }
        let longest = self.inner.config.poll_interval;
        let pause = self.back_off.lengthen(FIRST_BACK_OFF, longest);
        Step::AskAgain(Some(self.next(question, pause, FIRST_BACK_OFF)))
    }

    /// When the next question follows one that has ended now: so long after it, but not before a
    /// shortest pause.
    fn next(&self, question: &Question, pause: Duration, shortest: Duration) -> Instant {
        let at = later(question.sent, jittered(pause, JITTER));
        at.max(later(now(), jittered(shortest, JITTER)))
    }

    /// Waits until the time has come, or until a wake-up makes an earlier question worthwhile.
    async fn pause(&mut self, at: Option<Instant>) {
        let Some(mut until) = at else {
            return;
        };
        let woken = Arc::new(Notify::new());
        loop {
            match self.line(|line, _| line.take_wake(&woken)).flatten() {
                Some(Wake::Now) => return,
                Some(Wake::Next) => {
                    until = until.min(later(now(), HEAD_START));
                }
                None => {}
            }
            if timeout_at(until, woken.notified()).await.is_none() {
                return;
            }
        }
    }

    /// Runs a transition on the line, if this is still the contender of that line.
    fn line<T>(&self, work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T) -> Option<T> {
        self.inner
            .with_line(&self.key, |line, t| {
                line.is_contended_by(self.number).then(|| work(line, t))
            })
            .flatten()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if self.is_in_store {
            // The next contender would panic as well.
            let error = Error::new(
                ErrorKind::Unreachable,
                "the question to the store was dropped before its answer came, because the store panicked",
            );
            self.line(|line, t| line.abandoned(&self.key, &error, t));
            return;
        }
        let is_needed = self.line(|line, t| line.left_behind(&self.key, t));
        if is_needed == Some(true) {
            self.inner.scheduler.left_behind();
        }
    }
}
