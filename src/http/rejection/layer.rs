//! One place for how refusals look.
//!
//! ```text
//! request ──▶ note(&Parts) = T ──▶ inner service ──▶ response with a Rejection? ──▶ render(&Rejection, &T)
//!                                                                         └─ no ──▶ unchanged
//! ```

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::Rejection;
use crate::http::{
    gate::{Body, ResponseFuture},
    opaque::Opaque,
};

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
#[derive(Debug, Clone)]
#[must_use]
pub struct RejectionLayer {
    begin: Opaque<Begin>,
}

/// Notes what is needed of a request, and makes the closure that renders its refusal.
type Begin = dyn Fn(&Parts) -> Render + Send + Sync;
type Render = Box<dyn FnOnce(&Rejection) -> Response<Bytes> + Send>;

impl RejectionLayer {
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
    pub fn new<T: Send + 'static, B: Into<Bytes>>(
        note: impl Fn(&Parts) -> T + Send + Sync + 'static,
        render: impl Fn(&Rejection, &T) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let render = Arc::new(render);
        let begin = move |parts: &Parts| -> Render {
            let (noted, render) = (note(parts), render.clone());
            Box::new(move |rejection| render(rejection, &noted).map(Into::into))
        };
        let begin = Opaque(Arc::new(begin) as Arc<Begin>);
        Self { begin }
    }
}

impl<S> Layer<S> for RejectionLayer {
    type Service = RenderRejections<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let begin = self.begin.clone();
        RenderRejections { inner, begin }
    }
}

/// A service whose refusals are rendered in one place. See [`RejectionLayer`].
#[derive(Debug, Clone)]
pub struct RenderRejections<S> {
    inner: S,
    begin: Opaque<Begin>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RenderRejections<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send + 'static>,
{
    type Response = Response<Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let render = (self.begin)(&parts);
        let handling = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture::run(async move { Ok(rendered(handling.await?, render)) })
    }
}

/// The response, rendered if it is a refusal.
fn rendered<B>(response: Response<B>, render: Render) -> Response<Body<B>> {
    let Some(rejection) = response.extensions().get::<Rejection>().cloned() else {
        return response.map(Body::inner);
    };
    let mut rendered = render(&rejection);
    // Layers further out read the refusal, and what the handler has said of its answer.
    let mut extensions = response.into_parts().0.extensions;
    extensions.extend(mem::take(rendered.extensions_mut()));
    extensions.insert(rejection);
    *rendered.extensions_mut() = extensions;
    rendered.map(Body::whole)
}
