//! The layer and its options.

use std::{error::Error as StdError, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, Method, request};
use tower_layer::Layer;

use super::{
    Claim, Idempotency, Recalled,
    header::Source,
    policy::{Answered, Keep, on_error},
    settings::Settings,
};
use crate::{
    Locks,
    http::opaque::Opaque,
    key::DeriveKey,
    locks::Wait,
    read_body::{AnyBody, SameBody},
};

/// Runs each request with an `Idempotency-Key` once, and answers its duplicates with the same
/// response.
///
/// As in the IETF draft "The Idempotency-Key HTTP Header Field" (07):
///
/// | the request | gets |
/// |---|---|
/// | is the first with its key | the handler's answer, which is kept for [`retain`](Self::retain) |
/// | comes later | the kept answer, with `Idempotent-Replayed: true` |
/// | comes while the first runs | the same, as soon as the first has ended; 409 after [`wait`](Self::wait) |
/// | has the key of another request (method, host, path, query, content type or body differ) | 422, which names the parts that differ |
/// | has a malformed key | 400 |
/// | has no key | no special treatment, or 400 if [`required`](Self::required) |
///
/// # The promise
///
/// A request that a living process began is not begun again while the store can be reached and
/// keeps its data. A Redis server that restarts without an append-only file forgets claims and
/// records, and the next retry runs the handler a second time; the store warns about such a server
/// (`redis.forgets`). After a crash the request runs again when the lease is over,
/// unless [`at_most_once`](Self::at_most_once) is set: then the claim itself stays for as long as a
/// record would. With [`recall`](Self::recall), the program's own database answers in all these
/// cases: [exactly once](crate::guide::exactly_once).
///
/// The first request's handler runs as a separate task, under a renewed lease: a client that goes
/// away does not cancel the handler. The answer is stored, and the lease ended, in one step, before
/// the client gets the answer. While a handler outlasts
/// [`max_hold`](crate::LocksBuilder::max_hold), or after its lease was lost otherwise, another
/// process may run the same request; of two answers, the one that is stored first stays.
///
/// # Kept answers
///
/// The answer of a handler that may have acted is kept, or a *tombstone*: a record which says that
/// the request was begun, and that its outcome is not known. The reason of an outcome counts before
/// its status.
///
/// | outcome | kept | the retry gets | because |
/// |---|---|---|---|
/// | 2xx, 3xx, 402 | yes | the same answer | the work was done, or declined for good |
/// | 5xx but 503 | yes | the same answer | the handler may have acted before it failed |
/// | a panic | as a 500 | [handler-panicked](crate::rejection#handler-panicked) | the same |
/// | other 4xx, 503 | no | its own run | these statuses say that nothing was done |
/// | 408 | tombstone | 409 [outcome-unknown](crate::rejection#outcome-unknown) | a timeout has cancelled the handler somewhere |
/// | the inner service's `call` fails | tombstone, or as [`keep_error`](Self::keep_error) says | 409 outcome-unknown | there is no answer, and the handler had begun |
/// | the inner service does not become ready | no | its own run | the handler has not begun |
/// | a layer further in refuses the request | no | its own run | the handler has not begun, whatever status the refusal has |
/// | a layer further in has lost its lock | tombstone | 409 outcome-unknown | the handler was cancelled somewhere |
/// | the handler returns an [`Error`](crate::Error) of the locks, or the refusal of a service that it has called | tombstone, or as an answer if the policy keeps the status | 409 outcome-unknown, or the same answer | the handler may have acted before; see [`nothing_done`](crate::rejection::Rejection::nothing_done) |
/// | an answer that is too large, endless or breaks off | its tombstone | 409 [answer-not-kept](crate::rejection#answer-not-kept) | the work was done, and its answer cannot be replayed |
/// | the process crashes | no | its own run, when the lease is over | no process knows the outcome |
///
/// For a handler that is one transaction, [`Keep::unless_rolled_back`] lets nothing but a confirmed
/// rollback free the key. A COMMIT that fails may have committed, and is a tombstone.
///
/// # The scope
///
/// Two tenants with the same `Idempotency-Key` must not see each other's answers. The key is
/// therefore looked up within a *scope*, which is derived from the request like a lock's key. The
/// scope has no default: [`extension`](crate::key::RequestKey::extension) for a tenant that an
/// authentication layer has set is the first choice. For a service with a single client, use
/// `key::name("everybody")`.
///
/// # Where to put it
///
/// Authentication, then idempotency, then locks, from the outside in: a replay takes no lock.
///
/// - **Compression** belongs outside: inside, the compressed bytes are kept, and replayed to
///   clients that may not accept them.
/// - **A body limit** belongs outside too, and stays 413. axum's `DefaultBodyLimit` applies to
///   extractors only; this layer reads bodies up to [`max_request`](Self::max_request).
/// - **A timeout** outside cuts the client's wait short, and the handler finishes. A timeout inside
///   cancels the handler at an unknown point. Let it answer 408, which leaves a tombstone, or 504,
///   which is kept. With 503, which says that nothing was done, the retry would run the handler
///   again: `TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, ..)`.
/// - **Load shedding** belongs inside: this layer is always ready. Behind an error handler, its 503
///   frees the key; its error `Overloaded` does so with [`keep_error`](Self::keep_error).
/// - **Task-locals** of layers further out are missing in the handler, which is a separate task.
///   The tracing span is carried over.
///
/// # How much is kept
///
/// A record is the answer's body and headers, and about 70 bytes more. The record of an answer over
/// [`max_response`](Self::max_response) has only those 70 bytes. The bound for a store is
/// therefore:
///
/// > requests with a key per second × [`retain`](Self::retain) × (`max_response` + headers + 70
/// > bytes + the store's overhead for a key)
///
/// Ten requests per second, kept for 24 h, are 864,000 records. With answers of 1 KiB they take
/// about 1 GB; with answers of the default `max_response` of 1 MiB, 900 GB. Lower `max_response` to
/// the size of real answers, and put a rate limit per tenant outside of the layer.
///
/// There is no hard limit: a process knows only its own records, and refusing a payment by such a
/// count would be wrong more often than right. To see which scope takes the room, sum up the event
/// `idempotency.stored` (at debug level, with the scope and the record's bytes), or list the keys
/// of the store. On Redis, `maxmemory-policy noeviction` is a must.
///
/// # Options
///
/// | option | default |
/// |---|---|
/// | [`key_header`](Self::key_header), [`key_from`](Self::key_from) | the header `Idempotency-Key` |
/// | [`compare_headers`](Self::compare_headers), [`fingerprint_with`](Self::fingerprint_with) | method, host, path, query, content type, body |
/// | [`never_replay`](Self::never_replay) | headers of one connection, request, client or origin |
/// | [`retain`](Self::retain) | 24 h |
/// | [`at_most_once`](Self::at_most_once) | no: after a crash a request runs again once its lease is over |
/// | [`lease`](Self::lease), [`max_hold`](Self::max_hold) | those of the [`Locks`] |
/// | [`methods`](Self::methods) | POST and PATCH |
/// | [`required`](Self::required), [`strict`](Self::strict) | no |
/// | [`wait`](Self::wait), [`reject_if_running`](Self::reject_if_running) | waits 5 s, then 409 |
/// | [`max_request`](Self::max_request), [`max_response`](Self::max_response) | 1 MiB each |
/// | [`read_within`](Self::read_within), [`store_within`](Self::store_within) | 5 s each |
/// | [`max_running`](Self::max_running) | no limit |
/// | [`retry_after`](Self::retry_after) | 1 s |
/// | [`keep`](Self::keep) | [`Keep::by_status`] |
/// | [`keep_error`](Self::keep_error) | every error of the inner service is a tombstone |
/// | [`recall`](Self::recall) | the store alone knows what was done |
///
/// # Example
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = ServiceBuilder::new()
///     .layer(IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id")))
///     .service_fn(async |_: Request<Full<Bytes>>| {
///         Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("paid")))
///     });
///
/// let payment = || {
///     Request::post("/payments")
///         .header("x-tenant-id", "acme")
///         .header("idempotency-key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
///         .body(Full::<Bytes>::from("100 EUR"))
/// };
/// let first = service.clone().oneshot(payment()?).await?;
/// assert!(!first.headers().contains_key("idempotent-replayed"));
/// let again = service.oneshot(payment()?).await?;
/// assert_eq!(again.headers()["idempotent-replayed"], "true");
/// # Ok(())
/// # }
/// ```
#[doc(alias = "exactly-once")]
#[doc(alias = "dedupe")]
#[derive(Debug, Clone)]
#[must_use]
pub struct IdempotencyLayer<M = SameBody> {
    settings: Arc<Settings>,
    body: PhantomData<M>,
}

