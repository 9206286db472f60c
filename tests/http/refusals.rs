//! Every refusal: status, problem document, typed form, and rendering by the application.

use std::{collections::HashSet, time::Duration};

use axum::{
    Router,
    body::Body,
    middleware::map_response,
    response::Response,
    routing::{get, post},
};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, Locks, key,
    rejection::{Reason, Rejection, RejectionLayer},
    store::{Fault, FaultyStore},
};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Answer, Server, account, eventually, lock, within},
};

fn app(lock: DistributedLockLayer) -> Router {
    Router::new().route("/accounts/{id}", post(|| async {}).route_layer(lock))
}

/// Asserts the properties that every refusal has.
fn assert_problem(answer: &Answer, status: u16, reason: &str, retryable: bool) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let problem = answer.json();
    assert_eq!(answer.reason(), reason);
    assert!(problem["type"].as_str().unwrap().starts_with("https://"));
    assert_eq!(problem["status"], status);
    assert_eq!(problem["retryable"], retryable);
    for text in ["title", "detail"] {
        assert!(!problem[text].as_str().unwrap().is_empty());
    }
    let instance = problem["instance"].as_str().unwrap();
    uuid::Uuid::parse_str(instance.strip_prefix("urn:uuid:").unwrap()).unwrap();
    assert_eq!(problem.as_object().unwrap().len(), 6);
    assert_eq!(answer.header("retry-after").is_some(), retryable);
}

#[tokio::test]
async fn a_request_gets_423_after_its_wait_limit() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let lock = lock(&locks).wait(Duration::from_millis(20));
    let server = Server::start(app(lock.clone())).await;
    let answer = server.post("/accounts/7").await;
    assert_problem(&answer, 423, "held", true);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(locks.stats().waiting, 0);

    // Retry-After is in whole seconds, rounded up.
    let server = Server::start(app(lock.retry_after(Duration::from_millis(1500)))).await;
    assert_eq!(
        server.post("/accounts/7").await.header("retry-after"),
        Some("2")
    );
}

#[tokio::test]
async fn a_request_that_does_not_wait_gets_423_at_once() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let server = Server::start(app(lock(&locks).reject_if_held())).await;
    assert_problem(&server.post("/accounts/7").await, 423, "held", true);
}

#[tokio::test]
async fn a_request_beyond_the_longest_line_gets_503() {
    let builder = Locks::builder(FaultyStore::new()).longest_line(1);
    let (locks, gate) = (builder.build().unwrap(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock(&locks)));
    let server = Server::start(app).await;
    let inside = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    let waiting = tokio::spawn(server.post("/accounts/7"));
    eventually("one waits", || locks.stats().waiting == 1).await;

    assert_problem(&server.post("/accounts/7").await, 503, "line-full", true);
    gate.open();
    gate.open();
    for served in [inside, waiting] {
        assert_eq!(
            within("those before", served).await.unwrap().status,
            StatusCode::OK
        );
    }
}

#[tokio::test]
async fn a_request_for_one_key_too_many_gets_503() {
    let builder = Locks::builder(FaultyStore::new()).max_keys(1);
    let locks = builder.build().unwrap();
    let other = locks.lock("another key").await.unwrap();
    let server = Server::start(app(lock(&locks))).await;
    assert_problem(
        &server.post("/accounts/7").await,
        503,
        "too-many-keys",
        true,
    );
    drop(other);
    assert_eq!(server.post("/accounts/7").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_store_out_of_reach_is_503_unless_the_layer_fails_open() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let server = Server::start(app(lock(&locks))).await;
    assert_problem(
        &server.post("/accounts/7").await,
        503,
        "store-unreachable",
        true,
    );

    let says = |guard: Option<LockGuard>| async move { format!("{}", guard.is_some()) };
    let open = Router::new()
        .route("/accounts/{id}", post(says))
        .route_layer(lock(&locks).fail_open());
    let server = Server::start(open).await;
    let answer = server.post("/accounts/7").await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, "false"));
    store.set_fault(None);
    // The layer remembers for a moment that the store was out of reach.
    let locked_again = async {
        while server.post("/accounts/7").await.text() != "true" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("requests are locked again", locked_again).await;
}

