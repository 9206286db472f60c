//! Tests of internal transitions, and of stores at the edges of the contract.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::stream;
use tokio::time::sleep;

use super::{
    line::{FollowUp, Granted, Line, Transition, WaitRequest},
    turn::Turn,
    *,
};
use crate::{
    ErrorKind, Loss,
    lease::{AT_ONCE, Lease},
    store::{
        Acquire, Acquired, Answer, Expected, Grant, Held, Hints, Inspection, Instance, KeyPage,
        List, Mode, Outcome, Release, Renew, RenewAnswers, StoreFuture, Tokens, sealed::Sealed,
    },
    sync::Mutex,
    time::Instant,
};

const SECOND: Duration = Duration::from_secs(1);

/// A memory store that answers as few stores do.
#[derive(Debug, Clone)]
struct Odd {
    store: MemoryStore,
    oddity: Oddity,
    acquires: Arc<AtomicU32>,
    /// When the store was last asked, and the longest time between two questions.
    asked: Arc<Mutex<(Option<Instant>, Duration)>>,
    renewals: Arc<AtomicU32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Oddity {
    AnswersTooFew,
    HeldForNoTime,
    /// The second grant does not reach its caller.
    LosesAGrant,
    /// The first eight renewals bring no tokens, as in a slot of a Cluster that moves.
    NoTokens,
    /// The connection breaks at every question.
    Breaks,
    /// The key is held, each answer takes this long, and from the second on there is none.
    TimesOutAfter(Duration),
}

impl Sealed for Odd {}

impl Store for Odd {
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        let before = self.acquires.fetch_add(1, Ordering::Relaxed);
        let held = |remaining| {
            Outcome::Answered(Acquired::Held(Held {
                remaining,
                fingerprint: None,
                label: None,
            }))
        };
        if self.oddity == Oddity::HeldForNoTime {
            return Box::pin(std::future::ready(held(Duration::ZERO)));
        }
        if let Oddity::TimesOutAfter(limit) = self.oddity {
            let mut asked = self.asked.lock();
            let last = asked.0.replace(Instant::now());
            let silence = last.map_or(Duration::ZERO, |last| last.elapsed());
            asked.1 = asked.1.max(silence);
            let outcome = match before {
                0 => held(100 * SECOND),
                _ => Outcome::Unknown(Error::new(ErrorKind::Unreachable, "on purpose")),
            };
            return Box::pin(async move {
                sleep(limit).await;
                outcome
            });
        }
        if self.oddity == Oddity::Breaks {
            return Box::pin(async move {
                assert!(before < 100, "the store is asked without a pause");
                Outcome::Unknown(Error::broken("on purpose", None))
            });
        }
        let acquired = self.store.acquire(request);
        if self.oddity == Oddity::LosesAGrant && before == 1 {
            let lost = Error::broken("on purpose", None);
            return Box::pin(async { Outcome::Unknown(lost) });
        }
        acquired
    }

    fn renew(&self, mut requests: Vec<Renew>) -> RenewAnswers {
        let before = self.renewals.fetch_add(1, Ordering::Relaxed);
        if self.oddity == Oddity::NoTokens && before < 8 {
            requests.iter_mut().for_each(|request| request.refill = 0);
        }
        if self.oddity == Oddity::AnswersTooFew {
            return Box::pin(stream::empty());
        }
        self.store.renew(requests)
    }

