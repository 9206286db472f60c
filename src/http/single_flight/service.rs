//! The service that the layer makes.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{flight, layer::Settings};
use crate::{
    http::gate::{self, BoxError, ResponseFuture},
    key::Derived,
    rejection::{Asked, Rejection},
};

/// A service whose equal safe requests share one answer. See
/// [`SingleFlightLayer`](super::SingleFlightLayer).
#[derive(Debug, Clone)]
pub struct SingleFlight<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> SingleFlight<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for SingleFlight<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<ReqBody>, Future: Send, Error: Send>,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<gate::Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    /// Always ready: the inner service is made ready for a request that will run.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone is made ready later, and `self.inner` never: no swap is needed.
        let inner = self.inner.clone();
        if !request.method().is_safe() {
            return ResponseFuture::pass(inner, request);
        }
        let (mut parts, body) = request.into_parts();
        let rejection = match self.settings.key.derive(&mut parts) {
            Ok(Derived::NoLock | Derived::NoRoute) => {
                return ResponseFuture::pass(inner, Request::from_parts(parts, body));
            }
            Ok(Derived::Key(key)) => {
                let key = flight::key(&parts.method, &key);
                let request = Request::from_parts(parts, body);
                let settings = self.settings.clone();
                return ResponseFuture::run(flight::join(settings, key, inner, request));
            }
            Ok(Derived::Keys(_)) => {
                Rejection::misconfigured("the answer to a request is shared by one key".into())
            }
            Err(error) => Rejection::from_key_error(error),
        };
        let rejection = rejection.to(Asked::by(&parts));
        let response = rejection.refuse();
        ResponseFuture::refuse(response)
    }
}
