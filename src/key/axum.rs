//! The matched route and its parameters, from axum.
//!
//! The extensions that a router adds to a request, tried with axum 0.8.9 in
//! `tests/keys/placement.rs`:
//!
//! | the layer is | `OriginalUri` | `MatchedPath` | nested path kept for an inner router |
//! |---|---|---|---|
//! | in a router (`layer`, `route_layer`, nested), and a route matched, also for a 405 | yes | yes | no |
//! | in a router (`layer`, also nested with `nest`), and the request is a 404 | yes | no | no |
//! | on a service of `nest_service`, before a route is matched, or without a match | yes | no | yes |
//! | around a router (`ServiceBuilder`) | no | no | no |
//!
//! These extensions distinguish a request without a route from a layer in the wrong place. In doubt
//! (the third line), the layer counts as misplaced: a 500 instead of a 404 is a nuisance, a request
//! without its lock is worse.

use std::sync::LazyLock;

use ::axum::{
    Extension, Router,
    body::Body,
    extract::{
        FromRequestParts, MatchedPath, OriginalUri, RawPathParams,
        rejection::RawPathParamsRejection,
    },
    routing::get,
};
use futures_util::FutureExt;
use http::{Request, Uri, request::Parts};
use tower_service::Service;

use super::{KeyError, KeyErrorKind};

/// The route that a router matched, with its parameters.
pub(super) struct MatchedRoute {
    path: MatchedPath,
    params: RawPathParams,
}

impl MatchedRoute {
    /// The route of this request, `None` when there is none for it.
    ///
    /// # Errors
    ///
    /// No router has seen the request, or it has a parameter that axum's `Path` would refuse as
    /// well.
    pub(super) fn of(parts: &mut Parts) -> Result<Option<Self>, KeyError> {
        let Some(path) = parts.extensions.get::<MatchedPath>().cloned() else {
            return match original_uri(parts) {
                None => Err(around_a_router()),
                Some(_) if is_in_nest_service(parts) => Err(in_nest_service()),
                Some(_) => Ok(None),
            };
        };
        let params = params(parts)?;
        Ok(Some(Self { path, params }))
    }

    /// The route of this request, `None` when none was matched, for whatever reason.
    pub(super) fn if_matched(parts: &mut Parts) -> Result<Option<Self>, KeyError> {
        match parts.extensions.get::<MatchedPath>() {
            Some(_) => Self::of(parts),
            None => Ok(None),
        }
    }

    pub(super) fn pattern(&self) -> &str {
        self.path.as_str()
    }

    /// The parameter as the handler's `Path` sees it, `None` when the route has no such parameter.
    pub(super) fn param(&self, name: &str) -> Result<Option<&str>, KeyError> {
        let mut values = self.params.iter().filter(|(key, _)| *key == name);
        let first = values.next().map(|(_, value)| value);
        match values.next() {
            None => Ok(first),
            Some(_) => Err(KeyError::misconfigured(format!(
                "the route `{}` has two path parameters `{name}`: rename one of them",
                self.pattern()
            ))),
        }
    }
}

/// The parameters by axum's own extractor, so that key and handler always agree. The extractor
/// never waits: one poll finishes it.
fn params(parts: &mut Parts) -> Result<RawPathParams, KeyError> {
    match RawPathParams::from_request_parts(parts, &()).now_or_never() {
        Some(Ok(params)) => Ok(params),
        Some(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => Err(KeyError::new(
            KeyErrorKind::Malformed,
            "a path parameter is not UTF-8",
        )),
        Some(Err(_)) | None => Err(KeyError::misconfigured(
            "the router left no path parameters with the request: has a layer removed its extensions?",
        )),
    }
}

pub(super) fn original_uri(parts: &Parts) -> Option<&Uri> {
    parts.extensions.get::<OriginalUri>().map(|uri| &uri.0)
}

fn around_a_router() -> KeyError {
    KeyError::misconfigured(
        "the key needs the matched route, which is not known around a router: \
         add the lock's layer with `Router::route_layer`, after the routes it is for",
    )
}

fn in_nest_service() -> KeyError {
    KeyError::misconfigured(
        "the key needs the matched route, and a service of `nest_service` has matched none: \
         add the lock's layer with `Router::route_layer` to the router that has the route",
    )
}

/// Whether `nest_service` has left the path it is at for an inner router.
///
/// The path is in an extension that is private to axum. A router puts that path before its own
/// routes, so a probe router makes it visible. The copy of the extensions is affordable: only
/// requests without a route get here.
fn is_in_nest_service(parts: &Parts) -> bool {
    static PROBE: LazyLock<Router> = LazyLock::new(|| {
        Router::new().route("/", get(|path| async { Extension::<MatchedPath>(path) }))
    });

    let mut request = Request::new(Body::empty());
    *request.extensions_mut() = parts.extensions.clone();
    match PROBE.clone().call(request).now_or_never() {
        Some(Ok(response)) => {
            let path = response.extensions().get::<MatchedPath>();
            path.is_none_or(|path| path.as_str() != "/")
        }
        None => true,
    }
}
