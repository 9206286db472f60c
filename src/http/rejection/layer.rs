//! One place for how refusals look.
//!
//! ```text
//! request ──▶ note(&Parts) = T ──▶ inner service ──▶ response with a Rejection? ──▶ render(&Rejection, &T)
//!                                                                         └─ no ──▶ unchanged
//! ```

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::Rejection;
use crate::http::gate::{Body, ResponseFuture};

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
///
/// A request that is not refused costs no more than its note.
#[must_use]
pub struct RejectionLayer<T = ()>(Arc<Rules<T>>);

struct Rules<T> {
    note: Box<dyn Fn(&Parts) -> T + Send + Sync>,
    render: Box<Render<T>>,
}

type Render<T> = dyn Fn(&Rejection, &T) -> Response<Bytes> + Send + Sync;

impl<T: Send + 'static> RejectionLayer<T> {
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
    /// ```
    pub fn new<B: Into<Bytes>>(
        note: impl Fn(&Parts) -> T + Send + Sync + 'static,
        render: impl Fn(&Rejection, &T) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let render = move |rejection: &_, noted: &_| render(rejection, noted).map(Into::into);
        Self(Arc::new(Rules {
            note: Box::new(note),
            render: Box::new(render),
        }))
    }
}

// Not derived: the note of a request need not be `Clone`.
impl<T> Clone for RejectionLayer<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for RejectionLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionLayer").finish_non_exhaustive()
    }
}

impl<S, T> Layer<S> for RejectionLayer<T> {
    type Service = RenderRejections<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        RenderRejections { inner, layer }
    }
}

/// A service whose refusals are rendered in one place. See [`RejectionLayer`].
#[derive(Debug, Clone)]
pub struct RenderRejections<S, L = RejectionLayer> {
    inner: S,
    layer: L,
}

impl<S, T, ReqBody, ResBody> Service<Request<ReqBody>> for RenderRejections<S, RejectionLayer<T>>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = Response<Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let rendering = Rendering {
            noted: (self.layer.0.note)(&parts),
            rules: self.layer.0.clone(),
        };
        let handling = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture::render(handling, rendering)
    }
}

/// What renders the response to a request, if that is a refusal.
pub(crate) struct Rendering<T> {
    noted: T,
    rules: Arc<Rules<T>>,
}

impl<T> Rendering<T> {
    /// The response, rendered if it is a refusal.
    pub(crate) fn finish<B>(&self, response: Response<B>) -> Response<Body<B>> {
        let Some(rejection) = response.extensions().get::<Rejection>().cloned() else {
            return response.map(Body::inner);
        };
        let mut rendered = (self.rules.render)(&rejection, &self.noted);
        // Layers further out read the refusal, and what the handler has said of its answer.
        let mut extensions = response.into_parts().0.extensions;
        extensions.extend(mem::take(rendered.extensions_mut()));
        extensions.insert(rejection);
        *rendered.extensions_mut() = extensions;
        rendered.map(Body::whole)
    }
}
