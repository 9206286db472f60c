//! Equal safe requests at once.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use axum::{
    Router,
    extract::Request as AxumRequest,
    handler::Handler,
    middleware::{Next, from_fn},
    routing::any,
};
use http::{Request, Response, StatusCode};
use tower_distributed_lock::{
    DistributedLockLayer, Locks, SingleFlightLayer, Stats, key as of_request,
    rejection::{Rejection, RejectionLayer},
};

use super::bodies::with_trailers;
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

/// The number of requests that were polled at least once, and so take part in a flight.
#[derive(Clone, Default)]
struct Joined(Arc<AtomicUsize>);

impl Joined {
    /// Counts the requests of an app.
    fn count(&self, app: Router) -> Router {
        let count = self.0.clone();
        app.layer(from_fn(move |request: AxumRequest, next: Next| {
            let count = count.clone();
            async move {
                let mut answering = pin!(next.run(request));
                let first = poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await;
                count.fetch_add(1, Ordering::SeqCst);
                match first {
                    Poll::Ready(response) => response,
                    Poll::Pending => answering.await,
                }
            }
        }))
    }

    /// Waits for so many requests.
    async fn reach(&self, requests: usize) {
        eventually("all take part", async || {
            self.0.load(Ordering::SeqCst) == requests
        })
        .await;
    }
}

fn assert_all(answers: &[Answer], status: u16, text: &str) {
    for answer in answers {
        assert_eq!((answer.status.as_u16(), answer.text()), (status, text));
    }
}

/// Sends one request, and ten equal ones to two replicas while the first runs; then lets the first
/// go on.
async fn a_flight(
    subject: &impl Subject,
    runs: &Runs,
    status: u16,
) -> (Answer, Vec<Answer>, [Router; 2]) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let joined = Joined::default();
    let apps = replicas
        .each_ref()
        .map(|locks| joined.count(app(layer(locks), runs.answering(status))));
    let first = sending(&apps[0], report());
    runs.arrival().await;
    let others: Vec<_> = (0..10).map(|at| sending(&apps[at % 2], report())).collect();
    joined.reach(11).await;
    is_queued(subject).await;
    // One request waits for the other replica, and the first runs for its own.
    assert_eq!(replicas.map(|locks| locks.stats().waiting), [0, 1]);
    runs.open();
    let mut answers = Vec::new();
    for other in others {
        answers.push(other.await.unwrap());
    }
    (first.await.unwrap(), answers, apps)
}

