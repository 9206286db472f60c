//! A store on anything that changes a small value by compare-and-swap.
//!
//! An [`Engine`] keeps one value for each key and knows nothing of leases. [`EngineStore`] makes a
//! store of it: a call reads the value, has the rules of [`store/rules`](super::rules) change it,
//! and swaps the new value for the one that was read.
//!
//! ```text
//! acquire(orders/42, A)
//!   guess    what this process last wrote there, or nothing           no round trip
//!   rules    granted; leases [A]
//!   swap     tag 71 → 92: done                                        one round trip
//!            tag 71 → 92: stale, the value is leases [B] (tag 85)
//!   rules    held, A joins the queue
//!   swap     tag 85 → 17: done                                        another one
//! ```
//!
//! 1. A call has one swap under way at a time, and none after its answer. Only the last one can
//!    have an effect, because a stale swap has none. So the outcome of the last swap is the outcome
//!    of the call.
//! 2. An answer is based on a swap that was done, or on a value that was read within the call: a
//!    guess is never answered with.
//! 3. Time is the engine's clock. Whether a lease of another owner has ended is judged by a time
//!    that the clock has certainly reached, and a new lease is counted from a time that the clock
//!    has certainly not passed ([`Clock`]). If the clock was set meanwhile, the lease may end
//!    before its holder believes so, and the outcome is unknown.
//! 4. A release in doubt always writes, also if there is nothing to end: the tag changes, so a swap
//!    of an earlier call that is still on its way will be stale. So no release is answered with
//!    [`Released::NotYet`].

mod cache;
mod clock;
#[cfg(test)]
mod tests;

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;

pub(super) use self::clock::Reading;
use self::{
    cache::Cache,
    clock::{Clock, Times},
};
use super::{
    Acquire, Acquired, Answer, Ending, Expected, Hint, Inspection, Instance, Mode, Outcome, Owner,
    Queueing, Release, Released, Renew, RenewAnswers, Renewed, StoreFuture,
    home::Home,
    rules::{Damaged, Fence, Moment, Record, Slot, Step},
    types::check_floor,
};
use crate::{
    Error, ErrorKind, LockKey,
    sync::random,
    time::{Instant, now, timeout},
    trace::{StoreCall, StoreOperation, StoreResult},
};

/// How far a token counter is below the clock before a grant: enough for a block.
const ROOM_FOR_A_BLOCK: u64 = 10_000;

/// After this time an attempt asks again that has found a transaction of a former holder open.
const WHILE_OPEN: Duration = Duration::from_millis(50);

/// After this time an attempt asks again if the engine sends no hints.
const WITHOUT_HINTS: Duration = Duration::from_millis(20);

/// The longest pause after a swap that was stale.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A place that keeps a small value for each key, and changes it by compare-and-swap.
///
/// A value that was written is seen by every later call, from any connection. `clock` is read
/// within the call, and is the same for all connections.
pub(super) trait Engine: std::fmt::Debug + Send + Sync + 'static {
    /// Changes a value, if its tag is still the expected one, and then sends the hints. Without a
    /// new tag, the swap only reads: it is always stale.
    fn swap(&self, swap: Swap, deadline: Instant) -> impl Future<Output = Outcome<Swapped>> + Send;

    /// Whether hints arrive.
    fn sends_hints(&self) -> bool;
}

/// A value, as it was read or written.
#[derive(Debug, Clone, Default)]
pub(super) struct Value {
    /// Names this value. `None` if there is none.
    tag: Option<i64>,
    /// The highest token of the key; if there is no value, the highest one that may have been
    /// forgotten with it.
    token: u64,
    /// The slot without its record, encoded. Empty if there is no value.
    state: Bytes,
    slot: Slot,
}

impl Value {
    /// Takes a value that was read. The engine keeps the record beside it.
    pub(super) fn decode(
        tag: Option<i64>,
        token: u64,
        state: Bytes,
        record: Option<Record>,
    ) -> Result<Self, Error> {
        let mut slot = Slot::default();
        if !state.is_empty() {
            let damaged = |why: Damaged| Error::new(ErrorKind::Foreign, why.to_string());
            slot = Slot::decode(state.clone()).map_err(damaged)?;
        }
        if let Some(record) = record {
            slot.set_record(record);
        }
        Ok(Self {
            tag,
            token,
            state,
            slot,
        })
    }
}

