//! The options of a layer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method};

use super::{
    fingerprint::{Comparison, Fingerprint},
    header::{IDEMPOTENCY_KEY, Source},
    policy::{Answered, DecideOnError, Keep},
    recall::Recall,
    record::{Answer, Outcome},
};
use crate::{
    Locks,
    defaults::idempotency as defaults,
    http::opaque::Opaque,
    key::DeriveKey,
    locks::{Holding, Wait},
};

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
    pub(super) keep_errors: Vec<DecideOnError>,
    pub(super) max_running: Option<usize>,
    pub(super) recall: Option<Opaque<Recall>>,
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
            source: Source::Header(IDEMPOTENCY_KEY),
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
            recall: None,
        }
    }

    /// How long a claim is held.
    pub(super) fn holding(&self) -> Holding {
        let mut holding = self.holding;
        if self.at_most_once {
            holding.lease = Some(self.retain);
        }
        holding
    }

    /// The fingerprint of a claim's lease.
    pub(super) fn claimed(&self, fingerprint: Fingerprint) -> Bytes {
        let alive = self.retain.saturating_sub(self.locks.usual_lease());
        fingerprint.to_claim(self.at_most_once.then_some(alive))
    }

    /// The record of an answer, and how long it is kept. An answer that is too large is not kept.
    pub(super) fn record_of(&self, answer: &Answer, fingerprint: Fingerprint) -> (Bytes, Duration) {
        let outcome = if answer.body.len() > self.max_response {
            Outcome::NotKept
        } else {
            Outcome::Answer(Box::new(answer.clone()))
        };
        (outcome.encode(fingerprint), self.retain)
    }
}