/// Waits until a replica has found the key of the report held, and is queued.
async fn is_queued(subject: &impl Subject) {
    let key = key("flight,0,GET,report,path=/reports/7");
    eventually("the other replica is queued", async || {
        subject.store().see(&key).await.queue.len() == 1
    })
    .await;
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
    let joined = Joined::default();
    let app = joined.count(app(layer(&locks), runs.handler()));
    let leaving = sending(&app, report());
    runs.arrival().await;
    let other = sending(&app, report());
    joined.reach(2).await;
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
        let joined = Joined::default();
        let app = joined.count(app);
        let first = sending(&app, report().uri(path));
        runs.arrival().await;
        let other = sending(&app, report().uri(path));
        joined.reach(2).await;
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
        let joined = Joined::default();
        let app = joined.count(app(layer(&locks), runs.answering(status)));
        let path = format!("/{status}");
        let first = sending(&app, report().uri(&path));
        runs.arrival().await;
        let other = sending(&app, report().uri(&path));
        joined.reach(2).await;
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

/// Far more requests than a line has room for.
pub(crate) async fn a_stampede_runs_once(subject: impl Subject) {
    const REQUESTS: usize = 3_000;
    let (runs, joined) = (Runs::gated(), Joined::default());
    let apps = [(); 2].map(|()| {
        let locks = subject.replica().build().unwrap();
        joined.count(app(layer(&locks), runs.handler()))
    });
    let mut answers = vec![sending(&apps[0], report())];
    runs.arrival().await;
    answers.push(sending(&apps[1], report()));
    is_queued(&subject).await;
    answers.extend((2..REQUESTS).map(|at| sending(&apps[at % 2], report())));
    joined.reach(REQUESTS).await;
    runs.open();
    for answer in answers {
        assert_eq!(answer.await.unwrap().text(), "run 1");
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn many_flights_in_a_row_run_once_each(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    for flight in 1..=12 {
        let joined = Joined::default();
        let app = joined.count(app(layer(&locks), runs.handler()));
        let answers = [(); 3].map(|()| sending(&app, report()));
        joined.reach(3).await;
        runs.open();
        for answer in answers {
            assert_eq!(answer.await.unwrap().text(), format!("run {flight}"));
        }
    }
    assert_eq!(runs.begun(), 12);
}

pub(crate) async fn the_next_request_waits_in_line_if_the_one_that_did_goes_away(
    subject: impl Subject,
) {
    let (runs, joined) = (Runs::gated(), Joined::default());
    let apps = [(); 2].map(|()| {
        let locks = subject.replica().build().unwrap();
        joined.count(app(layer(&locks), runs.handler()))
    });
    let first = sending(&apps[0], report());
    runs.arrival().await;
    let waiting = sending(&apps[1], report());
    is_queued(&subject).await;
    let others = [(); 3].map(|()| sending(&apps[1], report()));
    joined.reach(5).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    runs.open();
    for answer in others.into_iter().chain([first]) {
        assert_eq!(answer.await.unwrap().text(), "run 1");
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn an_answer_that_is_marked_as_private_is_not_shared(subject: impl Subject) {
    for (name, value, is_shared) in [
        ("cache-control", "private", false),
        ("cache-control", "max-age=0, No-Store", false),
        ("cache-control", "private=\"set-cookie\"", false),
        ("vary", "accept, *", false),
        ("cache-control", "public, max-age=60", true),
        ("vary", "accept", true),
    ] {
        for share_all in [false, true] {
            let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
            let handler = {
                let runs = runs.clone();
                async move || ([(name, value)], format!("run {}", runs.run().await))
            };
            let layer = match share_all {
                true => layer(&locks).share_uncacheable(),
                false => layer(&locks),
            };
            let joined = Joined::default();
            let app = joined.count(app(layer, handler));
            let path = format!("/{name}/{}/{share_all}", value.len());
            let [first, other] = [(); 2].map(|()| sending(&app, report().uri(&path)));
            joined.reach(2).await;
            runs.arrival().await;
            runs.open();
            runs.open();
            let (first, other) = (first.await.unwrap(), other.await.unwrap());
            let is_copy = first.text() == other.text();
            assert_eq!(is_copy, is_shared || share_all, "{name}: {value}");
            assert_eq!(runs.begun(), 2 - u64::from(is_copy), "{name}: {value}");
        }
    }
}

pub(crate) async fn the_copy_of_a_refusal_is_rendered_as_a_refusal(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let held = replicas[0].lock("account").await.unwrap();
    let joined = Joined::default();
    let apps = replicas.each_ref().map(|locks| {
        let account = of_request::name("account");
        let lock = DistributedLockLayer::new(locks.clone(), account).all_methods();
        let app = Router::new()
            .route("/{*path}", any(async || "not refused"))
            .route_layer(lock.wait(A_WHILE))
            .route_layer(layer(locks));
        let rendered = RejectionLayer::new(
            |_| (),
            |rejection: &Rejection, (): &()| {
                let text = format!("in our words: {}", rejection.reason().code());
                let mut response = Response::new(text);
                *response.status_mut() = StatusCode::IM_A_TEAPOT;
                response
            },
        );
        joined.count(app.layer(rendered))
    });
    let answers: Vec<_> = (0..6).map(|at| sending(&apps[at % 2], report())).collect();
    joined.reach(6).await;
    for answer in answers {
        assert_all(&[answer.await.unwrap()], 418, "in our words: held");
    }
    drop(held);
}

/// Over HTTP/1, a server sends only the trailers that the header `Trailer` names.
pub(crate) async fn copies_have_the_trailers_of_the_answer(subject: impl Subject) {
    let (runs, joined) = (Runs::gated(), Joined::default());
    let apps = [(); 2].map(|()| {
        let (locks, runs) = (subject.replica().build().unwrap(), runs.clone());
        let handler = async move || {
            runs.run().await;
            ([("trailer", "grpc-status")], with_trailers("body", 0))
        };
        joined.count(app(layer(&locks), handler))
    });
    let first = sending(&apps[0], report());
    runs.arrival().await;
    let copies = apps.each_ref().map(|app| sending(app, report()));
    joined.reach(3).await;
    is_queued(&subject).await;
    runs.open();
    for answer in copies.into_iter().chain([first]) {
        let answer = answer.await.unwrap();
        assert_eq!(answer.text(), "body");
        assert_eq!(answer.header("trailer"), Some("grpc-status"));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
    }
    assert_eq!(runs.begun(), 1);
}
