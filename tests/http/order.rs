//! Requests of one key run one after another, and requests of different keys at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{Router, routing::post};
use http::StatusCode;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_distributed_lock::{LockGuard, Locks, store::FaultyStore};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, PATIENCE, Server, eventually, lock, nothing_left, within},
};

fn bank(locks: &Locks, gate: &Gate) -> Router {
    let handler = |gate: Gate| {
        post(async move |guard: LockGuard| {
            gate.pass().await;
            guard.token().to_string()
        })
    };
    Router::new()
        .route("/accounts/{id}/transfers", handler(gate.clone()))
        .route("/accounts/{id}/deposits", handler(gate.clone()))
        .route_layer(lock(locks))
}

/// Sends both requests at once, and asserts that the second waits for the first.
async fn run_one_after_another(first: &str, second: &str) {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(bank(&locks, &gate)).await;

    let first = tokio::spawn(server.post(first));
    gate.arrival().await;
    let second = tokio::spawn(server.post(second));
    eventually("the second waits", || locks.stats().waiting == 1).await;
    assert_eq!(gate.inside(), 1);

    gate.open();
    let first = within("the first", first).await.unwrap();
    gate.arrival().await;
    assert_eq!((gate.inside(), gate.finished()), (1, 1));
    gate.open();
    let second = within("the second", second).await.unwrap();

    assert_eq!(
        (first.status, second.status),
        (StatusCode::OK, StatusCode::OK)
    );
    let token = |text: &str| text.parse::<u64>().unwrap();
    assert!(token(first.text()) < token(second.text()));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn two_posts_to_one_account_run_one_after_another() {
    run_one_after_another("/accounts/7/transfers", "/accounts/7/transfers").await;
}

#[tokio::test]
async fn posts_to_one_account_over_two_routes_run_one_after_another() {
    run_one_after_another("/accounts/7/transfers", "/accounts/7/deposits").await;
}

#[tokio::test]
async fn posts_to_one_account_in_two_spellings_run_one_after_another() {
    run_one_after_another("/accounts/a:b/transfers", "/accounts/a%3Ab/transfers").await;
}

#[tokio::test]
async fn posts_to_two_accounts_run_at_once() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(bank(&locks, &gate)).await;
    let posts = ["/accounts/7/transfers", "/accounts/8/transfers"];
    let posts = posts.map(|path| tokio::spawn(server.post(path)));
    gate.arrival().await;
    gate.arrival().await;
    assert_eq!(gate.inside(), 2);
    gate.open();
    gate.open();
    for post in posts {
        assert_eq!(within("both", post).await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_two_instances_never_run_at_the_same_time() {
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    async fn alone() {
        assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
        tokio::task::yield_now().await;
        assert_eq!(INSIDE.fetch_sub(1, Ordering::SeqCst), 1);
    }

    let store = FaultyStore::new();
    let mut posts = tokio::task::JoinSet::new();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let locks = Locks::builder(store.clone()).build().unwrap();
        let lock = lock(&locks).wait(PATIENCE);
        let app = Router::new().route("/accounts/{id}", post(alone).route_layer(lock));
        servers.push(Server::start(app).await);
    }
    for at in 0..64 {
        let mut client = servers[at % 2].connect().await;
        posts.spawn(async move {
            for _ in 0..20 {
                assert_eq!(
                    client.post("/accounts/7").await.unwrap().status,
                    StatusCode::OK
                );
            }
        });
    }
    while let Some(post) = posts.join_next().await {
        post.unwrap();
    }
    eventually("the store is empty", || store.is_empty()).await;
}

#[tokio::test]
async fn a_request_that_waits_for_its_key_does_not_hold_an_inner_permit() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    // The layers are stacked without a router, which would put a service in between that is always
    // ready.
    let layers = ServiceBuilder::new()
        .layer(lock(&locks))
        .layer(GlobalConcurrencyLimitLayer::new(1));
    let app = Router::new().route("/accounts/{id}", handler.route_layer(layers));
    let server = Server::start(app).await;

    let waiting = tokio::spawn(server.post("/accounts/7"));
    eventually("account 7 waits", || locks.stats().waiting == 1).await;
    let other = tokio::spawn(server.post("/accounts/8"));
    gate.arrival().await;
    gate.open();
    assert_eq!(
        within("account 8", other).await.unwrap().status,
        StatusCode::OK
    );

    drop(held);
    gate.arrival().await;
    gate.open();
    assert_eq!(
        within("account 7", waiting).await.unwrap().status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_request_without_a_route_does_not_contend() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(bank(&locks, &gate)).await;
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let nowhere = server.post("/accounts/7/nowhere").await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    drop(held);
}

#[tokio::test]
async fn a_method_without_a_handler_contends_only_with_the_routers_route_layer() {
    let locks = Locks::in_memory();
    let lock = lock(&locks).reject_if_held();
    let held = locks.lock(ACCOUNT_7).await.unwrap();

    let on_method = Router::new().route(
        "/accounts/{id}",
        post(|| async {}).route_layer(lock.clone()),
    );
    let server = Server::start(on_method).await;
    let put = server.send(http::Method::PUT, "/accounts/7").await;
    assert_eq!(put.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(server.post("/accounts/7").await.status, StatusCode::LOCKED);

    let on_router = Router::new()
        .route("/accounts/{id}", post(|| async {}))
        .route_layer(lock);
    let server = Server::start(on_router).await;
    let put = server.send(http::Method::PUT, "/accounts/7").await;
    assert_eq!(put.status, StatusCode::LOCKED);
    drop(held);
    let put = server.send(http::Method::PUT, "/accounts/7").await;
    assert_eq!(put.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(put.header("allow"), Some("POST"));
}
