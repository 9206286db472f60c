//! Outcomes whose reason decides, not their status.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router, body::Body, middleware::map_response, routing::post};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_distributed_lock::{
    DistributedLockLayer, Error, Locks,
    idempotency::{Answered, Keep},
    key,
    rejection::{Reason, Rejection, RejectionLayer},
    store::MemoryStore,
};

use crate::{
    subject::Subject,
    support::{eventually, words::Words},
    web::{Runs, app, layer, lock_key, pay, pay_as, send, sending},
};

const ACCOUNT: &str = "account,id=7";

/// A route for account 7 with an idempotency layer around its lock.
fn account(once: &Locks, lock: DistributedLockLayer, runs: &Runs) -> Router {
    Router::new()
        .route("/pay", post(runs.handler()))
        .route_layer(lock)
        .route_layer(layer(once))
}

fn lock(locks: &Locks) -> DistributedLockLayer {
    DistributedLockLayer::new(locks.clone(), key::name("account").value("id", 7))
}

pub(crate) async fn a_refusal_is_never_kept_even_with_status_200(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    // GraphQL and gRPC answer everything with 200.
    let fine = |_: &_| Response::new(Bytes::from_static(b"{\"errors\": []}"));
    let app = account(
        &locks,
        lock(&locks).reject_if_held().on_rejection(fine),
        &runs,
    );
    let held = locks.lock(ACCOUNT).await.unwrap();
    let refused = send(&app, pay()).await;
    assert_eq!(
        (refused.status, refused.text()),
        (StatusCode::OK, "{\"errors\": []}")
    );
    held.release().await.unwrap();
    assert_eq!(send(&app, pay()).await.text(), "run 1");
    assert!(send(&app, pay()).await.is_replayed());
}

pub(crate) async fn a_lock_lost_inside_is_a_tombstone(subject: impl Subject) {
    let (once, runs) = (subject.replica().build().unwrap(), Runs::gated());
    // The lock's turn is lost soon; the claim is not.
    let short = subject.replica().max_hold(Duration::from_millis(500));
    let app = account(&once, lock(&short.build().unwrap()), &runs);
    let first = sending(&app, pay());
    runs.arrival().await;
    first.await.unwrap().assert_refused(409, "lease-lost");
    let again = send(&app, pay()).await;
    again.assert_refused(409, "outcome-unknown");
    assert_eq!(again.problem()["idempotency_key"], "k");
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn no_extension_overrules_the_refusal_of_a_layer(subject: impl Subject) {
    let (once, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let short = subject.replica().max_hold(Duration::from_millis(500));
    let short = short.build().unwrap();
    // A layer between the two says the same of all answers.
    let marked = |keep: Keep, lock| {
        Router::new()
            .route("/pay", post(runs.handler()))
            .route_layer(lock)
            .route_layer(map_response(move |mut response: Response<Body>| {
                response.extensions_mut().insert(keep);
                std::future::ready(response)
            }))
            .route_layer(layer(&once))
    };

    // The handler of a lost lease may have paid.
    let app = marked(Keep::No, lock(&short));
    let first = sending(&app, pay_as("acme"));
    runs.arrival().await;
    first.await.unwrap().assert_refused(409, "lease-lost");
    send(&app, pay_as("acme"))
        .await
        .assert_refused(409, "outcome-unknown");

    // The handler of a request that was refused has not begun.
    let app = marked(Keep::Yes, lock(&once).reject_if_held());
    let held = once.lock(ACCOUNT).await.unwrap();
    send(&app, pay_as("other"))
        .await
        .assert_refused(423, "held");
    held.release().await.unwrap();
    runs.open();
    assert_eq!(send(&app, pay_as("other")).await.text(), "run 2");
}

pub(crate) async fn a_lock_lost_before_the_handler_begins_frees_the_key(subject: impl Subject) {
    let (once, runs) = (subject.replica().build().unwrap(), Runs::free());
    let short = subject.replica().max_hold(Duration::from_millis(100));
    let short = short.build().unwrap();
    let ready = Arc::new(Semaphore::new(0));
    let late = layer(&once).layer(lock(&short).layer(Late(ready.clone())));
    let request = pay().body(Body::from("five")).unwrap();
    let refused = late.oneshot(request).await.unwrap();
    assert_eq!(refused.status(), StatusCode::LOCKED);
    assert!(refused.headers().contains_key("retry-after"));
    let app = app(layer(&once), runs.handler());
    assert_eq!(send(&app, pay()).await.text(), "run 1");
}

pub(crate) async fn an_error_that_is_rendered_as_a_success_is_not_run_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let fine = || {
        RejectionLayer::new(
            |_| (),
            |_: &Rejection, ()| Response::new(Body::from("{\"errors\": []}")),
        )
    };
    let misconfigured = {
        let runs = runs.clone();
        async move || -> Result<(), Error> {
            runs.run().await;
            let builder = Locks::builder(MemoryStore::new());
            builder.lease(Duration::ZERO).build().map(drop)
        }
    };
    let full = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            let error = Locks::in_memory().try_lock("").await.unwrap_err();
            (Extension(Keep::Tombstone), error)
        }
    };
    let apps = [
        // The handler may have acted before an error that is a 500.
        Router::new().route("/pay", post(misconfigured)),
        // The handler says that it has acted.
        Router::new().route("/pay", post(full)),
    ];
    for (tenant, app) in ["acme", "other"].into_iter().zip(apps) {
        let app = app.route_layer(fine()).route_layer(layer(&locks));
        let first = send(&app, pay_as(tenant)).await;
        assert_eq!(first.text(), "{\"errors\": []}", "{tenant}");
        send(&app, pay_as(tenant))
            .await
            .assert_refused(409, "outcome-unknown");
    }
    assert_eq!(runs.begun(), 2);
}

