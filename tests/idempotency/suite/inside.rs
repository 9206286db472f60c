//! The handler's view, shutting down, and other layers on the same route.

use std::time::Duration;

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::post,
};
use http::StatusCode;
use tokio::time::sleep;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockGuard, idempotency::Claim, key, lock::AllGuards,
};

use crate::{
    subject::{A_WHILE, Subject},
    support::{PATIENCE, eventually, words::Words},
    web::{KEY, Runs, app, layer, lock_key, pay, pay_as, send, sending},
};

pub(crate) async fn a_handler_can_extract_the_key_and_the_guard_by_its_name(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let handler = async |claim: Claim, guards: AllGuards| {
        let guard = guards.named("idempotency").unwrap();
        assert!(guard.is_held());
        assert_eq!(guard.key().as_str(), KEY);
        assert!(guards.all().is_empty());
        assert_eq!(claim.token(), guard.token());
        format!("{} {}", claim.key(), guard.token())
    };
    let app = app(layer(&locks), handler);
    let answer = send(&app, pay()).await;
    let token = subject.store().see(&lock_key()).await.fence;
    assert_eq!(answer.text(), format!("k {token}"));
}

pub(crate) async fn an_optional_key_is_none_for_a_request_without_a_key(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let optional = async |name: Option<Claim>, guards: AllGuards| {
        assert_eq!(name.is_some(), guards.named("idempotency").is_ok());
        format!("{name:?}")
    };
    let without = || http::Request::post("/pay").header("x-tenant-id", "acme");
    let lax = app(layer(&locks), optional);
    assert_eq!(send(&lax, without()).await.text(), "None");
    let needy = app(layer(&locks), async |_: Claim| {});
    send(&needy, without())
        .await
        .assert_refused(500, "misconfigured");
}

pub(crate) async fn closing_waits_for_handlers_whose_clients_have_gone(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let leaving = sending(&app, pay());
    runs.arrival().await;
    leaving.abort();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(PATIENCE).await }
    });
    sleep(A_WHILE).await;
    assert!(!closing.is_finished());
    runs.open();
    closing.await.unwrap();
    assert_eq!(runs.ended(), 1);
    assert!(subject.store().see(&lock_key()).await.record.is_some());
}

pub(crate) async fn closing_turns_duplicates_away_and_the_answer_is_kept(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    let duplicate = sending(&app, pay());
    eventually("it waits", async || locks.stats().waiting == 1).await;
    // No grace at all: the lease is lost, and the handler ends all the same.
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(Duration::ZERO).await }
    });
    duplicate.await.unwrap().assert_refused(503, "closed");
    send(&app, pay()).await.assert_refused(503, "closed");
    sleep(A_WHILE).await;
    assert!(!closing.is_finished(), "it waits for the handler");
    runs.open();
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", None)
    );
    closing.await.unwrap();
    assert!(subject.store().see(&lock_key()).await.record.is_some());
}

#[derive(Clone)]
struct Tenant(&'static str);

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

pub(crate) async fn authentication_idempotency_and_lock_work_together_in_this_order(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let account = key::name("account")
        .extension::<Tenant>("tenant")
        .param("id");
    let once = IdempotencyLayer::new(locks.clone(), key::request().extension::<Tenant>("tenant"));
    let handler = {
        let runs = runs.clone();
        async move |claim: Claim, guard: LockGuard, guards: AllGuards| {
            let run = runs.run().await;
            assert_eq!(guard.key().as_str(), "account,tenant=acme,id=7");
            assert!(guards.named("idempotency").unwrap().is_held() && guard.is_held());
            format!("{}: run {run}", claim.key())
        }
    };
    let app = Router::new()
        .route("/accounts/{id}", post(handler))
        .route_layer(DistributedLockLayer::new(locks.clone(), account))
        .route_layer(once)
        .route_layer(from_fn(async |mut request: Request, next: Next| {
            if !request.headers().contains_key("authorization") {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            request.extensions_mut().insert(Tenant("acme"));
            next.run(request).await
        }));
    let request = |name: &str| {
        http::Request::post("/accounts/7")
            .header("authorization", "somebody")
            .header("idempotency-key", name)
    };
    let first = sending(&app, request("one"));
    runs.arrival().await;
    // Another request for the same account waits for the lock, a duplicate for the answer.
    let other = sending(&app, request("two"));
    let duplicate = sending(&app, request("one"));
    eventually("both wait", async || locks.stats().waiting == 2).await;
    runs.open();
    assert_eq!(first.await.unwrap().text(), "one: run 1");
    assert_eq!(duplicate.await.unwrap().text(), "one: run 1");
    runs.arrival().await;
    // A replay takes no lock.
    assert!(send(&app, request("one")).await.is_replayed());
    runs.open();
    assert_eq!(other.await.unwrap().text(), "two: run 2");
    let nobody = http::Request::post("/accounts/7").header("idempotency-key", "one");
    assert_eq!(send(&app, nobody).await.status, StatusCode::UNAUTHORIZED);
}

/// The token of the claim would be the wrong fence.
pub(crate) async fn a_lock_that_was_skipped_is_not_replaced_by_the_claim(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let skipped = key::name("account").only_when(|_| false);
    let lock = || DistributedLockLayer::new(locks.clone(), skipped.clone());
    let optional = async |guard: Option<LockGuard>, guards: AllGuards| {
        assert!(guards.named("idempotency").unwrap().is_held());
        assert!(guard.is_none(), "{guard:?}");
    };
    let needy = async |_: LockGuard| {};
    let router = Router::new()
        .route("/optional", post(optional))
        .route("/needy", post(needy))
        .route_layer(lock())
        .route_layer(layer(&locks));
    let answer = send(&router, pay_as("one").uri("/optional")).await;
    assert_eq!(answer.status, StatusCode::OK);
    let answer = send(&router, pay_as("two").uri("/needy")).await;
    answer.assert_refused(500, "misconfigured");
    let none = app(layer(&locks), async |_: LockGuard| {});
    let answer = send(&none, pay_as("three")).await;
    answer.assert_refused(500, "misconfigured");
}

pub(crate) async fn two_nested_layers_act_as_one(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler()).route_layer(layer(&locks));
    for replayed in [false, true] {
        let answer = send(&app, pay()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("run 1", replayed));
    }
}

pub(crate) async fn two_layers_on_two_routes_share_their_keys(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = Router::new()
        .route("/pay", post(runs.handler()).route_layer(layer(&locks)))
        .route("/refund", post(runs.handler()).route_layer(layer(&locks)));
    assert_eq!(send(&app, pay()).await.text(), "run 1");
    send(&app, pay().uri("/refund"))
        .await
        .assert_refused(422, "key-reused");
}
