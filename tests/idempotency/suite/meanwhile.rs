//! While the first one runs.

use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::{Instant, sleep};
use tower_distributed_lock::Locks;

use crate::{
    subject::{A_WHILE, Subject},
    support::{PATIENCE, eventually},
    web::{Runs, app, layer, lock_key, pay, pay_as, send, sending},
};

/// Waits until this number of requests is in the replica's line.
async fn in_line(locks: &Locks, waiting: usize) {
    eventually("they wait", async || locks.stats().waiting == waiting).await;
}

/// Waits until this number of replicas is in the store's queue.
async fn queued(subject: &impl Subject, replicas: usize) {
    eventually("they are queued", async || {
        let seen = subject.store().inspect(lock_key()).await.unwrap();
        seen.queue.len() == replicas
    })
    .await;
}

pub(crate) async fn a_duplicate_waits_and_gets_the_first_answer(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), runs.handler()));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let duplicates = apps.each_ref().map(|app| sending(app, pay()));
    in_line(&replicas[0], 1).await;
    queued(&subject, 1).await;
    runs.open();
    assert!(!first.await.unwrap().is_replayed());
    for duplicate in duplicates {
        let answer = duplicate.await.unwrap();
        assert_eq!((answer.text(), answer.is_replayed()), ("run 1", true));
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn local_duplicates_do_not_ask_the_store(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    let before = subject.asked().await;
    let duplicates: Vec<_> = (0..20).map(|_| sending(&app, pay())).collect();
    in_line(&locks, 20).await;
    runs.open();
    first.await.unwrap();
    for duplicate in join_all(duplicates).await {
        assert!(duplicate.unwrap().is_replayed());
    }
    // The record of the first request.
    assert_eq!(subject.asked().await - before, 1);
}

pub(crate) async fn waiting_replicas_are_all_woken(subject: impl Subject) {
    // They would not ask again by themselves for as long as this test may take.
    let never = 4 * PATIENCE;
    let replica = || {
        let builder = subject.replica().lease(4 * never).poll_interval(never);
        builder.waiter_deadline(2 * never).build()
    };
    let replicas = [(); 4].map(|()| replica().unwrap());
    let runs = Runs::gated();
    let patient = |locks| app(layer(locks).wait(never), runs.handler());
    let apps = replicas.each_ref().map(patient);
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let others: Vec<_> = apps[1..].iter().map(|app| sending(app, pay())).collect();
    queued(&subject, 3).await;
    // On Redis, a subscription may come after the place in the queue.
    sleep(A_WHILE).await;
    let stored = Instant::now();
    runs.open();
    first.await.unwrap();
    for other in others {
        assert!(other.await.unwrap().is_replayed());
    }
    assert!(stored.elapsed() < never / 2);
    queued(&subject, 0).await;
}

pub(crate) async fn fifty_duplicates_over_two_replicas_run_once(subject: impl Subject) {
    let runs = Runs::free();
    let apps = [(); 2].map(|()| app(layer(&subject.replica().build().unwrap()), runs.handler()));
    let answers = (0..50).map(|at| sending(&apps[at % 2], pay()));
    let mut replayed = 0;
    for answer in join_all(answers).await {
        let answer = answer.unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::CREATED, "run 1")
        );
        replayed += u64::from(answer.is_replayed());
    }
    assert_eq!((runs.begun(), replayed), (1, 49));
}

pub(crate) async fn after_the_wait_limit_a_duplicate_gets_409_and_the_first_goes_on(
    subject: impl Subject,
) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let limited = |locks| {
        layer(locks)
            .wait(A_WHILE)
            .retry_after(Duration::from_millis(1500))
    };
    let apps = replicas
        .each_ref()
        .map(|locks| app(limited(locks), runs.handler()));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let holder = subject
        .store()
        .inspect(lock_key())
        .await
        .unwrap()
        .holder()
        .cloned()
        .unwrap();
    for app in &apps {
        let began = Instant::now();
        let answer = send(app, pay()).await;
        answer.assert_refused(409, "in-progress");
        assert_eq!(answer.header("retry-after"), Some("2"));
        assert_eq!(answer.problem()["retryable"], true);
        assert!(began.elapsed() >= A_WHILE);
    }
    let seen = subject.store().inspect(lock_key()).await.unwrap();
    assert_eq!(seen.holder().cloned().unwrap().owner, holder.owner);
    runs.open();
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert!(send(&apps[1], pay()).await.is_replayed());
}

pub(crate) async fn without_waiting_a_duplicate_gets_409_at_once(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let hasty = |locks| app(layer(locks).reject_if_running(), runs.handler());
    let apps = replicas.each_ref().map(hasty);
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    for app in &apps {
        let answer = send(app, pay()).await;
        answer.assert_refused(409, "in-progress");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(runs.ended(), 0);
    runs.open();
    first.await.unwrap();
    for app in &apps {
        assert!(send(app, pay()).await.is_replayed());
    }
}

pub(crate) async fn without_waiting_concurrent_retries_get_the_kept_answer(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks).reject_if_running(), runs.handler());
    send(&app, pay()).await;
    // The second comes while the first still asks the store.
    let (one, two) = tokio::join!(send(&app, pay()), send(&app, pay()));
    assert!(one.is_replayed() && two.is_replayed());
    // And of two that come at once to a key that is free, one runs and the other does not wait.
    let (one, two) = tokio::join!(send(&app, pay_as("new")), send(&app, pay_as("new")));
    assert_eq!(one.text(), "run 2");
    two.assert_refused(409, "in-progress");
}

pub(crate) async fn a_client_that_goes_away_does_not_cancel_the_handler(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let leaving = sending(&app, pay());
    runs.arrival().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    let retry = sending(&app, pay());
    in_line(&locks, 1).await;
    assert_eq!((runs.begun(), runs.ended()), (1, 0));
    runs.open();
    let answer = retry.await.unwrap();
    assert_eq!((answer.text(), answer.is_replayed()), ("run 1", true));
}

pub(crate) async fn a_waiting_client_that_goes_away_changes_nothing(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), runs.handler()));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let leaving = apps.each_ref().map(|app| sending(app, pay()));
    in_line(&replicas[0], 1).await;
    queued(&subject, 1).await;
    for leaving in leaving {
        leaving.abort();
    }
    in_line(&replicas[0], 0).await;
    queued(&subject, 0).await;
    runs.open();
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert!(send(&apps[1], pay()).await.is_replayed());
}

pub(crate) async fn a_panic_is_kept_as_a_500_and_waiting_duplicates_get_the_500(
    subject: impl Subject,
) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let handler = |runs: Runs| {
        async move || -> String {
            runs.run().await;
            panic!("this panic is part of the test");
        }
    };
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), handler(runs.clone())));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let others = apps.each_ref().map(|app| sending(app, pay()));
    in_line(&replicas[0], 1).await;
    queued(&subject, 1).await;
    runs.open();
    // As without the layer, the server catches the panic.
    assert!(first.await.unwrap_err().is_panic());
    for other in others {
        let other = other.await.unwrap();
        other.assert_refused(500, "handler-panicked");
        assert!(other.is_replayed());
    }
    send(&apps[1], pay())
        .await
        .assert_refused(500, "handler-panicked");
    assert_eq!(runs.begun(), 1);
}
