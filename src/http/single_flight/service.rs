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
    key::one_key,
    rejection::Rejection,
};

/// A service whose equal safe requests share one answer. See
/// [`SingleFlightLayer`](super::SingleFlightLayer).
#[derive(Debug, Clone)]
pub struct SingleFlight<S> {
    pub(super) inner: S,
    pub(super) settings: Arc<Settings>,
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
        let several = "the answer to a request is shared by one key";
        match one_key(&*self.settings.key, &mut parts, several) {
            Ok(None) => ResponseFuture::pass(inner, Request::from_parts(parts, body)),
            Ok(Some(key)) => {
                let key = flight::key(&parts.method, &key);
                let request = Request::from_parts(parts, body);
                let settings = self.settings.clone();
                ResponseFuture::run(flight::join(settings, key, inner, request))
            }
            Err(error) => ResponseFuture::refuse(Rejection::from_key_error(error), &parts),
        }
    }
}
