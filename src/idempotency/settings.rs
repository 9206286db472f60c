//! What a layer was told, and what that means for a request.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, request, response};

use super::{header, scope::Scopes};
use crate::{
    LockKey, Locks,
    key::{self, DeriveKey, Derived},
    locks::Wait,
    rejection::{Reason, Rejection, Renderer},
};

/// The label of all keys of idempotent requests, which tells them from plain locks.
const LABEL: &str = "idempotency";

/// A handler's own word on whether its response is kept, among the response's extensions. It overrules the layer's
/// [`keep_if`](super::IdempotencyLayer::keep_if).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Something was changed: a request that is sent again gets this response again.
    Yes,
    /// Nothing was changed: a request that is sent again runs the handler again.
    No,
}

/// The request's `Idempotency-Key`, among its extensions. With the feature `axum` it is an extractor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The key as text, without the quotes that it may have been sent in.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Policy = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) scope: Arc<dyn DeriveKey>,
    pub(super) retain: Duration,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) strict: bool,
    pub(super) wait: Wait,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) retry_after: Duration,
    pub(super) store_within: Duration,
    pub(super) keep: Policy,
    pub(super) scopes: Scopes,
    pub(super) renderer: Renderer,
}

/// A request that is to be run once.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) key: LockKey,
    pub(super) scope: LockKey,
    pub(super) name: IdempotencyKey,
}

impl Settings {
    pub(super) fn new(locks: Locks, scope: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            scope,
            retain: Duration::from_secs(24 * 3600),
            methods: vec![Method::POST, Method::PATCH],
            required: false,
            strict: false,
            wait: Wait::AtMost(Duration::from_secs(5)),
            max_request: 1024 * 1024,
            max_response: 1024 * 1024,
            retry_after: Duration::from_secs(1),
            store_within: Duration::from_secs(5),
            keep: Arc::new(|response| {
                let status = response.status;
                status.is_success() || status.is_redirection() || status == 402
            }),
            scopes: Scopes::default(),
            renderer: Renderer::default(),
        }
    }

    /// What the request claims; `None` if it passes straight through.
    pub(super) fn claim(&self, parts: &mut request::Parts) -> Result<Option<Claim>, Rejection> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let bad = |detail| Rejection::new(Reason::BadIdempotencyKey, detail);
        let Some(name) = header::parse(&parts.headers, self.strict).map_err(bad)? else {
            return match self.required {
                true => Err(bad("the request has no Idempotency-Key, and needs one")),
                false => Ok(None),
            };
        };
        let name = IdempotencyKey(name.into());
        match self.scope.derive(parts) {
            Ok(Derived::Key(scope)) => Ok(Some(Claim {
                key: key::scoped(LABEL, &scope, name.as_str()),
                scope,
                name,
            })),
            Ok(Derived::NoLock | Derived::NoRoute) => Ok(None),
            Err(error) => Err(Rejection::from_key_error(error).with_idempotency_key(&name)),
        }
    }

    pub(super) fn keeps(&self, response: &response::Parts) -> bool {
        match response.extensions.get::<Keep>() {
            Some(keep) => *keep == Keep::Yes,
            None => (self.keep)(response),
        }
    }

    pub(super) fn render(&self, rejection: &Rejection) -> Response<Bytes> {
        self.renderer.render(rejection)
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
            .field("wait", &self.wait)
            .field("max_request", &self.max_request)
            .field("max_response", &self.max_response)
            .field("retry_after", &self.retry_after)
            .field("store_within", &self.store_within)
            .finish_non_exhaustive()
    }
}
