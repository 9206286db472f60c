//! Handlers that run to their end although their client goes away.
//!
//! ```text
//! ResponseFuture of the layer ──▶ DetachedFuture ──▶ JoinHandle of the task
//!    dropped: the client is gone     dropped            the task goes on, with the guards of all layers
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::sync::JoinHandle;
use http::Request;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    DistributedLock, DistributedLockLayer, request_guards::RequestGuards, settings::Settings,
};
use crate::{locks::reentry, trace};

/// Like [`DistributedLockLayer`], for handlers that must run to their end although their client goes away. Made by
/// [`DistributedLockLayer::detached`].
///
/// A separate type, because the inner service must be `Send + 'static`: each handler is a task.
///
/// ```
/// use tower::ServiceBuilder;
/// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
/// # use bytes::Bytes;
/// # use http::{Request, Response};
/// # use http_body_util::Full;
///
/// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("payment").path());
/// let service = ServiceBuilder::new()
///     .layer(layer.detached()) // the last call: the options belong to `DistributedLockLayer`
///     .service_fn(async |_: Request<Full<Bytes>>| {
///         Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
///     });
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct DetachedLockLayer(DistributedLockLayer);

impl DetachedLockLayer {
    pub(super) fn new(layer: DistributedLockLayer) -> Self {
        Self(layer)
    }
}

impl<S> Layer<S> for DetachedLockLayer {
    type Service = DistributedLock<Detach<S>>;

    fn layer(&self, inner: S) -> Self::Service {
        let settings = self.0.settings().clone();
        self.0.layer(Detach { inner, settings })
    }
}

/// Runs each locked request of a service as a task that holds the request's turns, those of layers
/// further out included.
#[derive(Debug, Clone)]
pub struct Detach<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B> Service<Request<B>> for Detach<S>
where
    S: Service<Request<B>, Future: Send + 'static, Response: Send + 'static, Error: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DetachedFuture<S::Future, S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !RequestGuards::is_locked(request.extensions()) {
            return DetachedFuture(Kind::Attached(self.inner.call(request)));
        }
        let mut turns = RequestGuards::for_task(request.extensions());
        let busy = self.settings.locks.busy();
        let handler = self.inner.call(request);
        let task = trace::spawn(reentry::carry(async move {
            let _busy = busy;
            turns.run(handler).await
        }));
        DetachedFuture(Kind::Detached(task))
    }
}

/// The future of a [`Detach`]'s response.
#[pin_project]
pub struct DetachedFuture<F, R, E>(#[pin] Kind<F, R, E>);

#[pin_project(project = KindProj)]
enum Kind<F, R, E> {
    /// A request that was not locked, and is not detached either.
    Attached(#[pin] F),
    /// The task of the handler. Its output is `None` if a lease was lost.
    Detached(JoinHandle<Option<Result<R, E>>>),
    /// Pending for ever: the layer whose lease was lost answers, or the runtime shuts down.
    Silent,
}

impl<F, R, E> Future for DetachedFuture<F, R, E>
where
    F: Future<Output = Result<R, E>>,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut kind = self.project().0;
        match kind.as_mut().project() {
            KindProj::Attached(handler) => handler.poll(cx),
            KindProj::Detached(task) => match ready!(Pin::new(task).poll(cx)) {
                Ok(Some(response)) => Poll::Ready(response),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Ok(None) | Err(_) => {
                    kind.set(Kind::Silent);
                    Poll::Pending
                }
            },
            KindProj::Silent => Poll::Pending,
        }
    }
}

impl<F, R, E> fmt::Debug for DetachedFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedFuture").finish_non_exhaustive()
    }
}