impl IdempotencyLayer {
    /// Keeps answers in the store of `locks`, under the `Idempotency-Key` within the scope that
    /// `scope` derives from each request.
    pub fn new(locks: Locks, scope: impl DeriveKey) -> Self {
        locks.expect_records();
        Self {
            settings: Arc::new(Settings::new(locks, Arc::new(scope))),
            body: PhantomData,
        }
    }

    /// Gives the inner service a [`gate::Body`](crate::gate::Body). Default: the same type of body,
    /// which must implement `From<Bytes>`, as axum's does, and hyper's `Incoming` and tonic's
    /// do not.
    pub fn any_body(self) -> IdempotencyLayer<AnyBody> {
        IdempotencyLayer {
            settings: self.settings,
            body: PhantomData,
        }
    }
}

impl<M> IdempotencyLayer<M> {
    /// Never begins a request twice, not even after a crash of the process that ran the request:
    /// the claim itself stays for as long as a record would ([`retain`](Self::retain)).
    /// Default: after a crash, the request runs again once the lease is over.
    ///
    /// While the process lives, it extends the claim as often as any lease. Once it has not done so
    /// for the time of a lease ([`LocksBuilder::lease`](crate::LocksBuilder::lease)),
    /// duplicates get 409 [outcome-unknown](crate::rejection#outcome-unknown), which is
    /// not retryable; the admin page marks the claim, and the metric
    /// `distributed_lock_idempotency_total` counts them as `unknown`. A person finds out how
    /// the request ended, and then writes its answer ([`Locks::settle`]) or lets it run again
    /// ([`Locks::force_release`]).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // A payout that may have happened is never sent again by itself. After a crash, a person decides within a week.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .at_most_once()
    ///     .retain(Duration::from_secs(7 * 24 * 3600));
    /// ```
    pub fn at_most_once(self) -> Self {
        self.set(|settings| settings.at_most_once = true)
    }

