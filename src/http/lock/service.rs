//! The service that the layer makes.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{LockBody, ResponseFuture, settings::Settings};
use crate::rejection::Wire;

/// A service whose requests have their turn at their key. See [`DistributedLockLayer`](super::DistributedLockLayer).
#[derive(Debug, Clone)]
pub struct DistributedLock<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> DistributedLock<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for DistributedLock<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<LockBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    /// Always ready: the inner service is made ready for a request once its turn has come.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let plan = self.settings.plan(&mut parts);
        let wire = Wire::of(&parts.headers);
        let request = Request::from_parts(parts, body);
        // Usually the service that was polled ready has to be swapped out and used, since a clone need not be
        // ready. Here `self.inner` is never polled, and the clone is, later: see `poll_ready`.
        ResponseFuture::new(
            self.settings.clone(),
            self.inner.clone(),
            request,
            plan,
            wire,
        )
    }
}
