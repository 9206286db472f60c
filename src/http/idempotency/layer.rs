//! The layer and its options.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response, request};
use tower_layer::Layer;

use super::{
    Idempotency,
    header::Source,
    policy::{Answered, Keep},
    settings::Settings,
};
use crate::{
    Locks,
    key::DeriveKey,
    locks::Wait,
    read_body::{AnyBody, SameBody},
    rejection::{Rejection, Renderer},
};

/// Runs each request that has an `Idempotency-Key` once, and gives its answer to all that have the same.
///
/// As in the IETF draft "The Idempotency-Key HTTP Header Field" (07):
///
/// | the request | gets |
/// |---|---|
/// | is the first with its key | the handler's answer, which is kept for [`retain`](Self::retain) |
/// | comes later | the kept answer, with `Idempotent-Replayed: true` |
/// | comes while the first runs | the same, after waiting for it; 409 after [`wait`](Self::wait) |
/// | has the key of another request (method, host, path, query, content type or body differ) | 422 |
/// | has a key that is no key | 400 |
/// | has none | no special treatment, or 400 if [`required`](Self::required) |
///
/// # What is promised
///
/// A request that a living process began is not begun again while the store can be reached. After a crash it runs again when the lease
/// is over.
///
/// The first request's handler runs as a task of its own, under a renewed lease: its client's going away does not cancel it. Its
/// answer is stored, and the lease ended, in one step, before the client gets it. A handler that takes longer than
/// [`max_hold`](crate::LocksBuilder::max_hold), or whose lease is lost otherwise, may see the same request run beside it; of two
/// answers, the one that is stored first stays.
///
/// # What is kept
///
/// Whatever may have acted is kept, or leaves a *tombstone*: a record that the request was begun and that its outcome is not known. The
/// reason of an outcome counts before its status.
///
/// | outcome | kept | the retry gets | because |
/// |---|---|---|---|
/// | 2xx, 3xx, 402 | yes | the same answer | the work was done, or declined for good |
/// | 5xx but 503 | yes | the same answer | the handler may have acted before it failed |
/// | a panic | as a 500 | [handler-panicked](crate::rejection#handler-panicked) | the same |
/// | other 4xx, 503 | no | its own run | they say that nothing was done |
/// | 408 | tombstone | 409 [outcome-unknown](crate::rejection#outcome-unknown) | a timeout has cancelled the handler somewhere |
/// | the inner service's `call` fails | tombstone | 409 outcome-unknown | there is no answer, and the handler had begun |
/// | the inner service does not become ready | no | its own run | the handler has not begun |
/// | a layer further in refuses the request | no | its own run | the handler has not begun, whatever status the refusal has |
/// | a layer further in has lost its lock | tombstone | 409 outcome-unknown | the handler was cancelled somewhere |
/// | an answer that is too large, endless or breaks off | its tombstone | 409 [answer-not-kept](crate::rejection#answer-not-kept) | it was done, and cannot be given again |
/// | the process ends on the way | no | its own run, when the lease is over | nobody is left who could tell |
///
/// A handler that is one transaction, which an error rolls back, is better served by [`Keep::only_success`].
///
/// # The scope
///
/// Two tenants with the same `Idempotency-Key` must not see each other's answers. So the key is looked up within a
/// *scope*, derived from the request like a lock's key, and there is no default for it:
/// [`key::extension`](crate::key::extension) for a tenant that an authentication layer has set is the first choice. If all clients
/// really are one, say so: `key::name("everybody")`.
///
/// # Where to put it
///
/// Authentication, then idempotency, then locks, from the outside in: an answer that is given again takes no lock.
///
/// - **Compression** belongs outside: inside, the compressed bytes are kept, and given again to a client that may not accept them.
/// - **A body limit** belongs outside too, and stays 413. axum's `DefaultBodyLimit` only counts for extractors, so
///   [`max_request`](Self::max_request) is the limit that this layer reads by.
/// - **A timeout** that answers 408 or fails belongs outside to cut the wait short and let the handler finish, and inside to cancel the
///   handler, which leaves a tombstone.
/// - **Task-locals** that a layer further out has set are not there in the handler, which is a task of its own. The tracing span is.
///
/// # How much is kept
///
/// A record is the answer, its headers and about 50 bytes; of an answer over [`max_response`](Self::max_response) only the 50 bytes. So
/// the store needs room for: requests with a key per second × [`retain`](Self::retain) × the size of an answer, at most `max_response`.
/// 10 requests per second with answers of 1 KiB take about 900 MB in 24 h. Each record's size is logged at debug level
/// (`idempotency.stored`), with its scope: what one tenant takes can be summed up from there, and limited with
/// [`max_running`](Self::max_running) and a rate limit. On Redis, `maxmemory-policy noeviction` is a must.
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
/// | [`on_rejection`](Self::on_rejection) | `application/problem+json` |
#[derive(Debug, Clone)]
#[must_use]
pub struct IdempotencyLayer<M = SameBody> {
    settings: Arc<Settings>,
    body: PhantomData<M>,
}