    /// How long the store keeps the claim of a process that has crashed; see
    /// [`LocksBuilder::lease`](crate::LocksBuilder::lease). A lease that cannot work is
    /// answered with 500, and the log says why. Default: that of the [`Locks`].
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.holding.lease = Some(lease))
    }

    /// How long a request may run before its claim counts as lost; see
    /// [`LocksBuilder::max_hold`](crate::LocksBuilder::max_hold). Default: that
    /// of the [`Locks`].
    pub fn max_hold(self, longest: Duration) -> Self {
        self.set(|settings| settings.holding.max_hold = Some(longest))
    }

    /// Takes the key from this header, such as `x-github-delivery` or `webhook-id`, in the form of
    /// an `Idempotency-Key`. Default: `Idempotency-Key`.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // GitHub sends a webhook again with the same delivery id.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::name("github"))
    ///     .key_header(HeaderName::from_static("x-github-delivery"));
    /// ```
    pub fn key_header(self, name: HeaderName) -> Self {
        self.set(|settings| settings.source = Source::Header(name))
    }

    /// Takes the key from the request with a closure: at most 255 bytes, not empty; `None` for a
    /// request without a key. Default: the header `Idempotency-Key`.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // PUT /orders/<id chosen by the client>
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .key_from(|request| Some(request.uri.path().strip_prefix("/orders/")?.to_owned()));
    /// ```
    pub fn key_from(
        self,
        find: impl Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.source = Source::Computed(Opaque(Arc::new(find))))
    }

    /// Compares these headers too. Default: method, host, path, query, content type and body are
    /// compared; the port of the host, and the boundary of a multipart body, are not.
    ///
    /// ```
    /// use http::header;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // A retry in another language would get an answer in the first one: refuse the retry with 422 instead.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .compare_headers([header::ACCEPT_LANGUAGE]);
    /// ```
    pub fn compare_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = names.into_iter().collect();
        self.set(|settings| settings.comparison.headers.extend(names))
    }

    /// Compares only the bytes that a closure makes from a request and its body. Nothing else
    /// counts, not even method and path.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // A client adds the time of sending in the last line of each body, which must not count.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .fingerprint_with(|request, body| {
    ///         let end = body.iter().rposition(|byte| *byte == b'\n').unwrap_or(body.len());
    ///         [request.uri.path().as_bytes(), &body[..end]].concat()
    ///     });
    /// ```
    pub fn fingerprint_with<B: Into<Bytes>>(
        self,
        fingerprint: impl Fn(&request::Parts, &[u8]) -> B + Send + Sync + 'static,
    ) -> Self {
        let own = move |parts: &request::Parts, body: &[u8]| fingerprint(parts, body).into();
        self.set(|settings| settings.comparison.own = Some(Opaque(Arc::new(own))))
    }

    /// Adds headers that a replay leaves out. Always left out are those of one connection (RFC
    /// 9110's and `Content-Length`, `Alt-Svc`), of one request (`Date`, `Age`, `Via`,
    /// `X-Request-Id`, `X-Correlation-Id`, `Request-Id`, `Traceparent`, `Tracestate`,
    /// `Server-Timing`), of one client (`Set-Cookie`, `WWW-Authenticate`) and of one origin
    /// (`Access-Control-*`).
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .never_replay([HeaderName::from_static("x-ratelimit-remaining")]);
    /// ```
    pub fn never_replay(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = names.into_iter().collect();
        self.set(|settings| settings.never_replayed.extend(names))
    }

    /// How long an answer is kept. Default: 24 h.
    pub fn retain(self, retain: Duration) -> Self {
        self.set(|settings| settings.retain = retain)
    }

    /// The methods that the layer handles. Default: POST and PATCH; the other methods are
    /// idempotent by themselves.
    ///
    /// ```
    /// use http::Method;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .methods([Method::POST, Method::PATCH, Method::DELETE]);
    /// ```
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.set(|settings| settings.methods = methods)
    }

    /// Refuses requests without an `Idempotency-Key`, with 400. Default: such requests pass
    /// straight through.
    ///
    /// Requests out of scope need no key: those for which the scope is
    /// [`NoLock`](crate::key::Derived::NoLock), and those for which an axum router around this
    /// layer has no route, whatever its fallback does.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .required() // 400 without an `Idempotency-Key`
    ///     .strict(); // 400 for a key without double quotes
    /// ```
    pub fn required(self) -> Self {
        self.set(|settings| settings.required = true)
    }

    /// Accepts only the draft's form of the header, a string in double quotes. Default: also bare
    /// values, which most clients send.
    pub fn strict(self) -> Self {
        self.set(|settings| settings.strict = true)
    }

    /// How long a duplicate waits for the request that runs, before the duplicate gets 409.
    /// Default: 5 s.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = Wait::AtMost(limit))
    }

    /// Answers duplicates with 409 at once while the first request runs. Default: duplicates wait
    /// for 5 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // Clients try again by themselves, after three seconds.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .reject_if_running()
    ///     .retry_after(Duration::from_secs(3));
    /// ```
    pub fn reject_if_running(self) -> Self {
        self.set(|settings| settings.wait = Wait::NotAtAll)
    }

    /// The largest request body. The body is read before the key is claimed; a larger one gets 413.
    /// Default: 1 MiB.
    pub fn max_request(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_request = bytes)
    }

    /// The largest response body that is kept. A larger one leaves a tombstone, and a warning in
    /// the log: duplicates get 409. Default: 1 MiB.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // The answers of this route have a few hundred bytes.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .max_response(4 * 1024)
    ///     .max_request(64 * 1024);
    /// ```
    pub fn max_response(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_response = bytes)
    }

    /// How long to retry to store an answer while the store is away. After that, the client gets
    /// the answer with `Idempotency-Stored: unknown`, or `false` if the store has refused the
    /// record. Default: 5 s.
    pub fn store_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.store_within = limit)
    }

    /// How long a response's body may take to end. A body that takes longer is streamed to the
    /// client from then on, and leaves a tombstone and a warning in the log, like one that is
    /// too large. Default: 5 s.
    ///
    /// A body goes out after it was read to its end, so this is also the longest delay of a stream.
    /// Server-sent events (`text/event-stream`) are neither delayed nor kept.
    pub fn read_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.read_within = limit)
    }

    /// How many requests of one scope may be under way in this process, by all layers that have a
    /// limit and use the same store; one more gets 429. A request counts from the end of its
    /// body on; a time limit for uploads belongs outside of this layer (tower-http's
    /// `RequestBodyTimeoutLayer`). Default: no limit.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
    ///
    /// // One tenant cannot take all capacity: its ninth request at a time gets 429.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id")).max_running(8);
    /// ```
    pub fn max_running(self, requests: usize) -> Self {
        self.set(|settings| settings.max_running = Some(requests))
    }

    /// The value of `Retry-After` in refusals that a later try may avoid. Default: 1 s.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.retry_after = after)
    }

    /// Which answers are kept. A handler overrules the policy for its own answer with a [`Keep`] as
    /// a response extension. Default: [`Keep::by_status`]; [`Keep::unless_rolled_back`] is for
    /// handlers that are one transaction.
    ///
    /// ```
    /// # use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    /// # let (locks, tenant) = (Locks::in_memory(), key::request().header("x-tenant-id"));
    /// let layer = IdempotencyLayer::new(locks, tenant).keep(|answer| match answer.status().as_u16() {
    ///     409 => Keep::Yes, // in this service: done already
    ///     _ => Keep::by_status(answer),
    /// });
    /// ```
    pub fn keep(self, policy: impl Fn(&Answered<'_>) -> Keep + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.keep = Opaque(Arc::new(policy)))
    }

    /// Decides about errors of the type `E` that the inner service's `call` returns, by themselves
    /// or boxed: with [`Keep::No`], the key is free again. Anything else is a tombstone, as
    /// there is no answer to keep. May be called for several types. Default: every error is a
    /// tombstone, because the handler had begun.
    ///
    /// Only for errors that the handler itself does not return: an error of the same type that
    /// comes after the money has moved would free the key as well.
    ///
    /// ```
    /// use tower::load_shed::error::Overloaded;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    ///
    /// // `LoadShedLayer` inside of this layer refuses a request before the handler begins.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .keep_error(|_: &Overloaded| Keep::No);
    /// ```
    pub fn keep_error<E: StdError + 'static>(
        self,
        policy: impl Fn(&E) -> Keep + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.keep_errors.push(on_error(policy)))
    }

    /// Asks the program's own database for the answer of a request that may have been done: before
    /// the handler runs, and before a duplicate gets 409 for a request whose outcome is not known.
    /// With it, a handler whose work is one transaction has its effect **exactly once**, on any
    /// store: after a crash, a COMMIT whose answer was lost, a lost lock, and in spite of a Redis
    /// that has forgotten everything. See [exactly once](crate::guide::exactly_once) for the
    /// table and the handler. Default: the store alone knows what was done.
    ///
    /// | the closure returns | the request |
    /// |---|---|
    /// | an answer | gets it as a replay. The answer is recorded, so later duplicates do not ask |
    /// | an answer with another [fingerprint](super::Claim::fingerprint) | gets 422 |
    /// | `None` | runs; or gets 409, if an earlier one was begun and left a tombstone |
    /// | an error | gets 503 [recall-failed](crate::rejection#recall-failed), with `Retry-After`. The handler does not run |
    ///
    /// The closure runs under the claim, which is renewed meanwhile. It is dropped when the client
    /// goes away.
    ///
    /// ```
    /// # use http::Response;
    /// # struct Row { fingerprint: Vec<u8>, status: u16, body: Vec<u8> }
    /// # #[derive(Clone)]
    /// # struct Database;
    /// # impl Database {
    /// #     async fn find(&self, scope: &str, key: &str) -> Result<Option<Row>, std::io::Error> { Ok(None) }
    /// # }
    /// # let database = Database;
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::{Claim, Recalled}, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .recall(move |claim: Claim| {
    ///         let database = database.clone();
    ///         async move {
    ///             let Some(row) = database.find(claim.scope(), claim.key()).await? else {
    ///                 return Ok(None);
    ///             };
    ///             let answer = Response::builder().status(row.status).body(row.body)?;
    ///             Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Some(Recalled::new(row.fingerprint, answer)))
    ///         }
    ///     });
    /// ```
    #[doc(alias("exactly-once", "transaction", "postgres"))]
    pub fn recall<F, E>(self, find: impl Fn(Claim) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<Recalled>, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let recall = move |claim| {
            let finding = find(claim);
            async move { finding.await.map_err(Into::into) }.boxed()
        };
        self.set(|settings| settings.recall = Some(Opaque(Arc::new(recall))))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S, M> Layer<S> for IdempotencyLayer<M> {
    type Service = Idempotency<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            settings: self.settings.clone(),
            body: PhantomData,
        }
    }
}
