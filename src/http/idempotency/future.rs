//! The future of a response: the inner service's own where the request passes straight through.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use super::{
    begin::begin,
    body::IdempotentBody,
    run::run,
    settings::{Claim, Settings},
};
use crate::read_body::{Rebuild, WholeBody};

/// The future of an [`Idempotency`](super::Idempotency)'s or a [`SingleFlight`](crate::single_flight::SingleFlight)'s response.
#[pin_project]
pub struct ResponseFuture<S, ReqBody, ResBody>(#[pin] Stage<S, ReqBody, ResBody>)
where
    S: Service<Request<ReqBody>>;

#[pin_project(project = StageProj)]
enum Stage<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    Refused(Option<Response<IdempotentBody<ResBody>>>),
    Readying(S, Option<Request<ReqBody>>),
    Handling(#[pin] S::Future),
    /// A request that may wait, and whose handler is a task. The services are `Send + 'static` in any case, so that a box will do.
    Boxed(Boxed<Result<Response<IdempotentBody<ResBody>>, S::Error>>),
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    pub(crate) fn refuse(response: Response<IdempotentBody<ResBody>>) -> Self {
        Self(Stage::Refused(Some(response)))
    }

    pub(crate) fn pass(service: S, request: Request<ReqBody>) -> Self {
        Self(Stage::Readying(service, Some(request)))
    }

    pub(super) fn claim<M, Sent>(
        settings: Arc<Settings>,
        claim: Claim,
        service: S,
        request: Request<Sent>,
    ) -> Self
    where
        M: Rebuild<Sent, Body = ReqBody>,
        S: Service<Request<ReqBody>, Future: Send, Error: Send> + Send + 'static,
        Sent: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
        ReqBody: Send + 'static,
        ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        let asked = claim.asked;
        let handling = async move {
            let (mut parts, body) = request.into_parts();
            match begin(settings.clone(), claim, &mut parts, body).await {
                Ok((first, body)) => {
                    // Keys further in may come from the body.
                    parts.extensions.insert(WholeBody(body.clone()));
                    run(first, service, Request::from_parts(parts, M::whole(body))).await
                }
                Err(instead) => Ok(instead.into_response(&settings, asked)),
            }
        };
        Self::boxed(handling)
    }

    /// A request that may have to wait, and whose handler is a task.
    pub(crate) fn boxed(
        handling: impl Future<Output = Result<Response<IdempotentBody<ResBody>>, S::Error>>
        + Send
        + 'static,
    ) -> Self {
        Self(Stage::Boxed(Box::pin(handling)))
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<IdempotentBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().0;
        loop {
            match stage.as_mut().project() {
                StageProj::Refused(response) => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response));
                }
                StageProj::Readying(service, request) => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("a request is called once");
                    let handling = service.call(request);
                    stage.set(Stage::Handling(handling));
                }
                StageProj::Handling(handling) => {
                    let response = ready!(handling.poll(cx))?;
                    return Poll::Ready(Ok(response.map(IdempotentBody::inner)));
                }
                StageProj::Boxed(handling) => return handling.as_mut().poll(cx),
            }
        }
    }
}

impl<S, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