#[tokio::test]
async fn failing_open_does_not_delay_each_request_by_the_whole_wait_limit() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    store.set_fault(Some(Fault::Hang));
    let wait = Duration::from_millis(500);
    let server = Server::start(app(lock(&locks).wait(wait).fail_open())).await;
    let began = Instant::now();
    for id in 0..20 {
        // Each account has a new line, which has not asked the store yet.
        let answer = server.post(&format!("/accounts/{id}")).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    // Only the first request, and one in each second after that, asks the store.
    assert!(began.elapsed() < 10 * wait, "{:?}", began.elapsed());
    store.set_fault(None);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_not_over_with_a_refusal_that_the_store_has_not_made() {
    let store = FaultyStore::new();
    let builder = Locks::builder(store.clone()).max_keys(1);
    let locks = builder.build().unwrap();
    let app = app(lock(&locks).fail_open());
    let post = async || {
        let request = Request::post("/accounts/7").body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(post().await, StatusCode::OK);
    store.set_fault(None);
    let _other = locks.lock("another").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // One request asks, and there is no room for its key. The others still pass.
    assert_eq!(post().await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post().await, StatusCode::OK);
}

#[tokio::test]
async fn failing_open_does_not_let_requests_for_held_keys_pass() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let server = Server::start(app(lock(&locks).fail_open().reject_if_held())).await;
    assert_problem(&server.post("/accounts/7").await, 423, "held", true);
}

#[tokio::test]
async fn a_request_to_closed_locks_gets_503() {
    let locks = Locks::in_memory();
    locks.close(Duration::ZERO).await;
    let server = Server::start(app(lock(&locks).fail_open())).await;
    assert_problem(&server.post("/accounts/7").await, 503, "closed", true);
}

#[tokio::test]
async fn a_request_without_a_key_gets_400_and_the_handler_does_not_run() {
    let key = account().header("x-tenant-id");
    let lock = DistributedLockLayer::new(Locks::in_memory(), key);
    let handler = post(async || -> () { panic!("must not run") });
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let server = Server::start(app).await;
    let answer = server.post("/accounts/7").await;
    assert_problem(&answer, 400, "bad-key", false);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("x-tenant-id")
    );

    let mut client = server.connect().await;
    let twice = Request::post("/accounts/7")
        .header("x-tenant-id", "a")
        .header("x-tenant-id", "b");
    let answer = client
        .whole(twice.body(Full::default()).unwrap())
        .await
        .unwrap();
    assert_problem(&answer, 400, "bad-key", false);
}

#[tokio::test]
async fn a_layer_on_a_route_without_its_parameter_is_500_and_the_error_names_the_fix() {
    let no_param = Router::new()
        .route("/about", post(|| async {}))
        .route_layer(lock(&Locks::in_memory()));
    let answer = Server::start(no_param).await.post("/about").await;
    assert_problem(&answer, 500, "misconfigured", false);
    if cfg!(debug_assertions) {
        assert!(
            answer.json()["detail"]
                .as_str()
                .unwrap()
                .contains("`id` is not in the route")
        );
    }
}

#[tokio::test]
async fn an_extractor_without_a_layer_is_500_and_the_error_names_the_layer_to_add() {
    let app = Router::new()
        .route("/plain", post(async |_: LockGuard| {}))
        .route("/optional", post(async |_: Option<LockGuard>| {}));
    let server = Server::start(app).await;
    for path in ["/plain", "/optional"] {
        let answer = server.post(path).await;
        assert_problem(&answer, 500, "misconfigured", false);
        if cfg!(debug_assertions) {
            let problem = answer.json();
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.contains(".route_layer(DistributedLockLayer::new(..))"),
                "{detail}"
            );
        }
    }
}

#[tokio::test]
async fn no_two_refusals_have_the_same_instance() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let server = Server::start(app(lock(&locks).reject_if_held())).await;
    let mut seen = HashSet::new();
    for _ in 0..20 {
        let problem = server.post("/accounts/7").await.json();
        assert!(seen.insert(problem["instance"].as_str().unwrap().to_owned()));
    }
}

#[tokio::test]
async fn the_response_has_the_typed_rejection_in_its_extensions() {
    async fn tell(mut response: Response) -> Response {
        let rejection = response.extensions().get::<Rejection>().unwrap();
        assert_eq!(rejection.reason(), Reason::Held);
        assert_eq!(rejection.retry_after(), Some(Duration::from_secs(1)));
        let instance = rejection.instance().to_string().parse().unwrap();
        response.headers_mut().insert("x-instance", instance);
        response
    }
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let lock = lock(&locks).reject_if_held();
    let own = RejectionLayer::new(|_| (), |_, (): &()| http::Response::new(""));
    for app in [app(lock.clone()), app(lock).layer(own)] {
        let server = Server::start(app.layer(map_response(tell))).await;
        let answer = server.post("/accounts/7").await;
        assert!(answer.header("x-instance").is_some());
    }
}

#[tokio::test]
async fn safe_methods_are_not_locked_unless_asked_for() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let status = async |lock: DistributedLockLayer, method: &str| {
        let app = Router::new().route("/accounts/{id}", get(|| async {}).post(|| async {}));
        let server = Server::start(app.route_layer(lock.reject_if_held())).await;
        let method = method.parse().unwrap();
        server.send(method, "/accounts/7").await.status.as_u16()
    };
    let lock = || DistributedLockLayer::new(locks.clone(), key::name("account").param("id"));
    assert_eq!(status(lock(), "GET").await, 200);
    assert_eq!(status(lock(), "POST").await, 423);
    assert_eq!(status(lock().all_methods(), "GET").await, 423);
    assert_eq!(
        status(lock().methods([http::Method::GET]), "GET").await,
        423
    );
    assert_eq!(
        status(lock().methods([http::Method::GET]), "POST").await,
        200
    );
}
