use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::{Body, SizeHint};
use pin_project::pin_project;
use tower_service::Service;

use super::{Joined, Rebuild, WholeBody};
use crate::{
    lock::LockBody,
    rejection::{Asked, Reason, Rejection, Renderer, body_error},
};

/// The future of a [`ReadBody`](super::ReadBody)'s response.
#[pin_project]
pub struct ResponseFuture<S, M, ReqBody>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>>,
{
    service: S,
    parts: Option<Parts>,
    limit: usize,
    renderer: Renderer,
    #[pin]
    stage: Stage<S::Future, ReqBody>,
}

#[pin_project(project = StageProj)]
enum Stage<F, ReqBody> {
    Refused(Rejection),
    Reading(#[pin] ReqBody, Joined),
    Readying(Option<Bytes>),
    Handling(#[pin] F),
}

impl<S, M, ReqBody> ResponseFuture<S, M, ReqBody>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>>,
    ReqBody: Body<Data = Bytes>,
{
    pub(super) fn new(
        service: S,
        request: Request<ReqBody>,
        limit: usize,
        renderer: Renderer,
    ) -> Self {
        let (parts, body) = request.into_parts();
        // A body that declares a larger length is refused unread.
        let hint = body.size_hint();
        let stage = match hint.lower() > limit as u64 {
            true => Stage::Refused(too_large(limit)),
            false => Stage::Reading(body, Joined::new(&hint, limit)),
        };
        Self {
            service,
            parts: Some(parts),
            limit,
            renderer,
            stage,
        }
    }
}

impl<S, M, ReqBody, ResBody> Future for ResponseFuture<S, M, ReqBody>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>, Response = Response<ResBody>>,
    ReqBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    type Output = Result<Response<LockBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Refused(rejection) => {
                    let asked = this.parts.as_ref().map(Asked::by).unwrap_or_default();
                    let rejection = rejection.clone().to(asked);
                    return Poll::Ready(Ok(this.renderer.render(&rejection).map(LockBody::whole)));
                }
                StageProj::Reading(body, read) => {
                    let rejection = match ready!(body.poll_frame(cx)) {
                        Some(Ok(frame)) => {
                            let data = frame.into_data().unwrap_or_default();
                            if data.len() <= *this.limit - read.len() {
                                read.push(data);
                                continue;
                            }
                            too_large(*this.limit)
                        }
                        Some(Err(error)) => broken(error.into()),
                        None => {
                            let read = std::mem::replace(read, Joined::new(&SizeHint::new(), 0));
                            this.stage.set(Stage::Readying(Some(read.into_bytes())));
                            continue;
                        }
                    };
                    this.stage.set(Stage::Refused(rejection));
                }
                StageProj::Readying(whole) => {
                    ready!(this.service.poll_ready(cx))?;
                    let whole = whole.take().expect("a body is given on once");
                    let mut parts = this.parts.take().expect("a request is called once");
                    parts.extensions.insert(WholeBody(whole.clone()));
                    let request = Request::from_parts(parts, M::whole(whole));
                    let handling = this.service.call(request);
                    this.stage.set(Stage::Handling(handling));
                }
                StageProj::Handling(handling) => {
                    return handling
                        .poll(cx)
                        .map_ok(|response| response.map(LockBody::free));
                }
            }
        }
    }
}

fn too_large(limit: usize) -> Rejection {
    let detail = format!("the request's body has more than {limit} bytes");
    Rejection::new(Reason::BodyTooLarge, detail)
}

/// A body over a limit further out stays a 413.
fn broken(error: Box<dyn StdError + Send + Sync>) -> Rejection {
    match body_error::is_over_limit(&*error) {
        true => Rejection::new(Reason::BodyTooLarge, "the request's body is too large"),
        false => Rejection::new(Reason::BodyBroken, "the request's body broke off"),
    }
    .with_cause(error)
}

impl<S, M, ReqBody> fmt::Debug for ResponseFuture<S, M, ReqBody>
where
    M: Rebuild<ReqBody>,
    S: Service<Request<M::Body>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
