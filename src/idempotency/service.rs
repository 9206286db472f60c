//! The service that the layer makes.

use std::{
    error::Error as StdError,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{ResponseFuture, body::IdempotentBody, settings::Settings};
use crate::middleware::{NotLocked, Turns};

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
    ReqBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    ReqBody: From<Bytes> + Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    type Response = Response<IdempotentBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    /// Always ready: the inner service is made ready for a request once that is to run.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // A clone will do: it is made ready later, `self.inner` never.
        let inner = self.inner.clone();
        let (mut parts, body) = request.into_parts();
        match self.settings.claim(&mut parts) {
            Ok(None) => {
                Turns::note_claim(&mut parts.extensions, Err(NotLocked::NoKey));
                ResponseFuture::pass(inner, Request::from_parts(parts, body))
            }
            // A layer further out has claimed the same for this very request, and keeps the answer.
            Ok(Some(claim))
                if Turns::find(&parts.extensions, &self.settings.locks, &claim.key).is_some() =>
            {
                ResponseFuture::pass(inner, Request::from_parts(parts, body))
            }
            Ok(Some(claim)) => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::claim(self.settings.clone(), claim, inner, request)
            }
            Err(rejection) => {
                let response = self.settings.render(&rejection);
                ResponseFuture::refuse(response.map(IdempotentBody::whole))
            }
        }
    }
}
