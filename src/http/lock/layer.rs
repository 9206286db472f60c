//! The layer and its options.

use std::{sync::Arc, time::Duration};

use http::Method;
use tower_layer::Layer;

use super::{
    DistributedLock, OnLoss,
    settings::{Methods, Modes, Settings},
};
use crate::{Locks, key::DeriveKey, locks::Wait};

/// Gives each request the exclusive use of its key, in the whole fleet, for as long as its handler
/// runs.
///
/// Requests can also [share](Self::shared_when_safe) a key, or hold one of several
/// [permits](Self::permits).
///
/// The key is derived from the request ([`key`](crate::key)); requests of equal keys run one after
/// another. Within a process they wait in one line, and only the first of the line asks the store.
/// The handler gets its turn as a [`LockGuard`](crate::LockGuard).
///
/// With axum (the feature `axum`, on by default):
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use axum::{Router, routing::post};
/// use tower_distributed_lock::{DistributedLockLayer, LockGuard, Locks, key};
/// # async fn write(_: String, _: u64) {}
///
/// /// Set by the authentication.
/// #[derive(Clone)]
/// struct User {
///     tenant: u64,
/// }
///
/// async fn transfer(guard: LockGuard, body: String) {
///     write(body, guard.token()).await // a stale writer is refused by its token
/// }
/// # async fn deposit() {}
///
/// let account = key::name("account")
///     .extension_with("tenant", |user: &User| user.tenant)
///     .param("id");
/// let app: Router = Router::new()
///     .route("/accounts/{id}/transfers", post(transfer))
///     .route("/accounts/{id}/deposits", post(deposit))
///     .route_layer(DistributedLockLayer::new(Locks::in_memory(), account));
/// ```
///
/// Around any other service over http:
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_distributed_lock::{DistributedLockLayer, LockGuard, Locks, key, lock::NoGuard};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = ServiceBuilder::new()
///     .layer(DistributedLockLayer::new(Locks::in_memory(), key::name("order").path()))
///     .service_fn(async |request: Request<Full<Bytes>>| {
///         let guard = LockGuard::from_extensions(request.extensions())?;
///         Ok::<_, NoGuard>(Response::new(Full::<Bytes>::from(guard.key().to_string())))
///     });
///
/// let response = service.oneshot(Request::post("/orders/42").body(Full::default())?).await?;
/// # use http_body_util::BodyExt;
/// let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
/// assert_eq!(body.to_bytes(), "order,path=/orders/42");
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// | option | default |
/// |---|---|
/// | [`methods`](Self::methods), [`all_methods`](Self::all_methods) | those that are not safe |
/// | [`shared_when_safe`](Self::shared_when_safe), [`permits`](Self::permits) | one request at a time |
/// | [`max_keys_per_request`](Self::max_keys_per_request) | 64 |
/// | [`wait`](Self::wait), [`reject_if_held`](Self::reject_if_held) | waits 5 s, then 423 |
/// | [`lease`](Self::lease), [`max_hold`](Self::max_hold) | those of the [`Locks`] |
/// | [`on_lease_loss`](Self::on_lease_loss) | the handler is cancelled, 409 |
/// | [`confirm_before_response`](Self::confirm_before_response) | no |
/// | [`hold_until_body_ends`](Self::hold_until_body_ends) | no: until the handler's future ends |
/// | [`detached`](Self::detached) | no: a handler is dropped when its client goes away |
/// | [`fail_open`](Self::fail_open) | no: 503 when the store cannot be reached |
/// | [`retry_after`](Self::retry_after) | 1 s |
/// | [`name`](Self::name) | none |
///
/// # Where to put it
///
/// On axum, `post(handler).route_layer(..)` or `Router::route_layer`: requests without a route do not
/// contend then. Further in than authentication, whose tenant is part of the key; further out than a concurrency limit:
/// the inner service is made ready only once the turn has come, and a waiting request takes no permit.
///
/// `LoadShed` outside of this layer sheds nothing: this layer is always ready, and its requests wait in line instead of in
/// `poll_ready`. Put `LoadShed` inside, around the service with the limited capacity. The length of a line is limited by
/// [`longest_line`](crate::LocksBuilder::longest_line).
///
/// # Mistakes in handlers
///
/// - **Locking the request's own key again.** The request would wait for its own end. In the
///   handler's task, the lock fails at once with [`ErrorKind::Held`](crate::ErrorKind::Held), which
///   is a 500 if the handler returns it; in a task that the handler spawns, the lock waits until
///   its limit. Use the guard, or a clone of the guard.
/// - **Locking a second key.** Two handlers that each hold their layer's key, and lock the other's, wait for each other until a limit
///   ends the wait. Lock both keys in the layer ([`key::all_of`](crate::key::all_of())), or both in the handler
///   ([`lock_all`](crate::Locks::lock_all)).
/// - **Task-locals in a [`detached`](Self::detached) handler.** The handler is a separate task, without the task-locals that layers further
///   out have set. The same holds behind an [`IdempotencyLayer`](crate::IdempotencyLayer). The tracing span is carried over.
///
/// # When a client goes away
///
/// A server that notices a closed connection drops the request's future: a waiting request leaves the line, a running handler is
/// dropped, and the key is freed at once. For handlers that must run to their end there is [`detached`](Self::detached).
///
/// Behind an [`IdempotencyLayer`](crate::IdempotencyLayer), a
/// [`SingleFlightLayer`](crate::SingleFlightLayer) or a detached layer, a handler goes on without
/// its client, in a task that holds the turns of all lock layers further out to its end. A turn
/// that is lost meanwhile cancels such a handler as any other, if the layer of that turn cancels on
/// a loss ([`on_lease_loss`](Self::on_lease_loss)): *to the end although the client goes away* does
/// not mean *although its lock is lost*. The idempotency key of a cancelled handler is left with a
/// tombstone.
///
/// Over HTTP/1, hyper notices a closed connection only after the whole request was read. A small body that comes with the head is
/// read ahead. A larger body that stays unread, because the request waits or the handler ignores it, hides that the client has gone.
/// Such a request waits on and runs to its end. With [`ReadBodyLayer`](crate::ReadBodyLayer) in front, bodies are read before their
/// requests contend.
#[derive(Debug, Clone)]
#[must_use]
pub struct DistributedLockLayer {
    settings: Arc<Settings>,
}

