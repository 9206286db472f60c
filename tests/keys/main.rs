//! Lock keys from requests.

mod hostile;
mod outside;
mod parts;
mod properties;
mod whole;

#[cfg(feature = "axum")]
mod agreement;
#[cfg(feature = "axum")]
mod observe;
#[cfg(feature = "axum")]
mod placement;

use http::request::{Builder, Parts};
use tower_distributed_lock::key::{DeriveKey, Derived, KeyErrorKind, RequestKey};

fn parts_of(request: Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

/// The key of this request, which must have one.
fn key_of(key: &RequestKey, request: Builder) -> String {
    match key.derive(&mut parts_of(request)) {
        Ok(Derived::Key(key)) => key.to_string(),
        other => panic!("no key: {other:?}"),
    }
}

/// Why this request, which must have none, has no key.
fn refusal(key: &RequestKey, request: Builder) -> (KeyErrorKind, String) {
    let error = key.derive(&mut parts_of(request)).unwrap_err();
    assert_eq!(
        !error.is_misconfigured(),
        error.kind() != KeyErrorKind::Misconfigured
    );
    (error.kind(), error.to_string())
}
