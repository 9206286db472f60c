//! What tells one request from another that has the same Idempotency-Key.

use bytes::Bytes;
use http::{header, request::Parts};
use sha2::{Digest, Sha256};

use crate::key::original_uri;

/// A digest of what a request asks for: method, path, query, content type and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; Self::LEN]);

impl Fingerprint {
    pub(crate) const LEN: usize = 32;
    /// Of what has nothing to tell it apart but its key.
    pub(crate) const NONE: Self = Self([0; Self::LEN]);

    pub(super) fn of(parts: &Parts, body: &[u8]) -> Self {
        let uri = original_uri(parts);
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        Self::of_parts([
            Some(parts.method.as_str().as_bytes()),
            Some(uri.path().as_bytes()),
            uri.query().map(str::as_bytes),
            content_type.map(|value| value.as_bytes()),
            Some(body),
        ])
    }

    /// Each part with its length before it, so that none can end in the next; an absent one is not an empty one.
    fn of_parts<'a>(parts: impl IntoIterator<Item = Option<&'a [u8]>>) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            let len = part.map_or(u64::MAX, |part| part.len() as u64);
            digest.update(len.to_be_bytes());
            digest.update(part.unwrap_or_default());
        }
        Self(digest.finalize().into())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(method: &str, uri: &str, content_type: Option<&str>, body: &str) -> Fingerprint {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Fingerprint::of(&parts, body.as_bytes())
    }

    #[test]
    fn every_part_counts_and_none_runs_into_the_next() {
        let all = [
            of("POST", "/a", Some("b"), "c"),
            of("PATCH", "/a", Some("b"), "c"),
            of("POST", "/b", Some("b"), "c"),
            of("POST", "/a?", Some("b"), "c"),
            of("POST", "/a?q", Some("b"), "c"),
            of("POST", "/aq", Some("b"), "c"),
            of("POST", "/a", None, "bc"),
            of("POST", "/a", Some(""), "bc"),
            of("POST", "/a", Some("bc"), ""),
            of("POST", "/a", Some("b"), "d"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
        assert_eq!(all[0], of("POST", "/a", Some("b"), "c"));
    }
}
