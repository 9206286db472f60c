//! The service that the layer makes.

use std::{
    error::Error as StdError,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{ResponseFuture, body::IdempotentBody, settings::Settings};
use crate::{
    lock::RequestGuards,
    read_body::{Rebuild, SameBody},
    rejection::Asked,
};

/// A service whose requests run once for each `Idempotency-Key`. See [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct Idempotency<S, M = SameBody> {
    inner: S,
    settings: Arc<Settings>,
    body: PhantomData<M>,
}

impl<S, M> Idempotency<S, M> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self {
            inner,
            settings,
            body: PhantomData,
        }
    }
}

impl<S, M, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<S, M>
where
    M: Rebuild<ReqBody, Body: Send + 'static>,
    S: Service<Request<M::Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<M::Body>, Future: Send, Error: Send>,
    ReqBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    type Response = Response<IdempotentBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M::Body, ResBody>;

    /// Always ready: the inner service is made ready for a request that has claimed its key.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone is made ready later, and `self.inner` never: no swap is needed.
        let inner = self.inner.clone();
        let (mut parts, body) = request.into_parts();
        match self.settings.claim(&mut parts) {
            Ok(None) => ResponseFuture::pass(inner, Request::from_parts(parts, M::unread(body))),
            // A layer further out has claimed the same for this very request, and keeps the answer.
            Ok(Some(claim))
                if RequestGuards::find(&parts.extensions, &self.settings.locks, &claim.key)
                    .is_some() =>
            {
                ResponseFuture::pass(inner, Request::from_parts(parts, M::unread(body)))
            }
            Ok(Some(claim)) => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::claim::<M, ReqBody>(self.settings.clone(), claim, inner, request)
            }
            Err(rejection) => {
                let response = self.settings.render(rejection, Asked::by(&parts));
                ResponseFuture::refuse(response.map(IdempotentBody::whole))
            }
        }
    }
}
