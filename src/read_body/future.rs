use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use crate::{
    middleware::LockBody,
    rejection::{Reason, Rejection, Renderer},
};

/// The future of a [`ReadBody`](super::ReadBody)'s response.
#[pin_project]
pub struct ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
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
    Reading(#[pin] ReqBody, BytesMut),
    Readying(Option<Bytes>),
    Handling(#[pin] F),
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
    ReqBody: Body<Data = Bytes>,
{
    pub(super) fn new(
        service: S,
        request: Request<ReqBody>,
        limit: usize,
        renderer: Renderer,
    ) -> Self {
        let (parts, body) = request.into_parts();
        // A length that is told beforehand need not be read.
        let stage = match body.size_hint().lower() > limit as u64 {
            true => Stage::Refused(too_large(limit)),
            false => Stage::Reading(body, BytesMut::new()),
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

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ReqBody: Body<Data = Bytes> + From<Bytes>,
{
    type Output = Result<Response<LockBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Refused(rejection) => {
                    return Poll::Ready(Ok(this.renderer.render(rejection).map(LockBody::whole)));
                }
                StageProj::Reading(body, read) => {
                    let rejection = match ready!(body.poll_frame(cx)) {
                        Some(Ok(frame)) => {
                            let data = frame.into_data().unwrap_or_default();
                            if data.len() <= *this.limit - read.len() {
                                read.extend_from_slice(&data);
                                continue;
                            }
                            too_large(*this.limit)
                        }
                        Some(Err(_)) => broken(),
                        None => {
                            let whole = std::mem::take(read).freeze();
                            this.stage.set(Stage::Readying(Some(whole)));
                            continue;
                        }
                    };
                    this.stage.set(Stage::Refused(rejection));
                }
                StageProj::Readying(whole) => {
                    ready!(this.service.poll_ready(cx))?;
                    let whole = whole.take().expect("a body is given on once");
                    let parts = this.parts.take().expect("a request is called once");
                    let request = Request::from_parts(parts, ReqBody::from(whole));
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

fn broken() -> Rejection {
    Rejection::new(Reason::BodyBroken, "the request's body broke off")
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
