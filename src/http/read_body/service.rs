use std::{
    error::Error as StdError,
    marker::PhantomData,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{Rebuild, ResponseFuture, SameBody};
use crate::{lock::LockBody, rejection::Renderer};

/// A service whose requests come with their whole body. See [`ReadBodyLayer`](super::ReadBodyLayer).
#[derive(Debug, Clone)]
pub struct ReadBody<S, M = SameBody> {
    inner: S,
    limit: usize,
    renderer: Renderer,
    body: PhantomData<M>,
}

impl<S, M> ReadBody<S, M> {
    pub(super) fn new(inner: S, limit: usize, renderer: Renderer) -> Self {
        Self {
            inner,
            limit,
            renderer,
            body: PhantomData,
        }
    }
}

impl<S, M, ReqBody, ResBody> Service<Request<ReqBody>> for ReadBody<S, M>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>, Response = Response<ResBody>> + Clone,
    ReqBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<LockBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M, ReqBody>;

    /// Always ready: the inner service is made ready for a request once its body is there.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone is made ready later, and `self.inner` never: no swap is needed.
        ResponseFuture::new(
            self.inner.clone(),
            request,
            self.limit,
            self.renderer.clone(),
        )
    }
}
