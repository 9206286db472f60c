//! Equal safe requests at once.

use std::time::Duration;

use axum::{Router, handler::Handler, routing::any};
use http::{Request, StatusCode};
use tower_distributed_lock::{Locks, SingleFlightLayer, Stats, key as of_request};

use crate::{
    subject::{A_WHILE, Subject},
    support::{
        PATIENCE, eventually,
        words::{Words, key},
    },
    web::{Answer, Runs, send, sending},
};

fn layer(locks: &Locks) -> SingleFlightLayer {
    SingleFlightLayer::new(locks.clone(), of_request::name("report").path()).wait(PATIENCE)
}

fn app<H: Handler<T, ()>, T: 'static>(layer: SingleFlightLayer, handler: H) -> Router {
    Router::new()
        .route("/{*path}", any(handler))
        .route_layer(layer)
}

fn report() -> http::request::Builder {
    Request::get("/reports/7")
}

async fn wait_in_line(locks: &Locks, waiting: usize) {
    eventually("all wait", async || locks.stats().waiting == waiting).await;
}

fn assert_all(answers: &[Answer], status: u16, text: &str) {
    for answer in answers {
        assert_eq!((answer.status.as_u16(), answer.text()), (status, text));
    }
}

/// Sends one request, and ten equal ones to two replicas while the first runs; then lets the first go on.
async fn a_flight(
    subject: &impl Subject,
    runs: &Runs,
    status: u16,
) -> (Answer, Vec<Answer>, [Router; 2]) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), runs.answering(status)));
    let first = sending(&apps[0], report());
    runs.arrival().await;
    let others: Vec<_> = (0..10).map(|at| sending(&apps[at % 2], report())).collect();
    wait_in_line(&replicas[0], 5).await;
    // The requests of the other replica have found the key held, and are queued.
    let key = key("flight,0,GET,report,path=/reports/7");
    eventually("the other replica is queued", async || {
        subject.store().see(&key).await.queue.len() == 1
    })
    .await;
    wait_in_line(&replicas[1], 5).await;
    runs.open();
    let mut answers = Vec::new();
    for other in others {
        answers.push(other.await.unwrap());
    }
    (first.await.unwrap(), answers, apps)
}

pub(crate) async fn equal_requests_at_once_run_once_in_the_whole_fleet(subject: impl Subject) {
    let runs = Runs::gated();
    let (first, others, _) = a_flight(&subject, &runs, 200).await;
    assert_all(&[first], 200, "run 1");
    assert_all(&others, 200, "run 1");
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_later_request_runs_again(subject: impl Subject) {
    let runs = Runs::gated();
    let (_, _, apps) = a_flight(&subject, &runs, 200).await;
    for (at, app) in [&apps[0], &apps[1], &apps[0]].into_iter().enumerate() {
        runs.open();
        assert_eq!(send(app, report()).await.text(), format!("run {}", at + 2));
    }
}

pub(crate) async fn errors_are_shared_with_waiting_requests_and_never_kept(subject: impl Subject) {
    let runs = Runs::gated();
    let (first, others, _) = a_flight(&subject, &runs, 500).await;
    assert_all(&[first], 500, "run 1");
    assert_all(&others, 500, "run 1");
    let locks = subject.replica().build().unwrap();
    let kept = app(layer(&locks).keep_for(10 * PATIENCE), runs.answering(500));
    for run in ["run 2", "run 3"] {
        runs.open();
        assert_eq!(send(&kept, report()).await.text(), run);
    }
}

pub(crate) async fn an_answer_that_is_kept_serves_later_requests(subject: impl Subject) {
    let runs = Runs::free();
    let apps = [(); 2].map(|()| {
        let locks = subject.replica().build().unwrap();
        app(layer(&locks).keep_for(2 * A_WHILE), runs.handler())
    });
    for app in [&apps[0], &apps[0], &apps[1]] {
        assert_eq!(send(app, report()).await.text(), "run 1");
    }
    tokio::time::sleep(3 * A_WHILE).await;
    assert_eq!(send(&apps[1], report()).await.text(), "run 2");
}

pub(crate) async fn other_keys_and_methods_are_other_flights(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let requests = [
        report(),
        report().method("HEAD"),
        report().uri("/reports/8"),
        // Not safe, and none of this layer's business.
        report().method("POST"),
        report().method("POST"),
    ];
    let sent = requests.map(|request| sending(&app, request));
    for _ in &sent {
        runs.arrival().await;
    }
    for _ in &sent {
        runs.open();
    }
    for answer in sent {
        assert_eq!(answer.await.unwrap().status, StatusCode::CREATED);
    }
}

pub(crate) async fn waiting_requests_get_the_answer_although_the_first_client_goes_away(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let leaving = sending(&app, report());
    runs.arrival().await;
    let other = sending(&app, report());
    wait_in_line(&locks, 1).await;
    leaving.abort();
    runs.open();
    assert_eq!(other.await.unwrap().text(), "run 1");
    eventually("nothing is under way", async || {
        locks.stats() == Stats::default()
    })
    .await;
}

pub(crate) async fn an_answer_that_cannot_be_shared_lets_the_others_run(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let large = app(layer(&locks).max_response(3), runs.handler());
    let clumsy = {
        let runs = runs.clone();
        async move || {
            assert!(runs.run().await % 2 == 0, "this panic is part of the test");
        }
    };
    let clumsy = app(layer(&locks), clumsy);
    for (app, path) in [(large, "/large"), (clumsy, "/clumsy")] {
        let first = sending(&app, report().uri(path));
        runs.arrival().await;
        let other = sending(&app, report().uri(path));
        wait_in_line(&locks, 1).await;
        runs.open();
        runs.arrival().await;
        runs.open();
        assert!(other.await.unwrap().status.is_success(), "{path}");
        let first = first.await;
        assert_eq!(first.is_err(), path == "/clumsy");
        runs_to(&runs, 2 + 2 * u64::from(path == "/clumsy")).await;
    }
}

pub(crate) async fn an_answer_to_one_clients_headers_is_not_shared(subject: impl Subject) {
    for status in [206, 304, 412, 416] {
        let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
        let app = app(layer(&locks), runs.answering(status));
        let path = format!("/{status}");
        let first = sending(&app, report().uri(&path));
        runs.arrival().await;
        let other = sending(&app, report().uri(&path));
        wait_in_line(&locks, 1).await;
        runs.open();
        assert_eq!(first.await.unwrap().status, status);
        runs.arrival().await;
        runs.open();
        assert_eq!(other.await.unwrap().status, status);
        runs_to(&runs, 2).await;
    }
}

async fn runs_to(runs: &Runs, count: u64) {
    eventually("the handlers have run", async || runs.begun() == count).await;
}

pub(crate) async fn without_its_store_a_request_runs_by_itself(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks).wait(Duration::from_secs(1)), runs.handler());
    subject.cut_off(true);
    assert_eq!(send(&app, report()).await.text(), "run 1");
    subject.cut_off(false);
}

pub(crate) async fn a_request_that_waits_too_long_runs_by_itself(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks).wait(A_WHILE), runs.handler());
    let first = sending(&app, report());
    runs.arrival().await;
    let other = sending(&app, report());
    runs.arrival().await;
    runs.open();
    runs.open();
    for answer in [first, other] {
        assert_eq!(answer.await.unwrap().status, StatusCode::CREATED);
    }
}
