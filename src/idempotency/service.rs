//! The service that the layer makes.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{body::IdempotentBody, run, settings::Settings};

/// A service whose requests run once for each `Idempotency-Key`. See [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct Idempotency<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<ReqBody>, Future: Send, Error: Send>,
    ReqBody: Body<Data = Bytes, Error: Send> + From<Bytes> + Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    type Response = Response<IdempotentBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error>;

    /// Always ready: the inner service is made ready for a request once that is to run.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // A clone will do: it is made ready later, `self.inner` never.
        let handling = run::handle(self.settings.clone(), self.inner.clone(), request);
        ResponseFuture(Box::pin(handling))
    }
}

/// The future of an [`Idempotency`]'s response.
///
/// A box, since its services are `Send + 'static` in any case: handlers are tasks.
pub struct ResponseFuture<ResBody, E>(Boxed<Result<Response<IdempotentBody<ResBody>>, E>>);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<ResBody, E> Future for ResponseFuture<ResBody, E> {
    type Output = Result<Response<IdempotentBody<ResBody>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<ResBody, E> fmt::Debug for ResponseFuture<ResBody, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
