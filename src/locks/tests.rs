//! What takes a look inside, or a store that misbehaves as no store should.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{
    line::{Answer, Effect, Granted},
    lines::Lines,
    *,
};
use crate::{
    lease::Lease,
    store::{
        Acquire, Acquired, Grant, Held, Hints, Inspection, Instance, Owner, Release, Released,
        Renew, RenewAnswers, StoreFuture, Tokens, sealed::Sealed,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// A memory store with a bug.
#[derive(Debug, Clone)]
struct Buggy {
    store: MemoryStore,
    bug: Bug,
    acquires: Arc<AtomicU32>,
    renewals: Arc<AtomicU32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    PanicWhenAsked(Call),
    PanicWhenPolled(Call),
    AnswersTooFew,
    HeldForNoTime,
    /// Its second grant is lost on the way, and cleared away after a while, as the contract wants it.
    LosesAGrant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Acquire,
    Renew,
    Release,
}

impl Buggy {
    /// Its bug concerns one key only.
    fn call<T: 'static>(
        &self,
        call: Call,
        key: &LockKey,
        work: impl FnOnce() -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let bug = Some(self.bug).filter(|_| key.as_str() == "unlucky");
        assert_ne!(bug, Some(Bug::PanicWhenAsked(call)), "on purpose");
        if bug == Some(Bug::PanicWhenPolled(call)) {
            return Box::pin(async { panic!("on purpose") });
        }
        work()
    }
}

impl Sealed for Buggy {}

impl Store for Buggy {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        let before = self.acquires.fetch_add(1, Ordering::Relaxed);
        if self.bug == Bug::LosesAGrant && before == 1 {
            let store = self.store.clone();
            return Box::pin(async move {
                let (key, owner) = (request.key.clone(), request.owner);
                store.acquire(request).await?;
                tokio::spawn(async move {
                    sleep(SECOND).await;
                    let ending = crate::store::Ending::Free;
                    store
                        .start_release(Release {
                            key,
                            owner,
                            ending,
                            owed_for: SECOND,
                        })
                        .await
                });
                Err(Error::new(ErrorKind::Unreachable, "on purpose"))
            });
        }
        if self.bug == Bug::HeldForNoTime {
            let held = Held {
                remaining: Duration::ZERO,
                fingerprint: None,
                label: None,
            };
            return Box::pin(async { Ok(Acquired::Held(held)) });
        }
        self.call(Call::Acquire, &request.key.clone(), || {
            self.store.acquire(request)
        })
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        if self.bug == Bug::AnswersTooFew {
            return Box::pin(stream::empty());
        }
        let store = self.store.clone();
        let call = self.call(Call::Renew, &requests[0].key.clone(), || {
            Box::pin(async move { store.renew(requests) })
        });
        Box::pin(call.into_stream().flatten())
    }

    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        self.call(Call::Release, &request.key.clone(), || {
            self.store.start_release(request)
        })
    }

    fn owed(&self) -> usize {
        self.store.owed()
    }

    fn settled(&self) -> StoreFuture<()> {
        self.store.settled()
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.store.raise_fence(key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.store.inspect(key)
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        self.store.force_release(key)
    }

    fn space(&self) -> Arc<str> {
        self.store.space()
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.store.watch(instance)
    }
}