/// A change of a value.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) key: LockKey,
    /// The tag of the value to be changed. `None`: there is no value.
    pub(super) expect: Option<i64>,
    /// The tag of the new value: a random number that was never used. `None`: only read.
    pub(super) tag: Option<i64>,
    /// The highest token that was known before.
    pub(super) low: u64,
    pub(super) token: u64,
    pub(super) state: Bytes,
    /// When nothing is left of the value but its token.
    pub(super) until: Option<Moment>,
    pub(super) care: Care,
    /// Whether the change must survive a crash of the engine once it was answered. A lost release
    /// or place in the queue only costs time.
    pub(super) is_durable: bool,
    /// Sent once the change was made.
    pub(super) hints: Vec<(Instance, Hint)>,
}

impl Swap {
    pub(super) fn new(key: LockKey, from: &Value, to: &Value) -> Self {
        Self {
            key,
            expect: from.tag,
            tag: to.tag,
            low: from.token,
            token: to.token,
            state: to.state.clone(),
            until: to.slot.latest_expiry(),
            care: Care::Nothing,
            is_durable: false,
            hints: Vec::new(),
        }
    }

    pub(super) fn read(key: LockKey) -> Self {
        Self::new(key, &Value::default(), &Value::default())
    }
}

/// What a swap has to do with the record of its key, and with a transaction of its last exclusive
/// owner.
#[derive(Debug, Clone)]
pub(super) enum Care {
    /// Nothing.
    Nothing,
    /// If there is a record, the swap is stale.
    NoRecord,
    /// As [`NoRecord`](Self::NoRecord); and no transaction is open that an earlier owner has
    /// fenced, nor can one be fenced from now on.
    Grant,
    /// As [`Grant`](Self::Grant), and this owner can fence its transactions.
    Claim { owner: Owner, token: u64 },
    /// As [`NoRecord`](Self::NoRecord), and the record is written.
    Record(Record),
    /// The record is removed.
    NoRecordAnyMore,
}

/// The answer to a [`Swap`].
#[derive(Debug, Clone)]
pub(super) struct Swapped {
    pub(super) reading: Reading,
    pub(super) end: SwapEnd,
}

#[derive(Debug, Clone)]
pub(super) enum SwapEnd {
    Done,
    /// Nothing was changed: this is the present value.
    Stale(Box<Value>),
    /// Nothing was changed, because a transaction is open that an earlier owner has fenced.
    Open,
}

/// The calls of a store on an engine.
#[derive(Debug)]
pub(super) struct EngineStore<E> {
    pub(super) engine: E,
    pub(super) home: Home,
    pub(super) settings: Settings,
    clock: Clock,
    cache: Cache,
}

#[derive(Debug)]
pub(super) struct Settings {
    /// The time limit of a call.
    pub(super) limit: Duration,
    /// Whether the owners of all exclusive leases can fence their transactions, and not only those
    /// with a fingerprint.
    pub(super) is_fenced: bool,
    /// What leases say about their holder.
    pub(super) label: Option<Arc<str>>,
}

/// What the rules have made of a value.
struct Plan<T> {
    answer: T,
    /// What the swap has to look at. Records are seen by comparing the slots.
    care: Care,
    /// Whether the change must survive a crash. Only such a change takes tokens.
    is_durable: bool,
    /// Whether the value is written even if it is the same as before.
    must_write: bool,
}

/// What a plan makes of the value that it was made for.
struct Change {
    swap: Swap,
    /// The value after the swap.
    to: Value,
}

impl<T> Plan<T> {
    fn relaxed(answer: T) -> Self {
        Self {
            answer,
            care: Care::Nothing,
            is_durable: false,
            must_write: false,
        }
    }

    fn durable(answer: T) -> Self {
        Self {
            is_durable: true,
            ..Self::relaxed(answer)
        }
    }
}