impl DistributedLockLayer {
    /// Locks the key that `key` derives from each request. A key function that derives several keys
    /// ([`key::all_of`](crate::key::all_of()), [`Derived::Keys`](crate::key::Derived::Keys)) has
    /// them locked together, as by [`lock_all`](crate::Locks::lock_all): all or none within one
    /// [`wait`](Self::wait), and released together.
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, LockKey, Locks, key};
    ///
    /// let locks = Locks::in_memory();
    /// // One lock for each order.
    /// let by_order = DistributedLockLayer::new(locks.clone(), key::name("order").path());
    /// // One lock for all requests.
    /// let one_for_all = DistributedLockLayer::new(locks, LockKey::new("import")?);
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn new(locks: Locks, key: impl DeriveKey) -> Self {
        Self {
            settings: Arc::new(Settings::new(locks, Arc::new(key))),
        }
    }

    /// Names the layer, for handlers behind several layers
    /// ([`AllGuards::named`](super::AllGuards::named)). Default: no name.
    ///
    /// Two layers of the same key are one turn. Different keys are locked from the outermost layer
    /// to the innermost, and all are held: nest them in the same order on all routes, or two
    /// requests may wait for each other.
    ///
    /// ```
    /// use tower_distributed_lock::{
    ///     DistributedLockLayer, LockGuard, Locks, key,
    ///     lock::{AllGuards, NoGuard},
    /// };
    ///
    /// let locks = Locks::in_memory();
    /// let tenant = DistributedLockLayer::new(locks.clone(), key::name("tenant").host()).name("tenant");
    /// let order = DistributedLockLayer::new(locks, key::name("order").path()).name("order");
    ///
    /// /// A handler behind both layers.
    /// async fn close_order(guards: AllGuards) -> Result<String, NoGuard> {
    ///     let order: LockGuard = guards.named("order")?;
    ///     Ok(format!("closed, with token {}", order.token()))
    /// }
    /// ```
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        self.set(|settings| settings.name = Some(name))
    }

    /// Locks these methods only; GET stands for HEAD too, which runs the same handler. Default:
    /// those that are not safe (RFC 9110: all methods but GET, HEAD, OPTIONS and TRACE).
    ///
    /// ```
    /// use http::Method;
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("order").path())
    ///     .methods([Method::PUT, Method::DELETE]);
    /// ```
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = Methods::Chosen(methods.into_iter().collect());
        self.set(|settings| settings.methods = methods)
    }

    /// Locks requests of every method. Default: those that are not safe.
    pub fn all_methods(self) -> Self {
        self.set(|settings| settings.methods = Methods::All)
    }

    /// Lets GET and HEAD requests share their key, and gives the key to every other request
    /// exclusively. OPTIONS and TRACE are not locked. Default: safe methods are not locked, all
    /// others are locked exclusively.
    ///
    /// A report that is written by POST is then never read by GET while it is written; and readers
    /// do not wait for each other. The readers of one process share one lease, so that most of
    /// them cost no call to the store. See [`Lock::shared`](crate::Lock::shared).
    #[cfg_attr(feature = "axum", doc = "```")]
    #[cfg_attr(not(feature = "axum"), doc = "```ignore")]
    /// use axum::{Router, routing::get};
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    /// # async fn read() {}
    /// # async fn write() {}
    ///
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("report").param("id"));
    /// let app: Router = Router::new()
    ///     .route("/reports/{id}", get(read).put(write))
    ///     .route_layer(layer.shared_when_safe());
    /// ```
    pub fn shared_when_safe(self) -> Self {
        self.set(|settings| {
            settings.methods = Methods::ReadOrWrite;
            settings.modes = Modes::SharedWhenSafe;
        })
    }

    /// Lets at most `of` requests with equal keys run at a time, in the whole fleet. Requests of
    /// every method count, unless [`methods`](Self::methods) is called afterwards. Default: one
    /// request, of the methods that are not safe.
    ///
    /// To limit the requests of one process, [tower's concurrency
    /// limit](https://docs.rs/tower/latest/tower/limit/concurrency/) is enough. While all permits
    /// are in use, requests wait as for a lock, and are then refused with 429. A limit of zero is
    /// answered with 500, and the log says why. A [`QuorumStore`](crate::store::QuorumStore) has no
    /// permits. See [`Locks::permit`](crate::Locks::permit).
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// // At most four exports run at a time, and at most one for each host.
    /// let locks = Locks::in_memory();
    /// let four = DistributedLockLayer::new(locks.clone(), key::name("exports")).permits(4);
    /// let one_each = DistributedLockLayer::new(locks, key::name("export").host()).permits(1);
    /// ```
    pub fn permits(self, of: u32) -> Self {
        self.set(|settings| {
            settings.methods = Methods::All;
            settings.modes = Modes::Permits(of);
        })
    }

    /// How many different keys a request may have, where a key function derives several
    /// ([`Derived::Keys`](crate::key::Derived::Keys)); a request with more is refused with 400.
    /// Default: 64.
    ///
    /// A client that decides the number of keys could otherwise take all of
    /// [`LocksBuilder::max_keys`](crate::LocksBuilder::max_keys) for itself.
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let both = key::all_of([key::request().query("from").labelled("id"), key::request().query("to").labelled("id")]);
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), both).max_keys_per_request(2);
    /// ```
    pub fn max_keys_per_request(self, limit: usize) -> Self {
        self.set(|settings| settings.max_keys_per_request = limit)
    }

    /// How long a request waits for its turn before it is refused with 423 (429 for
    /// [permits](Self::permits)); a gRPC request no longer than its own deadline (`grpc-timeout`).
    /// Default: 5 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("order").path())
    ///     .wait(Duration::from_millis(500)) // the client rather tries again
    ///     .retry_after(Duration::from_secs(2));
    /// ```
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = Wait::AtMost(limit))
    }

    /// Refuses a request at once, with 423, when its key is held, or with 429 when all
    /// [permits](Self::permits) are in use. Default: waits 5 s.
    ///
    /// A response then goes out only after the key is free in the store: the next request of the
    /// same client is not refused. This wait takes 2 s at most. A turn that goes on, with
    /// another guard or with the body ([`hold_until_body_ends`](Self::hold_until_body_ends)),
    /// is not waited for.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, StatusCode};
    /// use http_body_util::Full;
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Locks::in_memory();
    /// let service = ServiceBuilder::new()
    ///     .layer(DistributedLockLayer::new(locks.clone(), key::name("import")).reject_if_held())
    ///     .service_fn(async |_: Request<Full<Bytes>>| {
    ///         Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    ///     });
    ///
    /// let running = locks.lock("import").await?;
    /// let response = service.oneshot(Request::post("/").body(Full::default())?).await?;
    /// assert_eq!(response.status(), StatusCode::LOCKED);
    /// # drop(running);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reject_if_held(self) -> Self {
        self.set(|settings| settings.wait = Wait::NotAtAll)
    }

    /// How long the store keeps the key of a process that has crashed; see
    /// [`LocksBuilder::lease`](crate::LocksBuilder::lease). Requests of one process that share
    /// a lease have that of the first of them. A lease that cannot work is answered with 500, and
    /// the log says why. Default: that of the [`Locks`].
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.holding.lease = Some(lease))
    }

    /// How long a handler may run before its turn is lost; see
    /// [`LocksBuilder::max_hold`](crate::LocksBuilder::max_hold). Default: that of the
    /// [`Locks`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// // Imports may take an hour. A crashed process keeps its key for ten seconds.
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("import"))
    ///     .max_hold(Duration::from_secs(3600))
    ///     .lease(Duration::from_secs(10));
    /// ```
    pub fn max_hold(self, longest: Duration) -> Self {
        self.set(|settings| settings.holding.max_hold = Some(longest))
    }

    /// The fate of a handler whose lease is lost. Default: [`OnLoss::Cancel`].
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, OnLoss, Locks, key};
    ///
    /// // The handler must not be cut off: the handler checks its guard before each step.
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("import"))
    ///     .on_lease_loss(OnLoss::Finish);
    /// ```
    pub fn on_lease_loss(self, loss: OnLoss) -> Self {
        self.set(|settings| settings.loss = loss)
    }

    /// Confirms the lease in the store before each response, and answers 409 if the lease is not
    /// held any more or the store does not answer. Default: no.
    ///
    /// A short handler ends before any renewal could notice that its key has vanished. The
    /// confirmation costs a round trip before the response. Where the turn ends with the
    /// response, the release is the confirmation.
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("order").path())
    ///     .confirm_before_response();
    /// ```
    pub fn confirm_before_response(self) -> Self {
        self.set(|settings| settings.confirm = true)
    }

    /// Holds the turn until the response's body has ended or was dropped. A lease that is lost
    /// meanwhile ends the body with an error, unless the response is marked as
    /// [`Fenced`](super::Fenced). Default: the turn ends with the handler's future.
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// // An export is computed while its body is sent.
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("export").path())
    ///     .all_methods()
    ///     .hold_until_body_ends();
    /// ```
    pub fn hold_until_body_ends(self) -> Self {
        self.set(|settings| settings.hold_body = true)
    }

    /// Lets requests pass without a lock when the store cannot be reached. Default: they are
    /// refused with 503.
    ///
    /// Only for handlers that may run twice at once without harm. A request that passes in this way
    /// has no guard.
    ///
    /// The first request to a store that hangs waits for the store's time limit (of Redis, 1 s by
    /// default), or for its [`wait`](Self::wait) if that is shorter. From then on, until the
    /// store answers, one request per second asks the store, and all others pass at once.
    ///
    /// A handler behind such a layer takes an `Option<LockGuard>`, because a request that passed
    /// without a lock has no guard:
    ///
    /// ```
    /// use tower_distributed_lock::LockGuard;
    ///
    /// async fn refresh_cache(guard: Option<LockGuard>) -> &'static str {
    ///     match guard {
    ///         Some(_) => "refreshed alone",
    ///         None => "refreshed, perhaps together with another instance",
    ///     }
    /// }
    /// ```
    pub fn fail_open(self) -> Self {
        self.set(|settings| settings.fail_open = true)
    }

    /// The value of `Retry-After` in refusals that a later try may avoid. Default: 1 s; the rest of
    /// a lease says little about when the key will be free.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.retry_after = after)
    }

    /// Runs each handler to its end, as a separate task, although its client goes away. The turn
    /// lasts as long, and so do those of lock layers further out.
    ///
    /// [`Locks::close`] waits for such handlers. A lost lease still cancels them, unless
    /// [`on_lease_loss`](Self::on_lease_loss) of the layer that has lost its lease is
    /// [`OnLoss::Finish`]. A request that waits for its turn is not detached yet.
    ///
    /// ```
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let layer = DistributedLockLayer::new(Locks::in_memory(), key::name("payment").path()).detached();
    /// ```
    pub fn detached(self) -> Self {
        self.set(|settings| settings.detached = true)
    }

    #[cfg(test)]
    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for DistributedLockLayer {
    type Service = DistributedLock<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let settings = self.settings.clone();
        DistributedLock { inner, settings }
    }
}
