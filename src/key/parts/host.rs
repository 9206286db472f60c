//! The host that a request is for.

use std::borrow::Cow;

use http::{header, request::Parts, uri::Authority};

use super::header as one_header;
use crate::key::{KeyError, KeyErrorKind};

/// The host, from the URI (HTTP/2, or HTTP/1 in absolute form) or the `Host` header, `None` when
/// there is neither.
pub(super) fn read(parts: &Parts) -> Result<Option<Cow<'_, str>>, KeyError> {
    let sent = one_header::read(&parts.headers, &header::HOST)?;
    let from_header = match sent {
        None => None,
        Some("") => Some(Cow::Borrowed("")),
        Some(text) => Some(canonical_text(text)?.into()),
    };
    let from_uri = parts.uri.authority().map(canonical).transpose()?;
    match (from_uri, from_header) {
        (Some(uri), Some(header)) if uri != header => Err(KeyError::new(
            KeyErrorKind::Doubled,
            "the host in the request's URI is not the one in its `host` header",
        )),
        (Some(uri), _) => Ok(Some(uri.into())),
        (None, header) => Ok(header),
    }
}

/// The one form of a host that was written as text.
pub(super) fn canonical_text(text: &str) -> Result<String, KeyError> {
    canonical(&Authority::try_from(text).map_err(|_| malformed())?)
}

/// In lower case, without port and without the root's dot: one host has one form.
fn canonical(authority: &Authority) -> Result<String, KeyError> {
    // User names in an authority have been used to make one host look like another.
    if authority.as_str().contains('@') {
        return Err(malformed());
    }
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    Ok(host.to_ascii_lowercase())
}

fn malformed() -> KeyError {
    KeyError::new(KeyErrorKind::Malformed, "the request's host is not a host")
}