impl<E: Engine> EngineStore<E> {
    pub(super) fn new(engine: E, home: Home, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            engine,
            home,
            settings,
            clock: Clock::default(),
            cache: Cache::default(),
        })
    }

    /// See [`Store::acquire`](super::Store::acquire).
    pub(super) fn acquire(self: Arc<Self>, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        Box::pin(async move {
            let plan = |slot: &mut Slot, step: &mut Step<'_>, is_open| {
                self.plan_acquire(&request, slot, step, is_open)
            };
            self.change(StoreOperation::Acquire, &request.key, plan)
                .await
        })
    }

    fn plan_acquire(
        &self,
        request: &Acquire,
        slot: &mut Slot,
        step: &mut Step<'_>,
        is_open: bool,
    ) -> Result<Plan<Acquired>, Error> {
        let place = slot.place_until(request.owner);
        let had_record = slot.record().is_some();
        follow_the_clock(step);
        let mut answer = if is_open {
            Acquired::Held(slot.stand_by(request, step, WHILE_OPEN))
        } else {
            slot.acquire(request, step)?
        };
        let grant = match &mut answer {
            Acquired::Granted(grant) => grant,
            Acquired::Recorded(_) => return Ok(Plan::relaxed(answer)),
            Acquired::Held(held) => {
                if !self.engine.sends_hints() {
                    held.remaining = held.remaining.min(WITHOUT_HINTS);
                }
                // A place is refreshed when half of its time is over: asking again is a read then.
                if let Queueing::Wait { deadline, .. } = request.queueing
                    && let Some(until) = place.filter(|until| *until >= step.now + deadline / 2)
                {
                    slot.set_place_until(request.owner, until);
                }
                debug_assert!(!had_record, "a record is answered with");
                let plan = Plan::relaxed(answer);
                return Ok(Plan {
                    care: Care::NoRecord,
                    ..plan
                });
            }
        };
        if let Some(label) = &self.settings.label {
            slot.set_label(request, label);
        }
        let is_claim = request.fingerprint.is_some() || self.settings.is_fenced;
        let token = grant.tokens.first();
        let care = match request.mode {
            Mode::Exclusive if is_claim => Care::Claim {
                owner: request.owner,
                token: token.unwrap_or_default(),
            },
            Mode::Exclusive | Mode::Shared | Mode::Permit { .. } => Care::Grant,
        };
        Ok(Plan {
            care,
            ..Plan::durable(answer)
        })
    }

    /// See [`Store::renew`](super::Store::renew).
    pub(super) fn renew(self: Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let renewals: FuturesUnordered<_> = (requests.into_iter().enumerate())
            .map(|(index, request)| {
                let store = self.clone();
                async move {
                    let plan = |slot: &mut Slot, step: &mut Step<'_>, _| {
                        if request.refill > 0 {
                            follow_the_clock(step);
                        }
                        Ok(match slot.renew(&request, step) {
                            Renewed::NotOurs => Plan::relaxed(Renewed::NotOurs),
                            renewed => Plan::durable(renewed),
                        })
                    };
                    let renewed = store
                        .change(StoreOperation::Renew, &request.key, plan)
                        .await;
                    (
                        index,
                        renewed.into_result().unwrap_or_else(Renewed::Unknown),
                    )
                }
            })
            .collect();
        Box::pin(renewals)
    }

    /// See [`Store::release`](super::Store::release).
    pub(super) fn release(self: Arc<Self>, request: Release, answer: Answer) {
        let Some(runtime) = self.home.runtime() else {
            let error = unreachable("there is no tokio runtime to make the call on");
            return answer.give(Outcome::Refused(error));
        };
        runtime.spawn(async move {
            let plan = |slot: &mut Slot, step: &mut Step<'_>, _| {
                // A record that the transaction of the data has written is there already, and
                // stays.
                let is_record = matches!(request.ending, Ending::Record { .. });
                let writes = is_record && slot.record().is_none();
                let mut plan = Plan::relaxed(slot.release(&request, step));
                plan.is_durable = writes && plan.answer == Released::Freed;
                plan.must_write = request.in_doubt;
                Ok(plan)
            };
            let released = self
                .change(StoreOperation::Release, &request.key, plan)
                .await;
            answer.give(released);
        });
    }

    /// See [`Store::raise_fence`](super::Store::raise_fence).
    pub(super) fn raise_fence(
        self: Arc<Self>,
        key: LockKey,
        floor: u64,
    ) -> StoreFuture<Result<u64, Error>> {
        Box::pin(async move {
            check_floor(floor)?;
            let plan =
                |_: &mut Slot, step: &mut Step<'_>, _| Ok(Plan::durable(step.fence.raise(floor)));
            let changed = self.change(StoreOperation::Other, &key, plan).await;
            changed.into_result()
        })
    }

    /// See [`Store::inspect`](super::Store::inspect).
    pub(super) fn inspect(self: Arc<Self>, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(async move {
            let mut value = self.read(&key, self.deadline()).await?;
            let times = self.clock.times();
            let times = times.ok_or_else(|| unreachable("the clock of the store is not known"))?;
            value.slot.forget_expired(times.at_least);
            Ok(value.slot.inspect(value.token, times.at_most))
        })
    }

    /// See [`Store::force_release_if`](super::Store::force_release_if).
    pub(super) fn force_release(
        self: Arc<Self>,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        Box::pin(async move {
            let plan = |slot: &mut Slot, step: &mut Step<'_>, _| {
                // A transaction may have written one since the value was guessed.
                let care = slot.record().map_or(Care::NoRecord, |_| Care::Nothing);
                let plan = Plan::durable(slot.force_release(expected, step));
                Ok(Plan { care, ..plan })
            };
            let changed = self.change(StoreOperation::Other, &key, plan).await;
            changed.into_result()
        })
    }

    pub(super) fn deadline(&self) -> Instant {
        now() + self.settings.limit
    }

    /// Has the rules change the value of a key, until the change is made or nothing is to be
    /// changed. They are told whether a transaction was found open, which an earlier owner has
    /// fenced: a change that must not be made meanwhile waits for its end.
    async fn change<T>(
        &self,
        operation: StoreOperation,
        key: &LockKey,
        plan: impl Fn(&mut Slot, &mut Step<'_>, bool) -> Result<Plan<T>, Error>,
    ) -> Outcome<T> {
        let call = StoreCall::begin(operation);
        let outcome = self.try_until_changed(key, plan).await;
        let outcome = outcome.unwrap_or_else(Outcome::Refused);
        call.end(match outcome {
            Outcome::Answered(_) => StoreResult::Answered,
            Outcome::Refused(_) | Outcome::Unknown(_) => StoreResult::Failed,
        });
        outcome
    }

    /// After an error, nothing was changed.
    async fn try_until_changed<T>(
        &self,
        key: &LockKey,
        plan: impl Fn(&mut Slot, &mut Step<'_>, bool) -> Result<Plan<T>, Error>,
    ) -> Result<Outcome<T>, Error> {
        let deadline = self.deadline();
        let mut value = self.cache.guess(key);
        // Whether the value was read within this call.
        let mut is_fresh = false;
        let (mut is_open, mut was_open, mut stale) = (false, false, 0);
        loop {
            // Invariant 3: without a time, the value has to be read even if it is known.
            let Some(times) = self.clock.times() else {
                (value, is_fresh) = (self.read(key, deadline).await?, true);
                continue;
            };
            let planned = self.plan(key, &value, times, is_open, &plan);
            // Invariant 2: a guess may only be swapped for another value.
            if !is_fresh && !matches!(planned, Ok((_, Some(_)))) {
                (value, is_fresh) = (self.read(key, deadline).await?, true);
                continue;
            }
            let (planned, change) = planned?;
            let Some(Change { swap, to }) = change else {
                return Ok(Outcome::Answered(planned.answer));
            };
            let swapped = match self.engine.swap(swap, deadline).await {
                Outcome::Answered(swapped) => swapped,
                Outcome::Refused(error) => return Err(error),
                Outcome::Unknown(error) => {
                    self.cache.forget(key);
                    return Ok(Outcome::Unknown(error));
                }
            };
            self.clock.learn(swapped.reading);
            match swapped.end {
                SwapEnd::Done if times.held_for(swapped.reading) => {
                    self.cache.keep(key, to);
                    return Ok(Outcome::Answered(planned.answer));
                }
                SwapEnd::Done => {
                    self.cache.forget(key);
                    let message = "the clock of the store was set during the call";
                    return Ok(Outcome::Unknown(unreachable(message)));
                }
                SwapEnd::Stale(present) => {
                    // A guess that was wrong is no sign of others that write at the same time.
                    stale += u32::from(is_fresh);
                    (value, is_fresh, is_open) = (*present, true, false);
                }
                SwapEnd::Open => {
                    stale += u32::from(was_open);
                    (is_fresh, is_open, was_open) = (true, true, true);
                }
            }
            self.pause(stale, was_open, deadline).await?;
            if stale > 1 {
                // In a pause, others write: what was known before is stale.
                (value, is_fresh, is_open) = (self.read(key, deadline).await?, true, false);
            }
        }
    }

    /// Has the rules plan a change. There is none if the value stays what it is.
    fn plan<T>(
        &self,
        key: &LockKey,
        from: &Value,
        times: Times,
        is_open: bool,
        plan: impl Fn(&mut Slot, &mut Step<'_>, bool) -> Result<Plan<T>, Error>,
    ) -> Result<(Plan<T>, Option<Change>), Error> {
        let mut slot = from.slot.clone();
        slot.forget_expired(times.at_least);
        let mut fence = Fence::new(Moment(from.token));
        let mut step = Step {
            key,
            now: times.at_most,
            wall_clock: times.at_least,
            fence: &mut fence,
            hints: Vec::new(),
        };
        let mut plan = plan(&mut slot, &mut step, is_open)?;
        let hints = step.hints;
        let token = if plan.is_durable {
            fence.last()
        } else {
            from.token
        };
        match (from.slot.record(), slot.record()) {
            (None, Some(record)) => plan.care = Care::Record(record.clone()),
            // One that has only expired is replaced by the next.
            (Some(record), None) if record.until > times.at_least => {
                plan.care = Care::NoRecordAnyMore;
            }
            (Some(_) | None, None) | (Some(_), Some(_)) => {}
        }
        let state = slot.encode();
        let is_same = state == from.state
            && token == from.token
            && !plan.must_write
            && !matches!(plan.care, Care::Record(_) | Care::NoRecordAnyMore);
        let change = (!is_same).then(|| {
            let to = Value {
                tag: Some(random_tag()),
                token,
                state,
                slot,
            };
            let swap = Swap {
                care: plan.care.clone(),
                is_durable: plan.is_durable,
                hints,
                ..Swap::new(key.clone(), from, &to)
            };
            Change { swap, to }
        });
        Ok((plan, change))
    }

    /// Reads the value of a key.
    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Value, Error> {
        let swap = Swap::read(key.clone());
        let read = self.engine.swap(swap, deadline).await.into_result()?;
        self.clock.learn(read.reading);
        match read.end {
            SwapEnd::Stale(value) => Ok(*value),
            SwapEnd::Done | SwapEnd::Open => {
                let message = "the store has answered a question with a change";
                Err(Error::new(ErrorKind::Foreign, message))
            }
        }
    }

    /// Pauses before the next swap, if others write at the same time or have a transaction open.
    async fn pause(&self, stale: u32, was_open: bool, deadline: Instant) -> Result<(), Error> {
        if stale > 0 {
            let longest = Duration::from_millis(1 << stale.min(10)).min(LONGEST_PAUSE);
            // Not tokio's: the caller may poll this future on another runtime than before.
            timeout(longest.mul_f64(random()), pending::<()>()).await;
        }
        if now() < deadline {
            return Ok(());
        }
        let limit = self.settings.limit;
        let what = if was_open {
            "a transaction was open that an earlier holder of the key has fenced"
        } else {
            "too many others changed the key at the same time"
        };
        Err(unreachable(format!("{what}, for {limit:?}")))
    }
}

/// Raises the counter of a key to the clock, less a block: so tokens rise even if the engine has
/// forgotten the last ones.
fn follow_the_clock(step: &mut Step<'_>) {
    let clock = step.wall_clock.0;
    step.fence.raise(clock.saturating_sub(ROOM_FOR_A_BLOCK));
}

fn random_tag() -> i64 {
    let (high, _) = crate::sync::unique_id().as_u64_pair();
    high.cast_signed()
}

fn unreachable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}
