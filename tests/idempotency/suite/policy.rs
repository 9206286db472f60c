//! Kept answers.

use axum::response::IntoResponse;
use http::StatusCode;
use tower_distributed_lock::idempotency::Keep;

use crate::{
    subject::Subject,
    support::eventually,
    web::{Runs, app, layer, pay, pay_as, send, sending},
};

/// Sends a request twice. Whether the handler ran once.
async fn is_kept(subject: &impl Subject, status: u16) -> bool {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.answering(status));
    for _ in 0..2 {
        let answer = send(&app, pay_as(&status.to_string())).await;
        assert_eq!(answer.status, status);
    }
    runs.begun() == 1
}

pub(crate) async fn answers_of_handlers_that_may_have_acted_are_kept(subject: impl Subject) {
    for status in [
        200, 201, 202, 204, 299, 301, 303, 304, 308, 402, 500, 501, 502, 504, 507, 599,
    ] {
        assert!(is_kept(&subject, status).await, "{status}");
    }
}

pub(crate) async fn answers_that_say_that_nothing_was_done_are_not_kept(subject: impl Subject) {
    for status in [400, 401, 403, 404, 405, 409, 415, 422, 423, 429, 499, 503] {
        assert!(!is_kept(&subject, status).await, "{status}");
    }
}

pub(crate) async fn a_policy_of_the_program_decides(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let layer = |locks| {
        layer(locks).keep(|answer| match answer.status().as_u16() {
            404 => Keep::Yes,
            _ => Keep::No,
        })
    };
    let missing = app(layer(&locks), runs.answering(404));
    send(&missing, pay()).await;
    let again = send(&missing, pay()).await;
    assert_eq!((again.status.as_u16(), again.text()), (404, "run 1"));
    let fine = app(layer(&locks), runs.answering(200));
    for run in ["run 2", "run 3"] {
        assert_eq!(send(&fine, pay_as("other")).await.text(), run);
    }
}

pub(crate) async fn a_handler_overrules_the_policy_either_way(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = |status: u16, keep: Keep| {
        let runs = runs.clone();
        async move || {
            let status = StatusCode::from_u16(status).unwrap();
            let mut response = (status, format!("run {}", runs.run().await)).into_response();
            response.extensions_mut().insert(keep);
            response
        }
    };
    let kept = app(layer(&locks), handler(404, Keep::Yes));
    for replayed in [false, true] {
        let answer = send(&kept, pay()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("run 1", replayed));
    }
    let free = app(layer(&locks), handler(200, Keep::No));
    for run in ["run 2", "run 3"] {
        assert_eq!(send(&free, pay_as("other")).await.text(), run);
    }
}

pub(crate) async fn only_the_handler_frees_the_key_of_its_transaction(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let answering = |status: u16, rolled_back: bool| {
        let (runs, status) = (runs.clone(), StatusCode::from_u16(status).unwrap());
        let handler = async move || {
            let mut response = (status, format!("run {}", runs.run().await)).into_response();
            if rolled_back {
                response.extensions_mut().insert(Keep::No);
            }
            response
        };
        app(layer(&locks).keep(Keep::unless_rolled_back), handler)
    };
    let sent = async |status: u16, rolled_back: bool| {
        let tenant = format!("{status} {rolled_back}");
        let app = answering(status, rolled_back);
        let before = runs.begun();
        assert_eq!(send(&app, pay_as(&tenant)).await.status, status);
        let again = send(&app, pay_as(&tenant)).await;
        (runs.begun() - before, again)
    };
    // The answer to COMMIT was lost, and the handler says so with one status or another.
    for status in [408, 500, 503, 504] {
        let (ran, again) = sent(status, false).await;
        again.assert_refused(409, "outcome-unknown");
        assert_eq!(ran, 1, "{status}");
    }
    for status in [201, 303, 402, 404, 409, 422] {
        let (ran, again) = sent(status, false).await;
        assert!(again.is_replayed(), "{status}");
        assert_eq!(ran, 1, "{status}");
    }
    for status in [409, 500, 503] {
        let (ran, again) = sent(status, true).await;
        assert_eq!((ran, again.status.as_u16()), (2, status));
    }
}

pub(crate) async fn a_policy_keeps_successes_only(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let layer = || layer(&locks).keep(Keep::when_errors_do_nothing);
    for status in [402, 408, 500, 504] {
        let tenant = status.to_string();
        let app = app(layer(), runs.answering(status));
        let before = runs.begun();
        for _ in 0..2 {
            assert_eq!(send(&app, pay_as(&tenant)).await.status, status);
        }
        assert_eq!(runs.begun() - before, 2, "{status}");
    }
    let fine = app(layer(), runs.answering(201));
    send(&fine, pay()).await;
    assert!(send(&fine, pay()).await.is_replayed());
}

pub(crate) async fn a_handler_that_was_timed_out_is_not_run_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.answering(408));
    assert_eq!(send(&app, pay()).await.status, 408);
    let again = send(&app, pay()).await;
    again.assert_refused(409, "outcome-unknown");
    assert_eq!(again.header("retry-after"), None);
    assert_eq!(again.problem()["retryable"], false);
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn after_an_answer_that_is_not_kept_the_next_waiter_runs(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let handler = |runs: Runs| {
        async move || match runs.run().await {
            run @ ..4 => (StatusCode::SERVICE_UNAVAILABLE, format!("run {run}")),
            run => (StatusCode::OK, format!("run {run}")),
        }
    };
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), handler(runs.clone())));
    let first = sending(&apps[0], pay());
    runs.arrival().await;
    let waiting: Vec<_> = (0..6).map(|at| sending(&apps[at % 2], pay())).collect();
    let all_wait = async || replicas[0].stats().waiting == 3 && replicas[1].stats().waiting == 3;
    eventually("all wait", all_wait).await;
    for _ in 0..4 {
        assert_eq!(runs.begun() - runs.ended(), 1, "one at a time");
        runs.open();
        if runs.begun() < 4 {
            runs.arrival().await;
        }
    }
    assert_eq!(first.await.unwrap().text(), "run 1");
    let mut texts = Vec::new();
    for answer in waiting {
        texts.push(answer.await.unwrap().text().to_owned());
    }
    texts.sort();
    assert_eq!(
        texts,
        ["run 2", "run 3", "run 4", "run 4", "run 4", "run 4"]
    );
    assert_eq!(runs.begun(), 4);
}
