//! The service: reads the body of a request, and passes the request on.

use std::{
    marker::PhantomData,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{Rebuild, SameBody, WholeBody, read::read};
use crate::{
    http::gate::{self, BoxError, ResponseFuture},
    rejection::Asked,
};

/// A service whose requests come with their whole body. See
/// [`ReadBodyLayer`](super::ReadBodyLayer).
#[derive(Debug, Clone)]
pub struct ReadBody<S, M = SameBody> {
    pub(super) inner: S,
    pub(super) limit: usize,
    pub(super) body: PhantomData<M>,
}

impl<S, M, ReqBody, ResBody> Service<Request<ReqBody>> for ReadBody<S, M>
where
    M: Rebuild<ReqBody, Body: Send + 'static>,
    S: Service<Request<M::Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<M::Body>, Future: Send, Error: Send>,
    ReqBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    ResBody: 'static,
{
    type Response = Response<gate::Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M::Body, ResBody>;

    /// Always ready: the inner service is made ready for a request once its body is there.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone is made ready later, and `self.inner` never: no swap is needed.
        let inner = self.inner.clone();
        if request.body().is_end_stream() {
            return ResponseFuture::pass(inner, whole::<M, _>(request.map(|_| Bytes::new())));
        }
        ResponseFuture::run(handle::<M, _, _, _>(self.limit, inner, request))
    }
}

/// Reads the body, and calls the inner service.
async fn handle<M, S, ReqBody, ResBody>(
    limit: usize,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<gate::Body<ResBody>>, S::Error>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>, Response = Response<ResBody>>,
    ReqBody: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (parts, body) = request.into_parts();
    let body = match read(body, limit).await {
        Ok(body) => body,
        Err(rejection) => {
            let rejection = rejection.to(Asked::by(&parts));
            return Ok(rejection.refuse().map(gate::Body::whole));
        }
    };
    let request = whole::<M, _>(Request::from_parts(parts, body));
    Ok(gate::call(service, request).await?.map(gate::Body::inner))
}

/// The request with a body that was read. Keys further in may come from the body.
fn whole<M: Rebuild<B>, B>(mut request: Request<Bytes>) -> Request<M::Body> {
    let body = WholeBody(request.body().clone());
    request.extensions_mut().insert(body);
    request.map(M::whole)
}
