//! The allocations of the layers for a request, beyond those of the inner service and of the lock
//! itself.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use stats_alloc::Region;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockKey, Locks, SingleFlightLayer, key,
    rejection::{Rejection, RejectionLayer},
};

use crate::{ALLOCATOR, ALONE};

type Body = Full<Bytes>;

/// The number of requests in one measurement.
const REQUESTS: usize = 1_000;

/// The most allocations of the lock layer for a request: the text of the key, the box of the waiting
/// future, and the request's extension.
const MOST_OF_LOCK: f64 = 3.0;

/// The most bytes that the idempotency layer allocates for a first request, in memory and with its
/// record: the measured figure with some room.
const MOST_BYTES_OF_IDEMPOTENCY: f64 = 10_000.0;

fn inner()
-> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone
{
    service_fn(|_: Request<Body>| std::future::ready(Ok(Response::new(Body::default()))))
}

/// A request with an extension, as every request behind a router has.
fn request(method: Method) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("/accounts/7")
        .header("x-account", "7")
        .extension(0_u8)
        .body(Body::default())
        .unwrap()
}

/// The allocations of one request, on average.
async fn each(act: impl AsyncFnMut()) -> f64 {
    let used = used(act).await;
    (used.allocations + used.reallocations) as f64 / REQUESTS as f64
}

/// What all requests together allocate.
async fn used(mut act: impl AsyncFnMut()) -> stats_alloc::Stats {
    act().await;
    let region = Region::new(ALLOCATOR);
    for _ in 0..REQUESTS {
        act().await;
    }
    region.change()
}

async fn through<S, B>(service: S, method: Method) -> f64
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
{
    each(async || {
        let answer = service.clone().oneshot(request(method.clone())).await;
        assert!(answer.is_ok_and(|response| response.status() == 200));
    })
    .await
}

#[tokio::test]
async fn a_request_that_passes_through_allocates_nothing() {
    let _alone = ALONE.lock().await;
    let locks = Locks::in_memory();
    let out_of_scope = key::name("account").only_when(|_| false);
    let once = IdempotencyLayer::new(locks.clone(), key::name("everybody"));
    let scoped = IdempotencyLayer::new(locks.clone(), out_of_scope.clone()).required();
    let flight = SingleFlightLayer::new(locks, out_of_scope);
    let refusals = RejectionLayer::new(
        |request| request.method.clone(),
        |_: &Rejection, _| Response::new(Bytes::new()),
    );
    let bare = through(inner(), Method::POST).await;
    for (case, passing) in [
        (
            "no refusal",
            through(refusals.layer(inner()), Method::POST).await,
        ),
        ("no key", through(once.layer(inner()), Method::POST).await),
        (
            "another method",
            through(once.layer(inner()), Method::GET).await,
        ),
        (
            "out of scope",
            through(scoped.layer(inner()), Method::POST).await,
        ),
        (
            "an unsafe method",
            through(flight.layer(inner()), Method::POST).await,
        ),
        (
            "no flight",
            through(flight.layer(inner()), Method::GET).await,
        ),
    ] {
        // The test harness may allocate once, on another thread.
        assert!(
            passing < bare + 0.5,
            "{case}: {passing}, and {bare} without the layer"
        );
    }
}

#[tokio::test]
async fn the_locks_layer_allocates_little_beyond_the_lock() {
    let _alone = ALONE.lock().await;
    let locks = Locks::in_memory();
    let key = LockKey::new("account,x-account=7").unwrap();
    let bare = through(inner(), Method::POST).await;
    let lock = each(async || drop(locks.lock(&key).await.unwrap())).await;
    let layer = DistributedLockLayer::new(locks, key::name("account").header("x-account"));
    let layered = through(layer.layer(inner()), Method::POST).await;
    let own = layered - bare - lock;
    println!(
        "{layered:.1} allocations: {bare:.1} without a lock, {lock:.1} for the lock, {own:.1} for the layer"
    );
    assert!(own <= MOST_OF_LOCK + 0.5, "{own} allocations by the layer");
}

#[tokio::test]
async fn a_first_idempotent_request_allocates_little() {
    let _alone = ALONE.lock().await;
    let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-account"));
    let without = first_requests(inner()).await;
    let with = first_requests(layer.layer(inner())).await;
    let own = (with.bytes_allocated - without.bytes_allocated) as f64 / REQUESTS as f64;
    let allocations = (with.allocations - without.allocations) as f64 / REQUESTS as f64;
    println!("{allocations:.1} allocations and {own:.0} bytes for the layer");
    assert!(own <= MOST_BYTES_OF_IDEMPOTENCY, "{own} bytes by the layer");
}

/// What requests allocate, each with an `Idempotency-Key` of its own.
async fn first_requests<S, B>(service: S) -> stats_alloc::Stats
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
{
    let mut number = 0;
    used(async || {
        number += 1;
        let mut request = request(Method::POST);
        let name = format!("8e03978e-40d5-43e8-bc93-{number:012}");
        let name = name.try_into().unwrap();
        request.headers_mut().insert("idempotency-key", name);
        let answer = service.clone().oneshot(request).await;
        assert!(answer.is_ok_and(|response| response.status() == 200));
    })
    .await
}