pub(crate) async fn an_error_of_the_locks_that_a_handler_returns_is_its_answer(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = {
        let runs = runs.clone();
        async move || -> Result<String, Error> {
            let run = runs.run().await;
            // An error that is a 500.
            Locks::builder(MemoryStore::new())
                .lease(Duration::ZERO)
                .build()?;
            Ok(format!("run {run}"))
        }
    };
    let app = app(layer(&locks), handler);
    for replayed in [false, true] {
        let answer = send(&app, pay()).await;
        answer.assert_refused(500, "misconfigured");
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_panic_after_the_answer_is_a_tombstone(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let streaming = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            Body::new(Panicking)
        }
    };
    let keep = |_: &Answered<'_>| -> Keep { panic!("this panic is part of the test") };
    let paying_and_panicking = {
        let runs = runs.clone();
        async move || -> &str {
            runs.run().await;
            panic!("this panic is part of the test")
        }
    };
    let render = |rejection: &Rejection| match rejection.reason() {
        Reason::Panicked => panic!("this panic is part of the test"),
        _ => rejection.to_response(),
    };
    let apps = [
        app(layer(&locks), streaming),
        app(layer(&locks).keep(keep), runs.handler()),
        app(layer(&locks).on_rejection(render), paying_and_panicking),
    ];
    for (tenant, app) in ["acme", "other", "third"].into_iter().zip(apps) {
        let first = sending(&app, pay_as(tenant));
        assert!(first.await.unwrap_err().is_panic());
        send(&app, pay_as(tenant))
            .await
            .assert_refused(409, "outcome-unknown");
    }
    assert_eq!(runs.begun(), 3);
}

/// A body that panics when it is read.
struct Panicking;

impl http_body::Body for Panicking {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        panic!("this panic is part of the test")
    }
}

pub(crate) async fn an_error_of_the_inner_service_is_a_tombstone(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let failing = {
        let runs = runs.clone();
        service_fn(move |_: Request<Body>| {
            let runs = runs.clone();
            async move {
                runs.run().await;
                Err::<Response<Body>, _>(io::Error::other("no answer"))
            }
        })
    };
    let service = layer(&locks).layer(failing);
    let request = || pay().body(Body::from("five")).unwrap();
    assert!(service.clone().oneshot(request()).await.is_err());
    let again = service.oneshot(request()).await.unwrap();
    assert_eq!(again.status(), StatusCode::CONFLICT);
    assert_eq!(runs.begun(), 1);
    let app = app(layer(&locks), runs.handler());
    send(&app, pay())
        .await
        .assert_refused(409, "outcome-unknown");
}

/// Never becomes ready.
#[derive(Clone)]
struct Broken;

impl Service<Request<Body>> for Broken {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = std::future::Pending<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Err(io::Error::other("not ready")))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        unreachable!("it was never ready")
    }
}

pub(crate) async fn an_inner_service_that_does_not_become_ready_frees_the_key(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let broken = layer(&locks).layer(Broken);
    let request = pay().body(Body::from("five")).unwrap();
    assert!(broken.oneshot(request).await.is_err());
    let app = app(layer(&locks), runs.handler());
    assert_eq!(send(&app, pay()).await.text(), "run 1");
}

/// Becomes ready when the test says so.
#[derive(Clone)]
struct Late(Arc<Semaphore>);

impl Service<Request<Body>> for Late {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = std::future::Ready<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        let acquiring = std::pin::pin!(self.0.acquire());
        match acquiring.poll(cx) {
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => {
                // The future above is dropped, and wakes no task: poll again soon.
                let waker = cx.waker().clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    waker.wake();
                });
                Poll::Pending
            }
        }
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        panic!("the claim was lost: nothing must begin");
    }
}

pub(crate) async fn a_claim_that_is_lost_before_the_beginning_is_not_begun(subject: impl Subject) {
    let short = subject.replica().max_hold(Duration::from_millis(100));
    let (locks, runs) = (short.build().unwrap(), Runs::free());
    let ready = Arc::new(Semaphore::new(0));
    let late = layer(&locks).layer(Late(ready.clone()));
    let request = pay_as("acme").body(Body::from("five")).unwrap();
    let first = tokio::spawn(late.oneshot(request));
    eventually("the key is claimed", async || {
        subject.store().holder(&lock_key()).await.is_some()
    })
    .await;
    eventually("the claim is lost", async || locks.stats().leases == 0).await;
    ready.add_permits(1);
    let refused = first.await.unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert!(refused.headers().contains_key("retry-after"));
    let app = app(layer(&locks), runs.handler());
    eventually("it runs", async || {
        send(&app, pay()).await.text() == "run 1"
    })
    .await;
}
