//! One place for how refusals look.
//!
//! ```text
//! request ──▶ note(&Parts) = T ──▶ inner service ──▶ response with a Rejection? ──▶ render(&Rejection, &T)
//!                                                                         └─ no ──▶ unchanged
//! ```

use std::{
    error::Error as StdError,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::Rejection;

/// Renders the refusals of all layers, extractors and handlers further in.
///
/// Each response that is a refusal of this crate has a [`Rejection`] as an extension. This layer
/// replaces such responses with those of a closure, and lets all others pass. The closure also gets
/// a value that another closure has made from the request, such as its path, its id or the `Accept`
/// header.
///
/// ```
/// use http::{Response, request::Parts};
/// use tower_distributed_lock::rejection::{Rejection, RejectionLayer};
///
/// let layer = RejectionLayer::new(
///     |request: &Parts| request.uri.path().to_owned(),
///     |rejection: &Rejection, path: &String| {
///         let mut response = Response::new(format!("{path}: {}", rejection.reason().code()));
///         *response.status_mut() = rejection.status();
///         response
///     },
/// );
/// ```
///
/// The new response has the [`Rejection`] as an extension too. The refusal is not logged again.
#[must_use]
pub struct RejectionLayer<T, B> {
    rendering: Arc<Rendering<T, B>>,
}

struct Rendering<T, B> {
    note: Box<Note<T>>,
    render: Box<Render<T, B>>,
}

type Note<T> = dyn Fn(&Parts) -> T + Send + Sync;
type Render<T, B> = dyn Fn(&Rejection, &T) -> Response<B> + Send + Sync;

impl<T, B> RejectionLayer<T, B> {
    /// Renders with `render`, which gets the value that `note` has made from the request. `note`
    /// runs for every request and should be cheap.
    ///
    /// ```
    /// use http::Response;
    /// use tower_distributed_lock::rejection::{Reason, Rejection, RejectionLayer};
    ///
    /// // Plain text, and nothing from the request is needed.
    /// let layer = RejectionLayer::new(
    ///     |_| (),
    ///     |rejection: &Rejection, (): &()| {
    ///         let text = match rejection.reason() {
    ///             Reason::Held => "Someone else is editing this. Try again in a moment.".to_owned(),
    ///             _ => rejection.detail().to_owned(),
    ///         };
    ///         let mut response = Response::new(text);
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     },
    /// );
    /// # let _: RejectionLayer<(), String> = layer;
    /// ```
    pub fn new(
        note: impl Fn(&Parts) -> T + Send + Sync + 'static,
        render: impl Fn(&Rejection, &T) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let (note, render) = (Box::new(note), Box::new(render));
        Self {
            rendering: Arc::new(Rendering { note, render }),
        }
    }
}

impl<S, T, B> Layer<S> for RejectionLayer<T, B> {
    type Service = RenderRejections<S, T, B>;

    fn layer(&self, inner: S) -> Self::Service {
        let rendering = self.rendering.clone();
        RenderRejections { inner, rendering }
    }
}

/// A service whose refusals are rendered in one place. See [`RejectionLayer`].
pub struct RenderRejections<S, T, B> {
    inner: S,
    rendering: Arc<Rendering<T, B>>,
}

impl<S, T, B, ReqBody, ResBody> Service<Request<ReqBody>> for RenderRejections<S, T, B>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = Response<RenderedBody<ResBody, B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, T, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let noted = (self.rendering.note)(&parts);
        ResponseFuture {
            handling: self.inner.call(Request::from_parts(parts, body)),
            noted,
            rendering: self.rendering.clone(),
        }
    }
}

/// The future of a [`RenderRejections`]' response.
#[pin_project]
pub struct ResponseFuture<F, T, B> {
    #[pin]
    handling: F,
    noted: T,
    rendering: Arc<Rendering<T, B>>,
}

impl<F, T, B, ResBody, E> Future for ResponseFuture<F, T, B>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
{
    type Output = Result<Response<RenderedBody<ResBody, B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.handling.poll(cx))?;
        let Some(rejection) = response.extensions().get::<Rejection>() else {
            return Poll::Ready(Ok(response.map(RenderedBody::Inner)));
        };
        let mut rendered = (this.rendering.render)(rejection, this.noted);
        // Layers further out read the refusal, and what the handler has said of its answer.
        let rejection = rejection.clone();
        let mut extensions = response.into_parts().0.extensions;
        extensions.extend(mem::take(rendered.extensions_mut()));
        extensions.insert(rejection);
        *rendered.extensions_mut() = extensions;
        Poll::Ready(Ok(rendered.map(RenderedBody::Refusal)))
    }
}

/// The body of a [`RenderRejections`]' response: the inner service's, or a refusal's.
#[derive(Debug)]
#[pin_project(project = RenderedBodyProj)]
pub enum RenderedBody<ResBody, B> {
    /// The inner service's body.
    Inner(#[pin] ResBody),
    /// The body of a refusal, as the layer's closure made it.
    Refusal(#[pin] B),
}

impl<ResBody, B> Body for RenderedBody<ResBody, B>
where
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project() {
            RenderedBodyProj::Inner(body) => body.poll_frame(cx).map_err(Into::into),
            RenderedBodyProj::Refusal(body) => body.poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner(body) => body.is_end_stream(),
            Self::Refusal(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Inner(body) => body.size_hint(),
            Self::Refusal(body) => body.size_hint(),
        }
    }
}

impl<T, B> Clone for RejectionLayer<T, B> {
    fn clone(&self) -> Self {
        let rendering = self.rendering.clone();
        Self { rendering }
    }
}

impl<S: Clone, T, B> Clone for RenderRejections<S, T, B> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            rendering: self.rendering.clone(),
        }
    }
}

impl<T, B> fmt::Debug for RejectionLayer<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionLayer").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, T, B> fmt::Debug for RenderRejections<S, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderRejections")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<F, T, B> fmt::Debug for ResponseFuture<F, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
