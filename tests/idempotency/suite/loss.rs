//! A lease that is lost while the handler runs.

use std::time::Duration;

use http::StatusCode;
use tokio::time::sleep;
use tower_distributed_lock::{ErrorKind, Locks, lock::AllGuards, store::Released};

use crate::{
    subject::{A_WHILE, Subject},
    support::{
        eventually,
        words::{Words, attempt, granted, owner, waiting},
    },
    web::{Runs, app, layer, lock_key, pay, send, sending},
};

/// Takes the key away from its holder, as an eviction would.
async fn take_away(subject: &impl Subject) {
    assert!(subject.store().force_release(lock_key()).await.unwrap());
}

pub(crate) async fn an_answer_is_stored_late_if_the_key_is_free(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    take_away(&subject).await;
    runs.open();
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", None)
    );
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn an_answer_is_stored_late_if_the_key_is_only_queued_for(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    // A waiting attempt is slow to take the free key.
    let slow = owner();
    subject
        .store()
        .ask_for(waiting(&lock_key(), slow))
        .await
        .unwrap();
    take_away(&subject).await;
    runs.open();
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", None)
    );
    let seen = subject.store().see(&lock_key()).await;
    assert!(seen.record.is_some());
    assert_eq!(seen.queue, [slow]);
}

pub(crate) async fn an_answer_is_not_stored_over_another(subject: impl Subject) {
    let runs = Runs::gated();
    let apps = [(); 2].map(|()| app(layer(&subject.replica().build().unwrap()), runs.handler()));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    take_away(&subject).await;
    let second = sending(&apps[1], pay());
    runs.arrival().await;
    // The second ends first: both have passed the gate only when both may.
    let store = subject.store();
    let holder = store.holder(&lock_key()).await.unwrap();
    assert_eq!(
        store.record(&lock_key(), holder, b"the second's").await,
        Released::Freed
    );
    runs.open();
    runs.open();
    let answer = first.await.unwrap();
    answer.assert_refused(409, "lease-lost");
    assert_eq!(answer.problem()["retryable"], false);
    assert_eq!(answer.problem()["idempotency_key"], "k");
    // A repeated store by the same owner is success.
    assert_eq!(second.await.unwrap().status, StatusCode::CREATED);
    let record = store.see(&lock_key()).await.record.unwrap();
    assert_eq!(record, "the second's");
}

pub(crate) async fn a_late_answer_does_not_disturb_a_running_request(subject: impl Subject) {
    let runs = Runs::gated();
    let first_runs = Runs::gated();
    let replica = || subject.replica().build().unwrap();
    let one = app(layer(&replica()), first_runs.handler());
    let two = app(layer(&replica()), runs.handler());
    let first = sending(&one, pay());
    first_runs.arrival().await;
    take_away(&subject).await;
    let second = sending(&two, pay());
    runs.arrival().await;
    first_runs.open();
    first.await.unwrap().assert_refused(409, "lease-lost");
    runs.open();
    let second = second.await.unwrap();
    assert_eq!(
        (second.status, second.header("idempotency-stored")),
        (StatusCode::CREATED, None)
    );
    assert!(send(&one, pay()).await.is_replayed());
}

pub(crate) async fn after_a_crash_a_retry_runs_once_the_lease_has_passed(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    // A silent holder, whose answers would be kept for a day.
    let crashed = tower_distributed_lock::store::Acquire {
        lease: 2 * A_WHILE,
        ..attempt(&lock_key(), owner())
    };
    let began = tokio::time::Instant::now();
    granted(subject.store().ask_for(crashed).await.unwrap());
    assert_eq!(send(&app, pay()).await.text(), "run 1");
    assert!(began.elapsed() >= 2 * A_WHILE);
}

/// Locks whose turns are lost soon although the store is healthy, long before the lease ends in the
/// store.
fn short_tempered(subject: &impl Subject) -> Locks {
    let builder = subject.replica().max_hold(A_WHILE);
    builder.lease(Duration::from_secs(600)).build().unwrap()
}

pub(crate) async fn a_lost_claim_is_not_freed_while_its_handler_runs(subject: impl Subject) {
    let runs = Runs::gated();
    let locks = short_tempered(&subject);
    let one = app(layer(&locks), runs.handler());
    let two = app(
        layer(&subject.replica().build().unwrap()).reject_if_running(),
        runs.handler(),
    );
    let first = sending(&one, pay());
    runs.arrival().await;
    eventually("the lease is lost", async || locks.stats().leases == 0).await;
    sleep(A_WHILE).await;
    send(&two, pay()).await.assert_refused(409, "in-progress");
    runs.open();
    assert_eq!(first.await.unwrap().header("idempotency-stored"), None);
    assert!(send(&two, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_lost_claim_is_freed_when_its_answer_is_not_kept(subject: impl Subject) {
    let runs = Runs::gated();
    let locks = short_tempered(&subject);
    let app = app(layer(&locks), runs.answering(503));
    let first = sending(&app, pay());
    runs.arrival().await;
    eventually("the lease is lost", async || locks.stats().leases == 0).await;
    runs.open();
    assert_eq!(first.await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    eventually("the key is free", async || {
        subject.store().holder(&lock_key()).await.is_none()
    })
    .await;
}

/// Fault: the second request ran beside the first, and the third beside both.
pub(crate) async fn a_handler_cannot_release_its_claim(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let handler = {
        let runs = runs.clone();
        async move |guards: AllGuards| {
            let guard = guards.named("idempotency").unwrap();
            let refused = guard.clone().release().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
            assert!(guard.is_held());
            // A drop ends nothing either: the layer holds the claim.
            drop(guard);
            format!("run {}", runs.run().await)
        }
    };
    let app = app(layer(&locks), handler);
    let first = sending(&app, pay());
    runs.arrival().await;
    let second = sending(&app, pay());
    eventually("it waits", async || locks.stats().waiting == 1).await;
    runs.open();
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert!(second.await.unwrap().is_replayed());
    assert_eq!(runs.begun(), 1);
}