fn with(bug: Bug) -> (Buggy, Locks) {
    let store = Buggy {
        store: MemoryStore::new(),
        bug,
        acquires: Arc::default(),
        renewals: Arc::default(),
    };
    let locks = Locks::builder(store.clone()).build().unwrap();
    (store, locks)
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_at_an_acquire_fails_the_line_and_no_other() {
    for bug in [Bug::PanicWhenAsked, Bug::PanicWhenPolled] {
        let (store, locks) = with(bug(Call::Acquire));
        let lucky = locks.lock("lucky").await.unwrap();
        let wait = |locks: Locks| async move { locks.lock("unlucky").await.map(drop) };
        let first = tokio::spawn(wait(locks.clone()));
        assert!(first.await.unwrap_err().is_panic(), "whoever asks has it");
        settle().await;
        assert_eq!(locks.stats().keys, 1);
        sleep(100 * SECOND).await;
        assert!(lucky.is_held());
        drop(lucky);
        settle().await;
        assert_eq!(locks.stats(), Stats::default());
        assert!(store.store.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_at_a_renewal_loses_that_lease_at_its_deadline_and_no_other() {
    for bug in [Bug::PanicWhenAsked, Bug::PanicWhenPolled] {
        let (store, locks) = with(bug(Call::Renew));
        let unlucky = locks.lock("unlucky").await.unwrap();
        sleep(5 * SECOND).await; // so that the two are not renewed together
        let lucky = locks.lock("lucky").await.unwrap();
        assert_eq!(unlucky.lost().await, Loss::Expired);
        sleep(100 * SECOND).await;
        assert!(lucky.is_held());
        drop((lucky, unlucky));
        settle().await;
        assert_eq!(locks.stats(), Stats::default());
        assert!(store.store.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_at_a_release_does_not_stop_the_line() {
    for bug in [Bug::PanicWhenAsked, Bug::PanicWhenPolled] {
        let (store, locks) = with(bug(Call::Release));
        let lucky = locks.lock("lucky").await.unwrap();
        let began = Instant::now();
        drop(locks.lock("unlucky").await.unwrap());
        settle().await;
        // The lease has to expire before the next one gets the key.
        drop(locks.lock("unlucky").await.unwrap());
        assert!(began.elapsed() <= 31 * SECOND);
        sleep(100 * SECOND).await;
        assert!(lucky.is_held());
        drop(lucky);
        settle().await;
        assert_eq!(locks.stats(), Stats::default());
        assert!(store.store.is_empty());
    }
}

/// The lease was lost, the key is claimed anew for the record, and nobody hears of that: it looks like somebody else's.
#[tokio::test(start_paused = true)]
async fn a_late_claim_whose_answer_was_lost_is_not_taken_for_somebody_elses() {
    let (store, locks) = with(Bug::LosesAGrant);
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
async fn a_renewal_that_is_not_answered_for_is_tried_again() {
    let (store, locks) = with(Bug::AnswersTooFew);
    let guard = locks.lock("k").await.unwrap();
    sleep(25 * SECOND).await;
    let renewals = store.renewals.load(Ordering::Relaxed);
    assert!(renewals > 10, "only {renewals} were tried");
    assert_eq!(guard.lost().await, Loss::Expired);
    drop(guard);
    settle().await;
    assert_eq!(locks.stats(), Stats::default());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_for_no_time_is_asked_for_after_a_pause() {
    let (store, locks) = with(Bug::HeldForNoTime);
    let outcome = locks.lock_within("k", SECOND).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Held);
    assert!(store.acquires.load(Ordering::Relaxed) <= 501);
    settle().await;
    assert_eq!(locks.stats(), Stats::default());
}

/// A process that is paused between the store's grant and the line's taking it finds the lease lost.
#[tokio::test(start_paused = true)]
async fn a_loss_that_is_told_before_the_line_has_the_lease_reaches_the_line() {
    let locks = Locks::in_memory();
    let inner = &locks.0;
    assert!(inner.scheduler.start(inner));
    let (key, sent) = (LockKey::new("k").unwrap(), Instant::now());
    let joined = inner.lines.join(&key, patient(), sent).unwrap();
    let owner = inner.fresh_owner();
    let lease = Arc::new(Lease::new(key, owner, sent, inner.config.validity()));
    inner.scheduler.track(lease.clone(), sent);

    inner.lose(&lease, Loss::Expired);

    let grant = Grant {
        tokens: Tokens::new(1, 1),
        others_wait: false,
    };
    let contention = joined.contention.unwrap();
    inner.carry_out(
        inner
            .lines
            .granted(&contention, lease, (grant, None), Instant::now()),
    );
    let granted = tokio::time::timeout(SECOND, joined.answer).await;
    let granted = granted.expect("the line goes on").unwrap().unwrap();
    assert_ne!(granted.lease.owner, owner);
    inner.end_turn(&granted, None);
    settle().await;
    assert_eq!(locks.stats(), Stats::default());
}

fn patient() -> Wish {
    Wish {
        patient: true,
        claim: None,
    }
}

/// Two who wait for a key, the first of whom has just got it.
fn two_in_line(lines: &Lines, now: Instant) -> (Granted, Answer) {
    let key = LockKey::new("k").unwrap();
    let mut first = lines.join(&key, patient(), now).unwrap();
    let second = lines.join(&key, patient(), now).unwrap();
    let owner = Owner {
        instance: Instance::new(),
        attempt: 1,
    };
    let lease = Arc::new(Lease::new(key, owner, now, SECOND));
    let grant = Grant {
        tokens: Tokens::new(1, 2),
        others_wait: false,
    };
    let granted = lines.granted(&first.contention.unwrap(), lease, (grant, None), now);
    let [Effect::Tell(..)] = &granted[..] else {
        panic!("{granted:?}");
    };
    for effect in granted {
        if let Effect::Tell(ticket, answer) = effect {
            ticket.send(answer).unwrap();
        }
    }
    (first.answer.try_recv().unwrap().unwrap(), second.answer)
}

#[test]
fn a_turn_that_ends_in_time_is_passed_on_with_the_next_token() {
    let (lines, now) = (Lines::new(Config::default().limits()), Instant::now());
    let (first, _second) = two_in_line(&lines, now);
    let effects = lines.end(&first, None, now + SECOND - Duration::from_nanos(1));
    let [Effect::Quicken(_), Effect::Tell(_, Ok(next))] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!((next.turn, next.token), (2, 2));
    assert_eq!(next.lease.owner, first.lease.owner);
}

#[test]
fn a_turn_that_ends_at_its_deadline_is_not_passed_on() {
    for ask in [false, true] {
        let (lines, now) = (Lines::new(Config::default().limits()), Instant::now());
        let (first, _second) = two_in_line(&lines, now);
        let ask = ask.then(|| tokio::sync::oneshot::channel().0);
        let effects = lines.end(&first, ask, now + SECOND);
        let [Effect::Lose(lease, Loss::Expired)] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(lease.owner, first.lease.owner);
    }
}

#[test]
fn a_turn_ends_once() {
    let (lines, now) = (Lines::new(Config::default().limits()), Instant::now());
    let (first, _second) = two_in_line(&lines, now);
    assert!(!lines.end(&first, None, now).is_empty());
    // The second has its turn now, under the same lease.
    assert!(lines.end(&first, None, now).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_be_a_record_by_now_is_not_passed_on() {
    let store = MemoryStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let (key, claim) = (LockKey::new("k").unwrap(), Bytes::from_static(b"digest"));
    let first = locks
        .claim(&key, claim.clone(), Wait::ForEver)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let (locks, key) = (locks.clone(), key.clone());
        async move { locks.claim(&key, claim, Wait::ForEver).await }
    });
    settle().await;
    // A tenure with tokens for another turn, so that only the record keeps it from being passed on.
    locks.0.scheduler.hurry_all();
    settle().await;
    // The record takes effect, and whoever recorded it goes away before the answer: its runtime shuts down, say.
    store.set_fault(Some(crate::store::Fault::Mute));
    let content = Bytes::from_static(b"done");
    let until = Instant::now() + 60 * SECOND;
    let recording = first.record((&content, 60 * SECOND), until);
    assert!(tokio::time::timeout(SECOND, recording).await.is_err());
    drop(first);
    store.set_fault(None);
    let miss = waiting.await.unwrap().unwrap_err();
    assert!(matches!(miss, Miss::Recorded(found) if found == content));
}
