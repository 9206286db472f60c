//! The layer and its options.

use std::{sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{SingleFlight, flights::Flights};
use crate::{Locks, defaults::single_flight as defaults, http::opaque::Opaque, key::DeriveKey};

/// Runs one of several equal safe requests at a time, in the whole fleet; the others wait for its
/// answer and get a copy.
///
/// For an expensive answer that many clients request in the same moment: a cache that went cold, a
/// dashboard that all users open at nine. Two requests are equal if they have the same method and
/// the same key. The key must contain everything that the answer depends on: the path, the query,
/// the language, and above all the tenant or user.
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// # use axum::{Router, routing::get};
/// # use tower_distributed_lock::{Locks, SingleFlightLayer, key};
/// # let locks = Locks::in_memory();
/// let report = key::name("report")
///     .header("x-tenant-id")
///     .path()
///     .from_fn("query", |request| Some(request.uri.query()?.into()))
///     .optional();
/// let app: Router = Router::new()
///     .route("/reports/{id}", get(|| async { "expensive" }))
///     .route_layer(SingleFlightLayer::new(locks, report));
/// ```
///
/// # When to use which
///
/// | you want | use |
/// |---|---|
/// | that a burst of equal reads costs one | this layer |
/// | that an answer serves for minutes, is revalidated or invalidated | a cache, filled behind this layer |
/// | that one write happens at a time | [`DistributedLockLayer`](crate::DistributedLockLayer) |
/// | that a write that is sent twice happens once | [`IdempotencyLayer`](crate::IdempotencyLayer) |
///
/// # Shared answers
///
/// Each answer, errors included, is shared with the requests that waited for it, except answers to
/// the headers of one client (206, 304, 412 and 416), event streams, and answers that are marked as
/// `private`, `no-store` or `Vary: *` ([`share_uncacheable`](Self::share_uncacheable)). Later
/// requests get successful answers only, and only with [`keep_for`](Self::keep_for). Headers of one
/// exchange (see [`never_replay`](crate::IdempotencyLayer::never_replay)) are not part of a copy.
///
/// A request runs by itself if its method is not safe, the store cannot be reached, the answer is not shared, is too large or does not end in time,
/// or the running request fails without an answer or takes longer than [`wait`](Self::wait). The running request runs to its end although
/// its client goes away.
///
/// The requests of one process wait together, whatever their number:
/// [`longest_line`](crate::LocksBuilder::longest_line) does not limit them. After several flights
/// of one key in a moment, which the store still has the answers of, each process has its own
/// flights.
///
/// **A read after a write may get an older answer.** A request that comes while an equal one runs
/// gets that one's answer, which may have been read from the database before the write of the same
/// client. Leave out such requests by the key ([`only_when`](crate::key::RequestKey::only_when)),
/// or put what the write has changed, such as a version, into the key.
///
/// # Where to put it
///
/// Further in than authentication, whose user or tenant is part of the key, and further in than
/// CORS: a copy has none of the headers that CORS adds for one origin, so that a CORS layer further
/// in would answer the first client only. Further in than compression as well, unless the key
/// contains `Accept-Encoding`.
///
/// | option | default |
/// |---|---|
/// | [`keep_for`](Self::keep_for) | not at all |
/// | [`wait`](Self::wait) | 10 s |
/// | [`max_response`](Self::max_response) | 1 MiB |
/// | [`read_within`](Self::read_within) | 5 s |
/// | [`share_uncacheable`](Self::share_uncacheable) | no |
#[doc(alias = "debounce")]
#[doc(alias = "dedupe")]
#[derive(Debug, Clone)]
#[must_use]
pub struct SingleFlightLayer {
    settings: Arc<Settings>,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) key: Opaque<dyn DeriveKey>,
    pub(super) flights: Arc<Flights>,
    pub(super) keep_for: Duration,
    pub(super) wait: Duration,
    pub(super) max_response: usize,
    pub(super) read_within: Duration,
    pub(super) share_uncacheable: bool,
}

impl SingleFlightLayer {
    /// Shares the answers to requests of equal keys, by `locks`.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_distributed_lock::{Locks, SingleFlightLayer, key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = ServiceBuilder::new()
    ///     .layer(SingleFlightLayer::new(Locks::in_memory(), key::name("report").path()))
    ///     .service_fn(async |_: Request<Full<Bytes>>| {
    ///         Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("expensive")))
    ///     });
    /// let response = service.oneshot(Request::get("/reports/7").body(Full::default())?).await?;
    /// assert!(response.status().is_success());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(locks: Locks, key: impl DeriveKey) -> Self {
        Self {
            settings: Arc::new(Settings {
                locks,
                key: Opaque(Arc::new(key)),
                flights: Arc::default(),
                keep_for: Duration::ZERO,
                wait: defaults::WAIT,
                max_response: defaults::MAX_RESPONSE,
                read_within: defaults::READ_WITHIN,
                share_uncacheable: false,
            }),
        }
    }

    /// How long a successful answer (2xx) serves requests that come later. Default: not at all.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, SingleFlightLayer, key};
    ///
    /// // A small cache: an answer serves all requests of the next five seconds.
    /// let layer = SingleFlightLayer::new(Locks::in_memory(), key::name("report").path())
    ///     .keep_for(Duration::from_secs(5));
    /// ```
    pub fn keep_for(self, duration: Duration) -> Self {
        self.set(|settings| settings.keep_for = duration)
    }

    /// How long a request waits for the running one, before it runs itself. Default: 10 s.
    ///
    /// A limit a little above the usual time of the handler keeps a slow run from delaying all
    /// requests behind it.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = limit)
    }

    /// The largest answer that is shared, in bytes. Default: 1 MiB.
    ///
    /// A larger answer goes to its own client only, and the requests that waited run by themselves.
    pub fn max_response(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_response = bytes)
    }

    /// How long an answer's body may take to end. A slower answer is not shared. Default: 5 s.
    pub fn read_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.read_within = limit)
    }

    /// Shares answers also if they are marked as `private` or `no-store` (`Cache-Control`), or as
    /// `Vary: *`. Default: such an answer goes to its own client only, and the requests that waited
    /// run by themselves.
    ///
    /// For services that mark all answers like this, to keep them out of the caches of others. The
    /// key must contain the user or tenant.
    ///
    /// ```
    /// use tower_distributed_lock::{Locks, SingleFlightLayer, key};
    ///
    /// let layer = SingleFlightLayer::new(Locks::in_memory(), key::name("report").header("x-user-id").path())
    ///     .share_uncacheable();
    /// ```
    pub fn share_uncacheable(self) -> Self {
        self.set(|settings| settings.share_uncacheable = true)
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for SingleFlightLayer {
    type Service = SingleFlight<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let settings = self.settings.clone();
        SingleFlight { inner, settings }
    }
}
