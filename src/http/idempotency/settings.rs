//! The options of a layer, and the claim of a request.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response, request};

use super::{
    fingerprint::{Comparison, Fingerprint, Silence},
    header::Source,
    kept::KeptByScope,
    policy::{Answered, ErrorPolicy, Keep},
    scope::{self, Counted},
};
use crate::{
    LockKey, Locks,
    key::{self, DeriveKey, Derived},
    locks::{Holding, Wait},
    rejection::{Asked, Reason, Rejection, Renderer, RequestId, grpc},
};

/// The first part of the keys of idempotent requests, which keeps them apart from plain locks.
const LABEL: &str = "idempotency";

/// The request's `Idempotency-Key`: a request extension, and with the feature `axum` an extractor.
///
/// ```
/// use tower_distributed_lock::idempotency::IdempotencyKey;
///
/// // With axum. A handler that also serves requests without a key takes an `Option<IdempotencyKey>`.
/// async fn pay(key: IdempotencyKey) -> String {
///     format!("paid, by the request {key}") // for the payment provider, which has idempotency keys too
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The key as text, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Policy = Arc<dyn Fn(&Answered<'_>) -> Keep + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) scope: Arc<dyn DeriveKey>,
    pub(super) retain: Duration,
    pub(super) holding: Holding,
    pub(super) at_most_once: bool,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) strict: bool,
    pub(super) source: Source,
    pub(super) comparison: Comparison,
    pub(super) never_replayed: Vec<HeaderName>,
    pub(super) wait: Wait,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) retry_after: Duration,
    pub(super) store_within: Duration,
    pub(super) read_within: Duration,
    pub(super) keep: Policy,
    pub(super) keep_errors: Vec<ErrorPolicy>,
    pub(super) max_running: Option<usize>,
    pub(super) kept: Arc<KeptByScope>,
    pub(super) renderer: Renderer,
}

/// The claim of a request that has a key.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) key: LockKey,
    pub(super) scope: LockKey,
    pub(super) name: IdempotencyKey,
    pub(super) asked: Asked,
    /// How long the request waits for a running request with the same key.
    pub(super) wait: Wait,
}

impl Settings {
    pub(super) fn new(locks: Locks, scope: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            scope,
            retain: Duration::from_secs(24 * 3600),
            holding: Holding::default(),
            at_most_once: false,
            methods: vec![Method::POST, Method::PATCH],
            required: false,
            strict: false,
            source: Source::default(),
            comparison: Comparison::default(),
            never_replayed: Vec::new(),
            wait: Wait::AtMost(Duration::from_secs(5)),
            max_request: 1024 * 1024,
            max_response: 1024 * 1024,
            retry_after: Duration::from_secs(1),
            store_within: Duration::from_secs(5),
            read_within: Duration::from_secs(5),
            keep: Arc::new(Keep::by_status),
            keep_errors: Vec::new(),
            max_running: None,
            kept: Arc::default(),
            renderer: Renderer::default(),
        }
    }

    /// How long a claim is held.
    pub(super) fn holding(&self) -> Holding {
        match self.at_most_once {
            true => Holding {
                lease: Some(self.retain),
                ..self.holding
            },
            false => self.holding,
        }
    }

    /// The fingerprint of a claim's lease.
    pub(super) fn claimed(&self, fingerprint: Fingerprint) -> Bytes {
        let silence = self
            .at_most_once
            .then(|| Silence::new(self.retain, self.locks.usual_lease()));
        fingerprint.to_claim(silence)
    }

    /// The request's claim; `None` if the request passes straight through.
    ///
    /// The scope counts before the header: a request out of scope, or without a route, needs no key.
    pub(super) fn claim(&self, parts: &mut request::Parts) -> Result<Option<Claim>, Rejection> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        if let Err(error) = self.locks.check_holding(self.holding()) {
            return Err(Rejection::misconfigured(error.to_string()));
        }
        let name = self.source.read(parts, self.strict);
        if matches!(name, Ok(None)) && !(self.required && key::may_have_route(parts)) {
            return Ok(None);
        }
        let scope = match self.scope.derive(parts) {
            Ok(Derived::NoLock | Derived::NoRoute) => return Ok(None),
            Ok(Derived::Key(scope)) => Ok(scope),
            Ok(Derived::Keys(_)) => Err(Rejection::misconfigured(
                "the scope of an idempotency layer is one key, not several".into(),
            )),
            Err(error) => Err(Rejection::from_key_error(error)),
        };
        let name = match name {
            Ok(Some(name)) => IdempotencyKey(name.into()),
            Ok(None) => {
                return Err(Rejection::new(
                    Reason::MissingIdempotencyKey,
                    format!("the request has no {}, and needs one", self.source.name()),
                ));
            }
            Err(detail) => return Err(Rejection::new(Reason::BadIdempotencyKey, detail)),
        };
        match scope {
            Ok(scope) => {
                RequestId::give(&mut parts.extensions);
                Ok(Some(Claim {
                    key: key::scoped(LABEL, &scope, name.as_str()),
                    scope,
                    name,
                    asked: Asked::by(parts),
                    wait: self.wait_of(parts),
                }))
            }
            Err(rejection) => Err(rejection.with_idempotency_key(&name)),
        }
    }

    /// A gRPC request waits no longer than its own deadline.
    fn wait_of(&self, parts: &request::Parts) -> Wait {
        match (self.wait, grpc::timeout(&parts.headers)) {
            (Wait::AtMost(wait), Some(deadline)) => Wait::AtMost(wait.min(deadline)),
            (wait, _) => wait,
        }
    }

    /// Counts the request, whose body was read, among the requests of the scope that are under way in this process.
    pub(super) fn enter(&self, claim: &Claim) -> Result<Counted, Rejection> {
        let counted = scope::enter(&self.locks, &claim.scope, self.max_running);
        counted.ok_or_else(|| {
            let detail = "too many requests of this client are under way";
            Rejection::new(Reason::TooManyRunning, detail)
                .with_idempotency_key(&claim.name)
                .with_retry_after(self.retry_after)
        })
    }

    pub(super) fn render(&self, rejection: Rejection, asked: Asked) -> Response<Bytes> {
        self.renderer.render(&rejection.to(asked))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("locks", &self.locks)
            .field("retain", &self.retain)
            .field("methods", &self.methods)
            .field("required", &self.required)
            .field("strict", &self.strict)
            .field("source", &self.source)
            .field("comparison", &self.comparison)
            .field("never_replayed", &self.never_replayed)
            .field("wait", &self.wait)
            .field("max_request", &self.max_request)
            .field("max_response", &self.max_response)
            .field("retry_after", &self.retry_after)
            .field("store_within", &self.store_within)
            .field("read_within", &self.read_within)
            .field("max_running", &self.max_running)
            .finish_non_exhaustive()
    }
}
