use bytes::Bytes;
use http::Response;
use tower_layer::Layer;

use super::ReadBody;
use crate::rejection::{Rejection, Renderer};

/// Reads the whole body of each request, up to a limit, before it goes on.
///
/// In front of a [`DistributedLockLayer`](crate::DistributedLockLayer), so that a request contends only once
/// it is complete: an upload that trickles in holds no key, and an HTTP/1 server notices a client that goes away while
/// its request waits or its handler runs.
///
/// A body over the limit is refused with 413, as soon as that is known; one that breaks off, with 400. Trailers are not kept.
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// # use axum::{Router, routing::post};
/// # use tower_distributed_lock::{DistributedLockLayer, Locks, ReadBodyLayer, key};
/// # let locks = Locks::in_memory();
/// let app: Router = Router::new()
///     .route("/orders/{id}", post(|body: String| async { body }))
///     .route_layer(DistributedLockLayer::new(locks, key::name("order").param("id")))
///     .route_layer(ReadBodyLayer::new(64 * 1024)); // the later layer is the outer one
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ReadBodyLayer {
    limit: usize,
    renderer: Renderer,
}

impl ReadBodyLayer {
    /// Reads bodies of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            renderer: Renderer::default(),
        }
    }

    /// Renders this layer's refusals in one's own way; for those of all layers there is
    /// [`RejectionLayer`](crate::rejection::RejectionLayer). Default: [`Rejection::to_response`].
    pub fn on_rejection<B: Into<Bytes>>(
        mut self,
        render: impl Fn(&Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.renderer = Renderer::new(render);
        self
    }
}

impl<S> Layer<S> for ReadBodyLayer {
    type Service = ReadBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReadBody::new(inner, self.limit, self.renderer.clone())
    }
}
