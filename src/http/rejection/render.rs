//! The closure of a layer that renders its refusals.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::Response;

use super::Rejection;

/// Renders the refusals of a layer: with a closure, or by [`Rejection::to_response`].
#[derive(Clone, Default)]
pub(crate) struct Renderer(Option<Render>);

type Render = Arc<dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync>;

impl Renderer {
    pub(crate) fn new<B: Into<Bytes>>(
        render: impl Fn(&Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(move |rejection| {
            render(rejection).map(Into::into)
        })))
    }

    /// Logs and renders a refusal. The response has the refusal as an extension, whatever the
    /// closure has made.
    pub(crate) fn render(&self, rejection: &Rejection) -> Response<Bytes> {
        rejection.log();
        let Some(render) = &self.0 else {
            return rejection.to_response();
        };
        let mut response = render(rejection);
        response.extensions_mut().insert(rejection.clone());
        response
    }
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Renderer(custom)",
            None => "Renderer(default)",
        })
    }
}
