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
use http::{HeaderName, Request, Response, StatusCode};
use http_body::Frame;
use tokio::sync::Semaphore;
use tower::{
    BoxError, Layer, Service, ServiceExt,
    load_shed::{LoadShed, error::Overloaded},
    service_fn,
};
use tower_distributed_lock::{
    DistributedLockLayer, Error, Locks,
    idempotency::{Answered, Keep},
    key,
    rejection::{Rejection, RejectionLayer},
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
    let fine = |_: &Rejection, (): &()| Response::new("{\"errors\": []}");
    let app = Router::new()
        .route("/pay", post(runs.handler()))
        .route_layer(lock(&locks).reject_if_held())
        .route_layer(RejectionLayer::new(|_| (), fine))
        .route_layer(layer(&locks));
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

    // A layer of the program that acts before it passes the request on can say so.
    let app = marked(Keep::Tombstone, lock(&once).reject_if_held());
    let held = once.lock(ACCOUNT).await.unwrap();
    send(&app, pay_as("third"))
        .await
        .assert_refused(423, "held");
    held.release().await.unwrap();
    send(&app, pay_as("third"))
        .await
        .assert_refused(409, "outcome-unknown");
    assert_eq!(runs.begun(), 2);
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
            |_: &Rejection, ()| Response::new("{\"errors\": []}"),
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
            let error = Locks::in_memory().lock("").now().await.unwrap_err();
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

pub(crate) async fn an_error_of_the_locks_after_the_money_has_moved_does_not_free_the_key(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let (closed, _held) = (Locks::in_memory(), locks.lock(ACCOUNT).await.unwrap());
    closed.close(Duration::ZERO).await;
    let tried = |error: u8| {
        let (locks, closed, runs) = (locks.clone(), closed.clone(), runs.clone());
        async move || -> Result<&str, Error> {
            runs.run().await;
            match error {
                0 => drop(locks.lock(ACCOUNT).within(Duration::ZERO).await?),
                1 => drop(locks.lock("").await?),
                _ => drop(closed.lock(ACCOUNT).await?),
            }
            Ok("paid")
        }
    };
    for (at, (status, reason)) in [(423, "held"), (400, "bad-key"), (503, "closed")]
        .into_iter()
        .enumerate()
    {
        // Neither by the default policy nor by one of the program.
        for (policy, layer) in [layer(&locks), layer(&locks).keep(|_| Keep::No)]
            .into_iter()
            .enumerate()
        {
            let tenant = format!("{reason} {policy}");
            let app = app(layer, tried(at as u8));
            let first = send(&app, pay_as(&tenant)).await;
            first.assert_refused(status, reason);
            assert_eq!(first.problem()["retryable"], false, "{tenant}");
            assert_eq!(first.header("retry-after"), None, "{tenant}");
            let before = runs.begun();
            let again = send(&app, pay_as(&tenant)).await;
            again.assert_refused(409, "outcome-unknown");
            assert_eq!(again.problem()["retryable"], false, "{tenant}");
            assert_eq!(runs.begun(), before, "{tenant}");
        }
    }
}

pub(crate) async fn a_handler_that_has_done_nothing_says_so(subject: impl Subject) {
    // Long enough for the answer of a store at the free key.
    const LIMIT: Duration = Duration::from_secs(2);
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let held = locks.lock(ACCOUNT).await.unwrap();
    let by_error = {
        let (locks, runs) = (locks.clone(), runs.clone());
        async move || -> Result<String, Rejection> {
            let locking = locks.lock(ACCOUNT).within(LIMIT);
            let _guard = locking.await.map_err(Rejection::nothing_done)?;
            Ok(format!("run {}", runs.run().await))
        }
    };
    let by_extension = {
        let (locks, runs) = (locks.clone(), runs.clone());
        async move || {
            let locking = locks.lock(ACCOUNT).within(LIMIT);
            let _guard = locking
                .await
                .map_err(|error| (Extension(Keep::No), error))?;
            Ok::<_, (Extension<Keep>, Error)>(format!("run {}", runs.run().await))
        }
    };
    let apps = [
        app(layer(&locks), by_error),
        app(layer(&locks), by_extension),
    ];
    let tenants = ["acme", "other"];
    for (tenant, app) in tenants.iter().zip(&apps) {
        let refused = send(app, pay_as(tenant)).await;
        refused.assert_refused(423, "held");
        let says_so = *tenant == "acme";
        assert_eq!(refused.problem()["retryable"], says_so, "{tenant}");
        assert_eq!(refused.header("retry-after").is_some(), says_so, "{tenant}");
    }
    held.release().await.unwrap();
    for (tenant, app) in tenants.iter().zip(&apps) {
        assert_eq!(send(app, pay_as(tenant)).await.status, 200, "{tenant}");
        assert!(send(app, pay_as(tenant)).await.is_replayed(), "{tenant}");
    }
    assert_eq!(runs.begun(), 2);
}

pub(crate) async fn the_refusal_of_a_service_that_the_handler_calls_is_its_own_answer(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let stock = Router::new()
        .route("/stock", post(async || "reserved"))
        .route_layer(lock(&locks).reject_if_held());
    let handler = {
        let runs = runs.clone();
        async move || {
            // The card is charged here.
            runs.run().await;
            let request = Request::post("/stock").body(Body::empty()).unwrap();
            stock.oneshot(request).await.unwrap()
        }
    };
    let app = app(layer(&locks), handler);
    let held = locks.lock(ACCOUNT).await.unwrap();
    send(&app, pay()).await.assert_refused(423, "held");
    held.release().await.unwrap();
    send(&app, pay())
        .await
        .assert_refused(409, "outcome-unknown");
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_refusal_inside_of_two_layers_frees_the_keys_of_both(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let by_event = layer(&locks).key_header(HeaderName::from_static("x-event"));
    let app = Router::new()
        .route("/pay", post(runs.handler()))
        .route_layer(lock(&locks).reject_if_held())
        .route_layer(by_event)
        .route_layer(layer(&locks));
    let request = || pay().header("x-event", "7");
    let held = locks.lock(ACCOUNT).await.unwrap();
    send(&app, request()).await.assert_refused(423, "held");
    held.release().await.unwrap();
    assert_eq!(send(&app, request()).await.text(), "run 1");
}

pub(crate) async fn a_policy_decides_about_errors_of_the_inner_service(subject: impl Subject) {
    #[derive(Debug)]
    struct Failed(Overloaded);

    impl std::fmt::Display for Failed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("charged, and then there was no capacity")
        }
    }

    impl std::error::Error for Failed {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let knowing = || layer(&locks).keep_error(|_: &Overloaded| Keep::No);
    let request = |tenant| pay_as(tenant).body(Body::from("five")).unwrap();
    // No capacity: `LoadShed` refuses the request before the service is called.
    let busy = || LoadShed::new(Late(Arc::new(Semaphore::new(0))));
    let later = app(layer(&locks), runs.handler());
    let refused = knowing().layer(busy()).oneshot(request("acme")).await;
    assert!(refused.unwrap_err().is::<Overloaded>());
    assert_eq!(send(&later, pay_as("acme")).await.text(), "run 1");
    // Without the policy, the layer does not know.
    let refused = layer(&locks).layer(busy()).oneshot(request("other")).await;
    assert!(refused.unwrap_err().is::<Overloaded>());
    send(&later, pay_as("other"))
        .await
        .assert_refused(409, "outcome-unknown");
    // An error with that cause can come from a handler that has acted, and one of another type is
    // not meant.
    let errors: [fn() -> BoxError; 2] = [
        || Failed(Overloaded::new()).into(),
        || io::Error::other("no answer").into(),
    ];
    for (tenant, error) in ["third", "fourth"].into_iter().zip(errors) {
        let failing =
            service_fn(
                move |_: Request<Body>| async move { Err::<Response<Body>, BoxError>(error()) },
            );
        let failed = knowing().layer(failing).oneshot(request(tenant)).await;
        assert!(failed.is_err());
        send(&later, pay_as(tenant))
            .await
            .assert_refused(409, "outcome-unknown");
    }
    // An error that is not boxed, and a policy that panics.
    let failing = || {
        service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, _>(io::Error::other("not begun"))
        })
    };
    let free = layer(&locks).keep_error(|_: &io::Error| Keep::No);
    assert!(
        free.layer(failing())
            .oneshot(request("fifth"))
            .await
            .is_err()
    );
    assert_eq!(send(&later, pay_as("fifth")).await.text(), "run 2");
    let clumsy = layer(&locks).keep_error(|_: &io::Error| panic!("this panic is part of the test"));
    assert!(
        clumsy
            .layer(failing())
            .oneshot(request("sixth"))
            .await
            .is_err()
    );
    send(&later, pay_as("sixth"))
        .await
        .assert_refused(409, "outcome-unknown");
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
    let apps = [
        app(layer(&locks), streaming),
        app(layer(&locks).keep(keep), runs.handler()),
        app(layer(&locks).keep(keep), paying_and_panicking),
    ];
    let tenants = ["acme", "other", "third"];
    for (tenant, app) in tenants.into_iter().zip(apps) {
        let first = sending(&app, pay_as(tenant));
        assert!(first.await.unwrap_err().is_panic());
        send(&app, pay_as(tenant))
            .await
            .assert_refused(409, "outcome-unknown");
    }
    assert_eq!(runs.begun(), 3);
}

pub(crate) async fn a_replayed_panic_is_rendered_like_all_refusals(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let panicking = {
        let runs = runs.clone();
        async move || -> &str {
            runs.run().await;
            panic!("this panic is part of the test")
        }
    };
    let render = |rejection: &Rejection, (): &()| {
        let mut response = Response::new(rejection.reason().code());
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    };
    let app = app(layer(&locks), panicking).layer(RejectionLayer::new(|_| (), render));
    assert!(sending(&app, pay()).await.unwrap_err().is_panic());
    let again = send(&app, pay()).await;
    assert_eq!(
        (again.status.as_u16(), again.text()),
        (418, "handler-panicked")
    );
    assert_eq!(runs.begun(), 1);
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
