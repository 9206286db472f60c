//! The future of a response: the inner service's own where the request passes straight through.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use pin_project::pin_project;
use tower_service::Service;

use super::Body;
use crate::rejection::{Asked, Rejection, Rendering};

/// The future of a layer's response.
///
/// A request that is dropped gives up its place in line, its handler and its turn, unless the
/// handler runs as a task.
///
/// `T` is the note of a [`RejectionLayer`](crate::rejection::RejectionLayer).
#[pin_project]
pub struct ResponseFuture<S, ReqBody, ResBody, T = ()>(#[pin] Stage<S, ReqBody, ResBody, T>)
where
    S: Service<Request<ReqBody>>;

#[pin_project(project = StageProj)]
enum Stage<S, ReqBody, ResBody, T>
where
    S: Service<Request<ReqBody>>,
{
    Refused(Option<Response<Bytes>>),
    /// The request passes once the service is ready.
    Readying(S, Option<Request<ReqBody>>),
    Passing(#[pin] S::Future, Option<Rendering<T>>),
    Running(Running<Result<Response<Body<ResBody>>, S::Error>>),
}

type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S, ReqBody, ResBody, T> ResponseFuture<S, ReqBody, ResBody, T>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    pub(crate) fn refuse(rejection: Rejection, by: &Parts) -> Self {
        let response = rejection.to(Asked::by(by)).refuse();
        Self(Stage::Refused(Some(response)))
    }

    pub(crate) fn pass(service: S, request: Request<ReqBody>) -> Self {
        Self(Stage::Readying(service, Some(request)))
    }

    /// A request whose refusal by a layer further in is rendered.
    pub(crate) fn render(handling: S::Future, rendering: Rendering<T>) -> Self {
        Self(Stage::Passing(handling, Some(rendering)))
    }

    /// A request that may have to wait.
    pub(crate) fn run<F>(handle: F) -> Self
    where
        F: Future<Output = Result<Response<Body<ResBody>>, S::Error>> + Send + 'static,
    {
        Self(Stage::Running(Box::pin(handle)))
    }
}

impl<S, ReqBody, ResBody, T> Future for ResponseFuture<S, ReqBody, ResBody, T>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<Body<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().0;
        loop {
            match stage.as_mut().project() {
                StageProj::Refused(response) => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(Body::whole)));
                }
                StageProj::Readying(service, request) => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("a request is called once");
                    let passing = service.call(request);
                    stage.set(Stage::Passing(passing, None));
                }
                StageProj::Passing(passing, rendering) => {
                    let response = ready!(passing.poll(cx))?;
                    return Poll::Ready(Ok(match rendering {
                        Some(rendering) => rendering.finish(response),
                        None => response.map(Body::inner),
                    }));
                }
                StageProj::Running(handle) => return handle.as_mut().poll(cx),
            }
        }
    }
}

/// Calls a service, once it is ready.
pub(crate) async fn call<S, R>(mut service: S, request: R) -> Result<S::Response, S::Error>
where
    S: Service<R>,
{
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}

impl<S, ReqBody, ResBody, T> fmt::Debug for ResponseFuture<S, ReqBody, ResBody, T>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
