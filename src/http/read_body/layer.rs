use std::marker::PhantomData;

use tower_layer::Layer;

use super::{AnyBody, ReadBody, SameBody};

/// Reads the whole body of each request, up to a limit, before the inner service is called.
///
/// In front of a [`DistributedLockLayer`](crate::DistributedLockLayer), only complete requests
/// contend: a slow upload holds no key, and an HTTP/1 server notices a client that goes away while
/// its request waits or its handler runs.
///
/// A body over this limit, or over a limit further out, is refused with 413 as soon as that is
/// known. A body that breaks off is refused with 400. Trailers are not kept. Key functions further
/// in find the body as [`WholeBody`](super::WholeBody).
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
pub struct ReadBodyLayer<M = SameBody> {
    limit: usize,
    body: PhantomData<M>,
}

impl ReadBodyLayer {
    /// Reads bodies of up to `limit` bytes.
    ///
    /// ```
    /// use tower_distributed_lock::ReadBodyLayer;
    ///
    /// let layer = ReadBodyLayer::new(64 * 1024); // a body of 65,537 bytes is refused with 413
    /// ```
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            body: PhantomData,
        }
    }

    /// Gives the inner service a [`gate::Body`](crate::gate::Body). Default: the same type of body,
    /// which must implement `From<Bytes>`, as axum's does and hyper's `Incoming` does not.
    ///
    /// ```
    /// use tower_distributed_lock::ReadBodyLayer;
    ///
    /// // For a service that hyper calls directly: the inner service takes a `gate::Body<Incoming>`.
    /// let layer = ReadBodyLayer::new(64 * 1024).any_body();
    /// ```
    pub fn any_body(self) -> ReadBodyLayer<AnyBody> {
        ReadBodyLayer {
            limit: self.limit,
            body: PhantomData,
        }
    }
}

impl<S, M> Layer<S> for ReadBodyLayer<M> {
    type Service = ReadBody<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        ReadBody {
            inner,
            limit: self.limit,
            body: PhantomData,
        }
    }
}
