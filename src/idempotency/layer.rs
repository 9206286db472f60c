//! The layer and its options.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, response};
use tower_layer::Layer;

use super::{Idempotency, scope::Scopes, settings::Settings};
use crate::{
    Locks,
    key::DeriveKey,
    locks::Wait,
    rejection::{Rejection, Renderer},
};

/// Runs each request that has an `Idempotency-Key` once, and gives its answer to all that have the same.
///
/// As in the IETF draft "The Idempotency-Key HTTP Header Field" (07), and as Stripe does where that is silent:
///
/// | the request | gets |
/// |---|---|
/// | is the first with its key | the handler's answer, which is kept for [`retain`](Self::retain) |
/// | comes later | the kept answer, with `Idempotent-Replayed: true` |
/// | comes while the first runs | the same, after waiting for it; 409 after [`wait`](Self::wait) |
/// | has the key of another request (method, path, query, content type or body differ) | 422 |
/// | has a key that is no key | 400 |
/// | has none | no special treatment, or 400 if [`required`](Self::required) |
///
/// The first request's handler runs as a task of its own, under a renewed lease: its client's going away does not
/// cancel it. Its answer is stored, and the lease ended, in one step, before the client gets it. If the process
/// crashes in between, a request that is sent again runs again, once the lease has passed; so it does beside a handler that
/// takes longer than [`max_hold`](crate::LocksBuilder::max_hold), or whose lease is lost otherwise. Of two answers, the
/// one that is stored first stays.
///
/// Only what may have changed something is kept ([`keep_if`](Self::keep_if)): 2xx, 3xx and 402. After anything else
/// the key is free again.
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
/// | option | default |
/// |---|---|
/// | [`retain`](Self::retain) | 24 h |
/// | [`methods`](Self::methods) | POST and PATCH |
/// | [`required`](Self::required), [`strict`](Self::strict) | no |
/// | [`wait`](Self::wait), [`reject_if_running`](Self::reject_if_running) | waits 5 s, then 409 |
/// | [`max_request`](Self::max_request), [`max_response`](Self::max_response) | 1 MiB each |
/// | [`store_within`](Self::store_within) | 5 s |
/// | [`max_running`](Self::max_running) | no limit |
/// | [`retry_after`](Self::retry_after) | 1 s |
/// | [`keep_if`](Self::keep_if) | 2xx, 3xx, 402 |
/// | [`on_rejection`](Self::on_rejection) | `application/problem+json` |
#[derive(Debug, Clone)]
#[must_use]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
}

impl IdempotencyLayer {
    /// Keeps answers in the store of `locks`, under the `Idempotency-Key` within the scope that `scope` derives from
    /// each request.
    pub fn new(locks: Locks, scope: impl DeriveKey) -> Self {
        Self {
            settings: Arc::new(Settings::new(locks, Arc::new(scope))),
        }
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

    /// The largest response body that is kept. Of a larger one, of one that is streamed and of one with trailers only the
    /// fact is kept: a request that is sent again gets 409, and does not run again. Default: 1 MiB.
    pub fn max_response(self, bytes: usize) -> Self {
        self.set(|settings| settings.max_response = bytes)
    }

    /// How long to try to store an answer when the store does not answer. Then the client gets it all the same, marked
    /// `Idempotency-Stored: unknown` (or `false`, where the store has refused it). Default: 5 s.
    pub fn store_within(self, limit: Duration) -> Self {
        self.set(|settings| settings.store_within = limit)
    }

    /// How many requests of one scope may be under way in this process; one more gets 429. Default: no limit.
    pub fn max_running(self, requests: usize) -> Self {
        self.set(|settings| settings.scopes = Scopes::limited(requests))
    }

    /// What `Retry-After` says, where a later try makes sense. Default: 1 s.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.retry_after = after)
    }

    /// Which answers are kept. A handler can overrule it with [`Keep`](super::Keep). Default: those of status 2xx, 3xx and 402. The
    /// other 4xx come from before the business was run, and after a 5xx one should be able to try again.
    pub fn keep_if(
        self,
        policy: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.keep = Arc::new(policy))
    }

    /// Renders refusals in one's own way. Default: [`Rejection::to_response`].
    pub fn on_rejection(
        self,
        render: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.renderer = Renderer::new(render))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.settings.clone())
    }
}
