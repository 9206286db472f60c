//! Requests that are dropped, fail, or are kept after their end, at every stage and without a
//! socket.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, LockKey, Locks, OnLoss, key,
    store::{FaultyStore, Store},
};

type Req = Request<Full<Bytes>>;
type Res = Response<Full<Bytes>>;

const KEY: &str = "path=/7";

fn request() -> Req {
    Request::post("/7").body(Full::default()).unwrap()
}

fn lock(locks: &Locks) -> DistributedLockLayer {
    DistributedLockLayer::new(locks.clone(), key::request().path())
}

async fn is_free(locks: &Locks) -> bool {
    locks.lock(KEY).now().await.unwrap().is_some()
}

type Readiness = Poll<Result<(), &'static str>>;

/// A service whose readiness the test sets. Counts the calls.
#[derive(Clone)]
struct Slow(Arc<Mutex<(Readiness, usize)>>);

impl Slow {
    fn new(state: Readiness) -> Self {
        Self(Arc::new(Mutex::new((state, 0))))
    }
}

impl Service<Req> for Slow {
    type Response = Res;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Res, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.lock().unwrap().0
    }

    fn call(&mut self, _: Req) -> Self::Future {
        self.0.lock().unwrap().1 += 1;
        std::future::ready(Ok(Response::new(Full::from("called"))))
    }
}

/// Checks on drop whether the turn is still held.
struct Witness(Extensions, Arc<Mutex<Vec<bool>>>);

