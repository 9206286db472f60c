//! The options of a layer.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response};

use super::{
    fingerprint::{Comparison, Fingerprint, Silence},
    header::Source,
    policy::{Answered, ErrorPolicy, Keep},
};
use crate::{
    Locks,
    defaults::idempotency as defaults,
    http::opaque::Opaque,
    key::DeriveKey,
    locks::{Holding, Wait},
    rejection::{Asked, Rejection, Renderer},
};

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
pub struct IdempotencyKey(pub(super) Arc<str>);

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

type Policy = dyn Fn(&Answered<'_>) -> Keep + Send + Sync;

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) scope: Opaque<dyn DeriveKey>,
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
    pub(super) keep: Opaque<Policy>,
    pub(super) keep_errors: Vec<ErrorPolicy>,
    pub(super) max_running: Option<usize>,
    pub(super) renderer: Renderer,
}

impl Settings {
    pub(super) fn new(locks: Locks, scope: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            scope: Opaque(scope),
            retain: defaults::RETAIN,
            holding: Holding::default(),
            at_most_once: false,
            methods: vec![Method::POST, Method::PATCH],
            required: false,
            strict: false,
            source: Source::default(),
            comparison: Comparison::default(),
            never_replayed: Vec::new(),
            wait: Wait::AtMost(defaults::WAIT),
            max_request: defaults::MAX_REQUEST,
            max_response: defaults::MAX_RESPONSE,
            retry_after: defaults::RETRY_AFTER,
            store_within: defaults::STORE_WITHIN,
            read_within: defaults::READ_WITHIN,
            keep: Opaque(Arc::new(Keep::by_status)),
            keep_errors: Vec::new(),
            max_running: None,
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

    pub(super) fn render(&self, rejection: Rejection, asked: Asked) -> Response<Bytes> {
        self.renderer.render(&rejection.to(asked))
    }
}