    fn release(&self, request: Release, answer: Answer) {
        self.store.release(request, answer);
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.store.raise_fence(key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.store.inspect(key)
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        self.store.force_release_if(key, expected)
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        self.store.list(request)
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        self.store.ping()
    }

    fn space(&self) -> Arc<str> {
        self.store.space()
    }

    fn uptime(&self) -> Duration {
        self.store.uptime()
    }

    fn server_id(&self) -> Option<Arc<str>> {
        self.store.server_id()
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.store.watch(instance)
    }
}

fn with(oddity: Oddity) -> (Odd, Locks) {
    let store = Odd {
        store: MemoryStore::new(),
        oddity,
        acquires: Arc::default(),
        asked: Arc::default(),
        renewals: Arc::default(),
    };
    let locks = Locks::builder(store.clone())
        .wait_forever()
        .build()
        .unwrap();
    (store, locks)
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// The lease was lost, and the key is claimed again for the record, but the answer to that claim is
/// lost. The claim must not be taken for that of another instance.
#[tokio::test(start_paused = true)]
async fn a_late_claim_whose_answer_was_lost_is_not_taken_for_another_instances() {
    let (store, locks) = with(Oddity::LosesAGrant);
    let once = locks.run_once("k", 100 * SECOND, async |_| {
        let key = LockKey::new("once,k").unwrap();
        assert!(store.force_release(key).await.unwrap());
        Ok::<_, std::convert::Infallible>(())
    });
    assert!(once.await.unwrap().stored);
    let again = locks.run_once("k", 100 * SECOND, async |_| Err::<(), _>("done again"));
    assert!(again.await.unwrap().replayed);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_retried() {
    let (store, locks) = with(Oddity::AnswersTooFew);
    let guard = locks.lock("k").await.unwrap();
    let error = guard.confirm().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(guard.is_held(), "the store has not said that it is lost");
    sleep(25 * SECOND).await;
    let renewals = store.renewals.load(Ordering::Relaxed);
    assert!(renewals > 10, "only {renewals} were tried");
    assert_eq!(guard.lost().await, Loss::Expired);
    drop(guard);
    settle().await;
    assert_eq!(locks.stats(), Stats::default());
}

/// Fault: the tokens were asked for again without a pause, as fast as the store could answer.
#[tokio::test(start_paused = true)]
async fn tokens_that_a_renewal_does_not_bring_are_asked_for_again_after_a_pause() {
    for ends_early in [false, true] {
        let (store, locks) = with(Oddity::NoTokens);
        let renewals = || store.renewals.load(Ordering::Relaxed);
        let began = Instant::now();
        let mut first = Some(locks.lock("k").await.unwrap());
        let second = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await.unwrap() }
        });
        settle().await;
        assert_eq!(renewals(), 1, "tokens are asked for while the turn goes on");
        first.take_if(|_| ends_early);
        settle().await;
        // The end of a turn is a reason to ask again, but only once.
        assert!(renewals() <= 2, "{} at once", renewals());
        while renewals() < 9 {
            assert!(!second.is_finished(), "a turn without a token");
            sleep(SECOND / 4).await;
        }
        assert!(began.elapsed() >= 6 * SECOND, "{:?}", began.elapsed());
        drop(first);
        // The ninth renewal has brought the tokens.
        let second = tokio::time::timeout(SECOND, second).await.unwrap();
        assert!(second.unwrap().is_held());
        settle().await;
        assert_eq!(locks.stats(), Stats::default());
        assert!(store.store.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_contender_pauses_even_if_the_store_reports_no_remaining_time() {
    let (store, locks) = with(Oddity::HeldForNoTime);
    let outcome = locks.lock("k").within(SECOND).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Held);
    assert!(store.acquires.load(Ordering::Relaxed) <= 501);
    settle().await;
    assert_eq!(locks.stats(), Stats::default());
}

/// A mutant that survived: questions over a connection that always breaks followed each other for
/// ever.
#[tokio::test(start_paused = true)]
async fn a_question_whose_connection_breaks_again_and_again_fails() {
    let (store, locks) = with(Oddity::Breaks);
    let error = locks.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(store.acquires.load(Ordering::Relaxed), 1 + AT_ONCE);
    settle().await;
    assert_eq!(locks.stats().waiting, 0);
}

/// Fault: the pause after an answer or a failure came on top of the time that the question had
/// taken, and a contender was silent for up to a poll interval and the store's time limit.
#[tokio::test(start_paused = true)]
async fn a_contender_is_never_silent_for_longer_than_a_poll_interval_or_a_question() {
    const POLL: Duration = SECOND; // the default
    const BACK_OFF: Duration = Duration::from_millis(50);
    const TICK: Duration = Duration::from_millis(2);
    for limit in [0, 10, 400, 900, 1000, 1500].map(Duration::from_millis) {
        let (store, locks) = with(Oddity::TimesOutAfter(limit));
        let outcome = locks.lock("k").within(20 * SECOND).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unreachable);
        let (_, silence) = *store.asked.lock();
        let bound = POLL.max(limit + BACK_OFF) + TICK;
        assert!(silence <= bound, "{silence:?} with a limit of {limit:?}");
        let acquires = store.acquires.load(Ordering::Relaxed);
        assert!(acquires <= 35, "{acquires} with a limit of {limit:?}");
        settle().await;
        assert_eq!(locks.stats().waiting, 0);
    }
}

/// Joins the line of a key, with a request for a lease of a second.
fn join(inner: &Arc<Inner>, key: &LockKey) -> Arc<Turn> {
    let mut request = WaitRequest::new(Mode::Exclusive);
    request.holding.lease = Some(SECOND);
    let mut follow_up = FollowUp::default();
    let joined = inner.lines.join(inner, key, request, &mut follow_up);
    joined.unwrap().turn
}

fn lease() -> Lease {
    let owner = Owner {
        instance: Instance::new(),
        attempt: 1,
    };
    let key = LockKey::new("k").unwrap();
    Lease::new(key, owner, None, Instant::now(), SECOND, Mode::Exclusive)
}

/// Resolves when the turn has begun.
async fn begun(turn: &Turn) {
    std::future::poll_fn(|cx| turn.poll(cx)).await.unwrap();
}

/// Ends a turn, and waits for the store's answer.
async fn end(locks: &Locks, granted: &Granted) -> Result<(), Error> {
    let end = |line: &mut Line, caller, t: &mut Transition<'_>| line.end(granted, Some(caller), t);
    locks.0.confirm(&granted.lease, end).await
}

/// Creates two requests for a key. The first has its turn, which may last for a second.
fn two_in_line(inner: &Arc<Inner>) -> (Arc<Turn>, Arc<Turn>) {
    let key = LockKey::new("k").unwrap();
    let first = join(inner, &key);
    let second = join(inner, &key);
    let grant = Grant {
        tokens: Tokens::new(1, 2),
        count: 1,
        others_wait: false,
    };
    let granted = inner.with_line(&key, |line, t| {
        assert!(line.is_contended_by(first.id));
        line.granted(&key, &grant, false, t)
    });
    granted.expect("the line is there").unwrap();
    assert!(first.granted().is_some());
    (first, second)
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_in_time_is_passed_on_with_the_next_token() {
    let locks = Locks::in_memory();
    let (first, second) = two_in_line(&locks.0);
    let first = first.granted().unwrap();
    tokio::time::advance(crate::lease::validity(SECOND) - Duration::from_millis(1)).await;
    locks.0.end_turn(first);
    let next = second.granted().unwrap();
    assert_eq!((next.number, next.token), (2, 2));
    assert_eq!(next.lease.owner, first.lease.owner);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_at_its_deadline_is_not_passed_on() {
    for is_awaited in [false, true] {
        let locks = Locks::in_memory();
        let (first, second) = two_in_line(&locks.0);
        let first = first.granted().unwrap();
        tokio::time::advance(crate::lease::validity(SECOND)).await;
        if is_awaited {
            assert_eq!(
                end(&locks, first).await.unwrap_err().kind(),
                ErrorKind::Lost
            );
        } else {
            locks.0.end_turn(first);
        }
        assert_eq!(first.lease.loss(), Some(Loss::Expired));
        begun(&second).await;
        let next = second.granted().unwrap();
        assert_ne!(next.lease.owner, first.lease.owner);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_once() {
    let locks = Locks::in_memory();
    let (first, second) = two_in_line(&locks.0);
    let first = first.granted().unwrap();
    locks.0.end_turn(first);
    assert!(second.granted().is_some());
    // The second request has its turn now, under the same lease.
    let error = end(&locks, first).await.unwrap_err();
    assert!(error.to_string().contains("ended already"), "{error}");
    assert!(first.lease.is_valid(Instant::now()));
}

/// Fault: the loss was decided for one turn and told to the next.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_turns_time_does_not_end_the_next_turn() {
    let locks = Locks::builder(MemoryStore::new())
        .wait_forever()
        .max_hold(SECOND / 2)
        .build()
        .unwrap();
    let (first, second) = two_in_line(&locks.0);
    let first = first.granted().unwrap();
    tokio::time::advance(SECOND / 2).await;
    // The scheduler has found that the time of the first turn is over, and reports this after that
    // turn has ended.
    locks.0.end_turn(first);
    let next = second.granted().unwrap();
    locks.0.lose(&first.lease, Loss::MaxHold);
    assert_eq!(next.lease.loss(), None);
    tokio::time::advance(SECOND / 4).await;
    locks.0.lose(&first.lease, Loss::MaxHold);
    assert_eq!(next.lease.loss(), None);
}

/// Fault: a guard could be seen lost, and then held again.
#[test]
fn a_lease_that_was_seen_to_be_over_is_not_extended() {
    let lease = lease();
    let deadline = lease.deadline();
    let before = deadline - Duration::from_nanos(1);
    assert!(lease.is_valid(before));
    assert!(
        !lease.is_valid(deadline),
        "the clock has passed the deadline"
    );
    // The answer to a renewal was timed before the guard looked at the clock, and is applied only
    // now.
    assert!(!lease.extend(before, before));
    assert!(!lease.is_valid(before));
}

/// Fault: a guard on another thread reported that the lease had expired while another reason was
/// about to be set, and reported that reason later.
#[test]
fn a_lease_has_one_loss_and_the_loss_has_one_reason() {
    let all = [
        Loss::Expired,
        Loss::NotOurs,
        Loss::GaveUp,
        Loss::MaxHold,
        Loss::Closed,
    ];
    for first in all {
        let lease = lease();
        assert_eq!(lease.loss(), None);
        for later in [first].into_iter().chain(all) {
            lease.lose(later);
            assert_eq!(lease.loss(), Some(first));
            assert!(!lease.is_valid(Instant::now()));
        }
    }
}

/// Two renewals are under way at a time: a scheduled one, and that of `confirm`. The answer to the
/// later one may come first.
#[test]
fn an_answer_to_an_earlier_renewal_does_not_move_the_deadline_back() {
    let lease = lease();
    let sent = Instant::now();
    let (earlier, later) = (sent + SECOND / 4, sent + SECOND / 2);
    assert!(lease.extend(later, later));
    let deadline = lease.deadline();
    assert!(lease.extend(later, earlier));
    assert_eq!(lease.deadline(), deadline);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_be_a_record_by_now_is_not_passed_on() {
    let store = crate::store::FaultyStore::new();
    let locks = Locks::builder(store.clone())
        .wait_forever()
        .build()
        .unwrap();
    let (key, claim) = (LockKey::new("k").unwrap(), Bytes::from_static(b"digest"));
    let first = locks
        .claim(&key, claim.clone(), Wait::ForEver, Holding::default())
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let (locks, key) = (locks.clone(), key.clone());
        async move {
            locks
                .claim(&key, claim, Wait::ForEver, Holding::default())
                .await
        }
    });
    settle().await;
    // The lease has a token for another turn, so that only the record keeps the lease from being
    // passed on.
    locks.0.lines.doubt_leases(|_| true);
    settle().await;
    // The record takes effect, and the task that sent it goes away before the answer, for example
    // because its runtime shuts down.
    store.set_fault(Some(crate::store::Fault::Mute));
    let content = Bytes::from_static(b"done");
    let until = Instant::now() + 60 * SECOND;
    let recording = first.record((&content, 60 * SECOND), until);
    assert!(tokio::time::timeout(SECOND, recording).await.is_err());
    drop(first);
    store.set_fault(None);
    let no_turn = waiting.await.unwrap().unwrap_err();
    assert!(matches!(no_turn, NoTurn::Recorded(found) if found == content));
}
