//! The fingerprint of a request: a digest that differs between different requests with the same Idempotency-Key.
//!
//! | the part | by default |
//! |---|---|
//! | method, host, path, query | count |
//! | content type | counts, without the boundary of a multipart body |
//! | body | every byte counts; JSON by value with `compare_json_values` |
//! | other headers | do not count, unless named with `compare_headers` |

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, header, request::Parts};
use sha2::{Digest, Sha256};

use super::multipart::Multipart;
use crate::key::original_uri;

/// A digest of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; Self::LEN]);

impl Fingerprint {
    pub(crate) const LEN: usize = 32;
    /// The fingerprint of work that is identified by its key alone.
    pub(crate) const NONE: Self = Self([0; Self::LEN]);

    /// A second fingerprint of work that is identified by its key alone.
    pub(crate) const ONES: Self = Self([1; Self::LEN]);

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

/// A digest of parts. The length of each part comes first: no part can run into the next. An absent part differs from an empty one.
#[derive(Default)]
struct Parts256(Sha256);

impl Parts256 {
    fn part(&mut self, part: Option<&[u8]>) {
        let len = part.map_or(u64::MAX, |part| part.len() as u64);
        self.0.update(len.to_be_bytes());
        self.0.update(part.unwrap_or_default());
    }

    fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}

type Own = Arc<dyn Fn(&Parts, &[u8]) -> Bytes + Send + Sync>;

/// Which parts of a request count.
#[derive(Clone, Default)]
pub(super) struct Comparison {
    /// Headers that count besides the content type.
    pub(super) headers: Vec<HeaderName>,
    /// Whether JSON bodies are compared by value.
    #[cfg(feature = "json")]
    pub(super) json_values: bool,
    /// A closure of the program, which replaces all of this.
    pub(super) own: Option<Own>,
}

impl Comparison {
    /// The fingerprint of a request with this body.
    pub(super) fn fingerprint(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let mut digest = Parts256::default();
        if let Some(own) = &self.own {
            digest.part(Some(&own(parts, body)));
            return digest.finish();
        }
        let uri = original_uri(parts);
        digest.part(Some(parts.method.as_str().as_bytes()));
        digest.part(host(parts).as_deref().map(str::as_bytes));
        digest.part(Some(uri.path().as_bytes()));
        digest.part(uri.query().map(str::as_bytes));
        for name in &self.headers {
            let values = parts.headers.get_all(name).iter();
            let values: Vec<_> = values.map(|value| value.as_bytes()).collect();
            digest.part(Some(&values.len().to_be_bytes()));
            values.iter().for_each(|value| digest.part(Some(value)));
        }
        self.body(&mut digest, parts, body);
        digest.finish()
    }

    fn body(&self, digest: &mut Parts256, parts: &Parts, body: &[u8]) {
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.as_bytes());
        if let Some(form) = content_type.and_then(Multipart::read) {
            // A client that tries again may choose another boundary.
            digest.part(Some(b"multipart"));
            digest.part(Some(form.media_type.as_bytes()));
            for (name, value) in &form.parameters {
                digest.part(Some(name.as_bytes()));
                digest.part(Some(value.as_bytes()));
            }
            digest.part(None);
            for part in form.parts(body) {
                digest.part(part.is_err().then_some(b"after the last delimiter"));
                digest.part(Some(part.unwrap_or_else(|after| after)));
            }
            return;
        }
        digest.part(content_type);
        #[cfg(feature = "json")]
        if self.json_values
            && let Some(values) = super::json::canonical(body)
        {
            digest.part(Some(b"json"));
            return digest.part(Some(values.as_bytes()));
        }
        digest.part(None);
        digest.part(Some(body));
    }
}

/// The host that the request was sent to, in lower case.
fn host(parts: &Parts) -> Option<String> {
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    let sent = || parts.headers.get(header::HOST)?.to_str().ok();
    authority.or_else(sent).map(str::to_ascii_lowercase)
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison")
            .field("headers", &self.headers)
            .field("own", &self.own.is_some())
            .finish_non_exhaustive()
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
        Comparison::default().fingerprint(&parts, body.as_bytes())
    }

    #[test]
    fn every_part_counts_and_no_part_runs_into_the_next() {
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
            of("POST", "http://one/a", Some("b"), "c"),
            of("POST", "http://two/a", Some("b"), "c"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
        assert_eq!(all[0], of("POST", "/a", Some("b"), "c"));
        assert_eq!(all[10], of("POST", "http://ONE/a", Some("b"), "c"));
    }

    #[test]
    fn the_boundary_of_a_multipart_body_does_not_count() {
        let multipart = |kind: &str, boundary: &str, value: &str| {
            let content_type = format!("multipart/{kind}; boundary={boundary}");
            let body = format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
            );
            of("POST", "/a", Some(&content_type), &body)
        };
        let form = |boundary: &str, value: &str| multipart("form-data", boundary, value);
        assert_eq!(form("one", "5"), form("two", "5"));
        assert_eq!(form("one", "5"), multipart("Form-Data", "one", "5"));
        assert_ne!(form("one", "5"), multipart("mixed", "one", "5"));
        assert_ne!(form("one", "5"), form("one", "6"));
        // A boundary in the content cannot hide a difference, wherever it is in a line.
        for content in ["--", "a --", "\r\n--", "a\r\n--", "\n--"] {
            let form = |boundary: &str| form(boundary, &format!("{content}{boundary}; b"));
            assert_ne!(form("one"), form("two"), "{content:?}");
        }
        // A boundary may have a semicolon in it.
        let quoted = |name: &str, value: &str| {
            let content_type = format!("multipart/mixed; boundary=\"{name};1\"");
            let body = format!("--{name};1\r\n\r\n{value}\r\n--{name};1--\r\n");
            of("POST", "/a", Some(&content_type), &body)
        };
        assert_eq!(quoted("one", "5"), quoted("two", "5"));
        assert_ne!(quoted("one", "5\r\n--one"), quoted("two", "5\r\n--two"));
        // The boundary of one attempt may be in the content of both.
        assert_eq!(form("one", "5 --one"), form("two", "5 --one"));
        // Other parameters count.
        let start = |start: &str| {
            let content_type = format!("multipart/related; boundary=x; start={start}");
            of("POST", "/a", Some(&content_type), "--x\r\n\r\n5\r\n--x--")
        };
        assert_ne!(start("a"), start("b"));
    }

    #[cfg(feature = "json")]
    #[test]
    fn a_body_that_is_no_json_differs_from_all_json() {
        let by_value = Comparison {
            json_values: true,
            ..Comparison::default()
        };
        let (parts, ()) = http::Request::post("/a").body(()).unwrap().into_parts();
        let json = br#"{"b": 1, "a": [true]}"#;
        let canonical = super::super::json::canonical(json).unwrap();
        assert_ne!(
            by_value.fingerprint(&parts, json),
            by_value.fingerprint(&parts, canonical.as_bytes())
        );
    }
}