impl IdempotencyLayer {
    /// Keeps answers in the store of `locks`, under the `Idempotency-Key` within the scope that `scope` derives from
    /// each request.
    pub fn new(locks: Locks, scope: impl DeriveKey) -> Self {
        Self {
            settings: Arc::new(Settings::new(locks, Arc::new(scope))),
            body: PhantomData,
        }
    }

    /// Gives the inner service a [`RequestBody`](crate::read_body::RequestBody). Default: the same type of body, which has to be one that
    /// can be made from [`Bytes`], as axum's can, and hyper's `Incoming` and tonic's cannot.
    pub fn any_body(self) -> IdempotencyLayer<AnyBody> {
        IdempotencyLayer {
            settings: self.settings,
            body: PhantomData,
        }
    }
}

impl<M> IdempotencyLayer<M> {
    /// Never runs a request again that was begun, not even after the process that ran it has crashed: the claim itself stays for as long
    /// as a record would ([`retain`](Self::retain)). Whoever sends the request again gets 409 for all of that time, and a person has to find
    /// out what became of it. Default: after a crash, the request runs again once the lease is over.
    pub fn at_most_once(self) -> Self {
        self.set(|settings| settings.at_most_once = true)
    }

    /// How long the store keeps the claim of a process that has crashed; see [`LocksBuilder::lease`](crate::LocksBuilder::lease). A lease that
    /// cannot work is answered with 500, and the log says why. Default: that of the [`Locks`].
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.holding.lease = Some(lease))
    }

    /// How long a request may run before its claim counts as lost; see [`LocksBuilder::max_hold`](crate::LocksBuilder::max_hold). Default: that
    /// of the [`Locks`].
    pub fn max_hold(self, longest: Duration) -> Self {
        self.set(|settings| settings.holding.max_hold = Some(longest))
    }

    /// Takes the key from this header, such as `x-github-delivery` or `webhook-id`, in the form of an `Idempotency-Key`. Default:
    /// `Idempotency-Key`.
    pub fn key_header(self, name: HeaderName) -> Self {
        self.set(|settings| settings.source = Source::Header(name))
    }

    /// Takes the key from wherever a closure finds it in the request: at most 255 bytes, not empty; `None` where the request has none.
    /// Default: the header `Idempotency-Key`.
    pub fn key_from(
        self,
        find: impl Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.source = Source::Computed(Arc::new(find)))
    }

    /// Compares these headers too. Default: method, host, path, query, content type and body tell one request from another; of a
    /// multipart body the boundary does not count.
    pub fn compare_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = names.into_iter().collect();
        self.set(|settings| settings.comparison.headers.extend(names))
    }

    /// Compares JSON bodies by their values: whitespace, the order of members and escapes do not count; numbers count as they are
    /// written. Default: every byte counts.
    #[cfg(feature = "json")]
    pub fn compare_json_values(self) -> Self {
        self.set(|settings| settings.comparison.json_values = true)
    }

    /// Compares what a closure makes of a request and its body, and nothing else: not even method and path.
    pub fn fingerprint_with<B: Into<Bytes>>(
        self,
        fingerprint: impl Fn(&request::Parts, &[u8]) -> B + Send + Sync + 'static,
    ) -> Self {
        let own = move |parts: &request::Parts, body: &[u8]| fingerprint(parts, body).into();
        self.set(|settings| settings.comparison.own = Some(Arc::new(own)))
    }

    /// Headers of an answer that are not given again, besides the usual ones: those of one connection (RFC 9110's and
    /// `Content-Length`, `Alt-Svc`), of one request (`Date`, `Age`, `Via`, `X-Request-Id`, `X-Correlation-Id`, `Request-Id`, `Traceparent`,
    /// `Tracestate`, `Server-Timing`), of one client (`Set-Cookie`, `WWW-Authenticate`) and of one origin (`Access-Control-*`).
    pub fn never_replay(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = names.into_iter().collect();
        self.set(|settings| settings.never_replayed.extend(names))
    }

    /// How long an answer is kept. Default: 24 hours.
    pub fn retain(self, retain: Duration) -> Self {
        self.set(|settings| settings.retain = retain)
    }

    /// The methods that are looked at. Default: POST and PATCH; the others are idempotent by themselves.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.set(|settings| settings.methods = methods)
    }

    /// Refuses requests that have no `Idempotency-Key`, with 400. Default: they pass straight through.
    ///
    /// Requests out of scope need none: those that the scope says [`NoLock`](crate::key::Derived::NoLock) for, and those without a
    /// route.
    pub fn required(self) -> Self {
        self.set(|settings| settings.required = true)
    }

    /// Takes the draft's form of the header only, a string in double quotes. Default: bare values too, as most clients
    /// send them.
    pub fn strict(self) -> Self {
        self.set(|settings| settings.strict = true)
    }

    /// How long a request waits for one with the same key that is under way, before it gets 409. Default: 5 s.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = Wait::AtMost(limit))
    }

    /// Answers 409 at once while a request with the same key is under way. Default: waits 5 s for its answer.
    pub fn reject_if_running(self) -> Self {
        self.set(|settings| settings.wait = Wait::NotAtAll)
    }

    /// The largest request body, which is read before anything else happens; a larger one gets 413. Default: 1 MiB.
    pub fn max_request(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_request = bytes)
    }

    /// The largest response body that is kept. Of a larger one only the fact is kept: a request that is sent again gets 409, and does
    /// not run again; the log says so. Default: 1 MiB.
    pub fn max_response(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_response = bytes)
    }

    /// How long to try to store an answer when the store does not answer. Then the client gets it all the same, marked
    /// `Idempotency-Stored: unknown` (or `false`, where the store has refused it). Default: 5 s.
    pub fn store_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.store_within = limit)
    }

    /// How long a response's body may take to end, so that it can be kept. One that takes longer goes out from there on as it comes,
    /// and of it only the fact is kept, as of one that is too large; the log says so. Default: 5 s.
    ///
    /// The body goes out when it has been read, so this is also how long a stream is held back at most. Server-sent events
    /// (`text/event-stream`) are neither held back nor kept.
    pub fn read_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.read_within = limit)
    }

    /// How many requests of one scope may be under way in this process, by all layers that have a limit and use the same store;
    /// one more gets 429. Default: no limit.
    pub fn max_running(self, requests: usize) -> Self {
        self.set(|settings| settings.max_running = Some(requests))
    }

    /// What `Retry-After` says, where a later try makes sense. Default: 1 s.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.retry_after = after)
    }

    /// Which answers are kept. A handler can say otherwise for its own answer, with a [`Keep`] among its response's extensions.
    /// Default: [`Keep::by_status`]; [`Keep::only_success`] is for handlers that are one transaction.
    ///
    /// ```
    /// # use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    /// # let (locks, tenant) = (Locks::in_memory(), key::header("x-tenant-id"));
    /// let layer = IdempotencyLayer::new(locks, tenant).keep(|answer| match answer.status().as_u16() {
    ///     409 => Keep::Yes, // here it means: done already
    ///     _ => Keep::by_status(answer),
    /// });
    /// ```
    pub fn keep(self, policy: impl Fn(&Answered<'_>) -> Keep + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.keep = Arc::new(policy))
    }

    /// Renders this layer's refusals in one's own way; for those of all layers there is
    /// [`RejectionLayer`](crate::rejection::RejectionLayer). Default: [`Rejection::to_response`].
    pub fn on_rejection<B: Into<Bytes>>(
        self,
        render: impl Fn(&Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.renderer = Renderer::new(render))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S, M> Layer<S> for IdempotencyLayer<M> {
    type Service = Idempotency<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.settings.clone())
    }
}