impl Drop for Witness {
    fn drop(&mut self) {
        let held = LockGuard::from_extensions(&self.0).is_ok_and(|guard| guard.is_held());
        self.1.lock().unwrap().push(held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_dropped_before_its_turn_ends() {
    let (locks, seen) = (Locks::in_memory(), Arc::<Mutex<Vec<bool>>>::default());
    let service = {
        let seen = seen.clone();
        service_fn(move |request: Req| {
            let witness = Witness(request.extensions().clone(), seen.clone());
            async move {
                std::future::pending::<()>().await;
                drop(witness);
                Ok::<Res, Infallible>(Response::default())
            }
        })
    };
    for layer in [lock(&locks), lock(&locks).on_lease_loss(OnLoss::Finish)] {
        let mut handling = Box::pin(layer.layer(service.clone()).oneshot(request()));
        tokio::time::timeout(Duration::from_secs(1), &mut handling)
            .await
            .unwrap_err();
        assert!(!is_free(&locks).await);
        drop(handling);
        assert!(is_free(&locks).await);
    }
    assert_eq!(*seen.lock().unwrap(), [true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_finished_future_that_is_kept_keeps_no_turn() {
    let locks = Locks::in_memory();
    let service = service_fn(async |request: Req| {
        let _guard = LockGuard::from_extensions(request.extensions()).unwrap();
        Err::<Res, _>("an error of its own")
    });
    let mut failed = pin!(lock(&locks).layer(service).call(request()));
    assert_eq!(failed.as_mut().await.unwrap_err(), "an error of its own");
    assert!(is_free(&locks).await);

    let broken = Slow::new(Poll::Ready(Err("never ready")));
    let mut failed = pin!(lock(&locks).layer(broken).call(request()));
    assert_eq!(failed.as_mut().await.unwrap_err(), "never ready");
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_while_its_service_gets_ready_frees_its_key() {
    let locks = Locks::in_memory();
    let mut readying = Box::pin(lock(&locks).layer(Slow::new(Poll::Pending)).call(request()));
    tokio::time::timeout(Duration::from_secs(1), &mut readying)
        .await
        .unwrap_err();
    assert!(!is_free(&locks).await);
    drop(readying);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_handler_does_not_begin_under_a_lease_that_was_lost_meanwhile() {
    for loss in [OnLoss::Cancel, OnLoss::Finish] {
        let store = FaultyStore::new();
        let locks = Locks::builder(store.clone()).build().unwrap();
        let slow = Slow::new(Poll::Pending);
        let layer = lock(&locks).on_lease_loss(loss);
        let mut readying = Box::pin(layer.layer(slow.clone()).call(request()));
        tokio::time::timeout(Duration::from_secs(1), &mut readying)
            .await
            .unwrap_err();
        store
            .force_release(LockKey::new(KEY).unwrap())
            .await
            .unwrap();
        // The time of the next renewal passes.
        tokio::time::sleep(Duration::from_secs(20)).await;
        slow.0.lock().unwrap().0 = Poll::Ready(Ok(()));
        let response = readying.await.unwrap();
        // Nothing has begun, so the request can be sent again.
        assert_eq!(response.status(), StatusCode::LOCKED, "{loss:?}");
        assert!(response.headers().contains_key("retry-after"), "{loss:?}");
        assert_eq!(slow.0.lock().unwrap().1, 0, "{loss:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_inner_service_frees_the_key() {
    let locks = Locks::in_memory();
    let in_call = service_fn(|_: Req| -> std::future::Ready<Result<Res, Infallible>> {
        panic!("this panic is part of the test")
    });
    let call = tokio::spawn(lock(&locks).layer(in_call).oneshot(request()));
    assert!(call.await.unwrap_err().is_panic());
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_response_holds_no_key_although_a_guard_lives_elsewhere() {
    let locks = Locks::in_memory();
    let kept = Arc::new(Mutex::new(None));
    let service = {
        let kept = kept.clone();
        service_fn(move |request: Req| {
            *kept.lock().unwrap() = LockGuard::from_extensions(request.extensions()).ok();
            async { Ok::<Res, Infallible>(Response::new(Full::from("a body"))) }
        })
    };
    let layer = lock(&locks).confirm_before_response();
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    assert!(!is_free(&locks).await);
    drop(kept.lock().unwrap().take());
    assert!(is_free(&locks).await, "the body holds the turn");
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn size_hint_end_of_stream_and_trailers_are_forwarded() {
    let locks = Locks::in_memory();
    let service = service_fn(async |_: Req| {
        let trailers =
            http::HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())]);
        let body = Full::<Bytes>::from("abc").with_trailers(async { Some(Ok(trailers)) });
        Ok::<_, Infallible>(Response::new(body))
    });
    let empty = service_fn(async |_: Req| Ok::<_, Infallible>(Res::default()));
    for layer in [lock(&locks), lock(&locks).hold_until_body_ends()] {
        let body = layer
            .layer(service)
            .oneshot(request())
            .await
            .unwrap()
            .into_body();
        let collected = body.collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "1");
        assert_eq!(collected.to_bytes(), "abc");
        assert!(is_free(&locks).await);

        let known = service_fn(async |_: Req| Ok::<_, Infallible>(Res::new(Full::from("abc"))));
        let body = layer
            .layer(known)
            .oneshot(request())
            .await
            .unwrap()
            .into_body();
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(3));
        assert!(!http_body::Body::is_end_stream(&body));
        drop(body);

        let body = layer
            .layer(empty)
            .oneshot(request())
            .await
            .unwrap()
            .into_body();
        assert!(http_body::Body::is_end_stream(&body));
        assert!(
            is_free(&locks).await,
            "an empty body has nothing to hold the turn for"
        );
        drop(body);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_known_length_frees_the_key_with_the_last_frame() {
    let locks = Locks::in_memory();
    let service = service_fn(async |_: Req| Ok::<_, Infallible>(Res::new(Full::from("abc"))));
    let layer = lock(&locks).hold_until_body_ends();
    let mut body = layer
        .layer(service)
        .oneshot(request())
        .await
        .unwrap()
        .into_body();
    assert!(!is_free(&locks).await);
    // A server that knows the length does not poll the body again.
    let frame = poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx)).await;
    assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "abc");
    assert!(is_free(&locks).await);
    drop(body);
}

/// A body without frames, which reports its drop.
struct Endless {
    _alive: Arc<()>,
}

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_cut_off_drops_its_source_at_once() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let alive = Arc::new(());
    let service = {
        let alive = alive.clone();
        service_fn(move |_: Req| {
            let body = Endless {
                _alive: alive.clone(),
            };
            async { Ok::<_, Infallible>(Response::new(body)) }
        })
    };
    let layer = lock(&locks).hold_until_body_ends();
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    let mut body = response.into_body();
    store
        .force_release(LockKey::new(KEY).unwrap())
        .await
        .unwrap();
    let cut = body.frame().await.unwrap().unwrap_err();
    assert!(cut.to_string().contains("lease was lost"), "{cut}");
    assert_eq!(Arc::strong_count(&alive), 1, "only this test's is left");
    assert!(http_body::Body::is_end_stream(&body));
    assert!(body.frame().await.is_none());
}

/// Longer than a lease with the default settings.
const PAUSE: Duration = Duration::from_secs(30);

/// Moves the clock, and runs no timer and no other task: as after a pause of the whole process.
async fn pause_of_the_process() {
    let mut advance = pin!(tokio::time::advance(PAUSE));
    assert!(poll_once(advance.as_mut()).await.is_pending());
}

async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// A service whose handler waits for a message, and counts the handlers that got theirs.
#[derive(Clone, Default)]
struct Woken {
    wake: Arc<Mutex<Option<oneshot::Sender<()>>>>,
    steps: Arc<AtomicUsize>,
}

impl Woken {
    fn wake(&self) {
        let wake = self.wake.lock().unwrap().take().expect("a handler waits");
        wake.send(()).unwrap();
    }

    fn service(
        &self,
    ) -> impl Service<Req, Response = Res, Error = Infallible, Future: Send + 'static> + Clone + use<>
    {
        let this = self.clone();
        service_fn(move |_: Req| {
            let (wake, woken) = oneshot::channel();
            *this.wake.lock().unwrap() = Some(wake);
            let steps = this.steps.clone();
            async move {
                woken.await.unwrap();
                steps.fetch_add(1, Ordering::Relaxed);
                Ok(Response::default())
            }
        })
    }
}

/// Fault: a handler that was woken before the scheduler went on for one more step, without its
/// lease.
#[tokio::test(start_paused = true)]
async fn a_handler_woken_after_a_pause_of_the_process_makes_no_further_step() {
    let (locks, woken) = (Locks::in_memory(), Woken::default());
    let mut handling = pin!(lock(&locks).layer(woken.service()).oneshot(request()));
    assert!(poll_once(handling.as_mut()).await.is_pending());
    pause_of_the_process().await;
    woken.wake();
    assert_eq!(handling.await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(woken.steps.load(Ordering::Relaxed), 0);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_detached_handler_woken_after_a_pause_of_the_process_makes_no_further_step() {
    let (locks, woken) = (Locks::in_memory(), Woken::default());
    let layer = lock(&locks).detached();
    let mut handling = pin!(layer.layer(woken.service()).oneshot(request()));
    assert!(poll_once(handling.as_mut()).await.is_pending());
    // The task of the handler begins to wait.
    tokio::task::yield_now().await;
    pause_of_the_process().await;
    // The task is the only one that can run before the runtime looks at its timers.
    woken.wake();
    tokio::task::yield_now().await;
    assert_eq!(handling.await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(woken.steps.load(Ordering::Relaxed), 0);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_woken_after_a_pause_of_the_process_sends_no_further_frame() {
    let locks = Locks::in_memory();
    let (feed, frames) = mpsc::unbounded_channel();
    let frames = Arc::new(Mutex::new(Some(frames)));
    let service = service_fn(move |_: Req| {
        let mut frames = frames.lock().unwrap().take().expect("one request");
        let frames = futures_util::stream::poll_fn(move |cx| frames.poll_recv(cx));
        async { Ok::<_, Infallible>(Response::new(StreamBody::new(frames))) }
    });
    let layer = lock(&locks).hold_until_body_ends();
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    let mut body = response.into_body();
    assert!(poll_once(pin!(body.frame())).await.is_pending());
    pause_of_the_process().await;
    feed.send(Ok::<_, Infallible>(Frame::data(Bytes::from("late"))))
        .unwrap();
    let cut = body.frame().await.unwrap().unwrap_err();
    assert!(cut.to_string().contains("lease was lost"), "{cut}");
    assert!(is_free(&locks).await);
}
