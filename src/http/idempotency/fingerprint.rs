//! The fingerprint of a request: a digest that differs between different requests with the same
//! Idempotency-Key.
//!
//! | the part | by default |
//! |---|---|
//! | method, path, query | count |
//! | host | counts, without its port: replicas of a service may have different ports |
//! | content type | counts, without the boundary of a multipart body |
//! | body | every byte counts |
//! | other headers | do not count, unless named with `compare_headers` |
//!
//! ```text
//! digest      32 bytes, of all parts: SHA-256
//! tags        4 bytes of a short hash of each part, which name the parts that differ
//! alive       8 bytes, in the lease of a request that runs at most once: see `to_claim`
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, header, request::Parts};
use sha2::{Digest, Sha256};

use super::multipart::Multipart;
use crate::{http::opaque::Opaque, key::original_uri};

/// A digest of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; Self::LEN]);

/// The parts of a request, in the order of their tags.
#[derive(Debug, Clone, Copy)]
enum Part {
    Method,
    Host,
    Path,
    Query,
    Header,
    ContentType,
    Body,
}

const PARTS: [&str; 7] = [
    "method",
    "host",
    "path",
    "query",
    "header",
    "content type",
    "body",
];
const DIGEST: usize = 32;
const TAG: usize = 4;

impl Fingerprint {
    pub(crate) const LEN: usize = DIGEST + TAG * PARTS.len();
    /// The fingerprint of work that is identified by its key alone.
    pub(crate) const NONE: Self = Self([0; Self::LEN]);

    /// A second fingerprint of work that is identified by its key alone.
    pub(crate) const ONES: Self = Self([1; Self::LEN]);

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The fingerprint of a lease. `alive`: the remaining time below which the request of the lease
    /// counts as abandoned.
    ///
    /// A request that runs at most once has a lease of a day, say, which its process extends to a
    /// full day every few seconds. If less than a day without those seconds is left, the process
    /// has not done that for so long that an ordinary lease would be over.
    pub(super) fn to_claim(self, alive: Option<Duration>) -> Bytes {
        let mut claim = self.0.to_vec();
        if let Some(alive) = alive {
            let millis = u64::try_from(alive.as_millis()).unwrap_or(u64::MAX);
            claim.extend(millis.to_be_bytes());
        }
        claim.into()
    }

    /// Reads the fingerprint of a lease.
    pub(super) fn of_claim(claim: &[u8]) -> Option<(Self, Option<Duration>)> {
        let (fingerprint, alive) = claim.split_at_checked(Self::LEN)?;
        let alive = match alive {
            [] => None,
            millis => Some(Duration::from_millis(u64::from_be_bytes(
                millis.try_into().ok()?,
            ))),
        };
        Some((Self::from_bytes(fingerprint)?, alive))
    }

    /// The names of the parts in which two requests differ. Empty if only the program knows, or a
    /// tag is the same by chance.
    pub(super) fn differences(self, other: Self) -> Vec<&'static str> {
        let tags = |it: &Self| it.0[DIGEST..].to_vec();
        let (one, other) = (tags(&self), tags(&other));
        let tags = one.chunks(TAG).zip(other.chunks(TAG)).zip(PARTS);
        tags.filter(|((one, other), _)| one != other)
            .map(|(_, part)| part)
            .collect()
    }
}

/// A digest of values. The length of each value comes first: no value can run into the next. An
/// absent value differs from an empty one.
#[derive(Default)]
struct Values(Sha256);

impl Values {
    fn add(&mut self, value: Option<&[u8]>) {
        let len = value.map_or(u64::MAX, |value| value.len() as u64);
        self.0.update(len.to_be_bytes());
        self.0.update(value.unwrap_or_default());
    }

    fn finish(self) -> [u8; DIGEST] {
        self.0.finalize().into()
    }
}

/// A digest of parts, each of any number of values.
#[derive(Default)]
struct Digests {
    all: Values,
    tags: [u32; PARTS.len()],
}

impl Digests {
    fn add(&mut self, part: Part, value: Option<&[u8]>) {
        self.all.add(Some(&[part as u8]));
        self.all.add(value);
        // FNV-1a. Absent and empty values differ.
        let tag = &mut self.tags[part as usize];
        for byte in [u8::from(value.is_some())]
            .iter()
            .chain(value.unwrap_or_default())
        {
            *tag = (*tag ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    fn finish(self) -> Fingerprint {
        let mut fingerprint = [0; Fingerprint::LEN];
        let (digest, tags) = fingerprint.split_at_mut(DIGEST);
        digest.copy_from_slice(&self.all.finish());
        for (at, tag) in tags.chunks_mut(TAG).zip(self.tags) {
            at.copy_from_slice(&tag.to_be_bytes());
        }
        Fingerprint(fingerprint)
    }
}

type Own = Opaque<dyn Fn(&Parts, &[u8]) -> Bytes + Send + Sync>;

/// Which parts of a request count.
#[derive(Debug, Clone, Default)]
pub(super) struct Comparison {
    /// Headers that count besides the content type.
    pub(super) headers: Vec<HeaderName>,
    /// A closure of the program, which replaces all of this.
    pub(super) own: Option<Own>,
}

impl Comparison {
    /// The fingerprint of a request with this body.
    pub(super) fn fingerprint(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let mut digests = Digests::default();
        let Some(own) = &self.own else {
            self.add_parts(&mut digests, parts, body);
            return digests.finish();
        };
        // Only the program knows the parts.
        digests.all.add(Some(&own(parts, body)));
        digests.finish()
    }

    fn add_parts(&self, digests: &mut Digests, parts: &Parts, body: &[u8]) {
        let uri = original_uri(parts);
        digests.add(Part::Method, Some(parts.method.as_str().as_bytes()));
        digests.add(Part::Host, host(parts).as_deref().map(str::as_bytes));
        digests.add(Part::Path, Some(uri.path().as_bytes()));
        digests.add(Part::Query, uri.query().map(str::as_bytes));
        for name in &self.headers {
            let values = parts.headers.get_all(name);
            let count = values.iter().count() as u64;
            digests.add(Part::Header, Some(&count.to_be_bytes()));
            for value in values {
                digests.add(Part::Header, Some(value.as_bytes()));
            }
        }
        let sent = parts.headers.get(header::CONTENT_TYPE);
        let sent = sent.map(|value| value.as_bytes());
        // In one digest of its own, which is all that its tag has to look at.
        let mut content = Values::default();
        match sent.and_then(Multipart::read) {
            Some(form) => add_form(digests, &mut content, &form, body),
            None => {
                digests.add(Part::ContentType, sent);
                content.add(None);
                content.add(Some(body));
            }
        }
        digests.add(Part::Body, Some(&content.finish()));
    }
}

/// Adds a multipart body without its boundary: a client that tries again may choose another one.
fn add_form(digests: &mut Digests, content: &mut Values, form: &Multipart, body: &[u8]) {
    digests.add(Part::ContentType, Some(b"multipart"));
    digests.add(Part::ContentType, Some(form.media_type.as_bytes()));
    for (name, value) in &form.parameters {
        digests.add(Part::ContentType, Some(name.as_bytes()));
        digests.add(Part::ContentType, Some(value.as_bytes()));
    }
    content.add(Some(b"multipart"));
    for part in form.parts(body) {
        content.add(part.is_err().then_some(b"after the last delimiter"));
        content.add(Some(part.unwrap_or_else(|after| after)));
    }
}

/// The host that the request was sent to, in lower case and without its port.
fn host(parts: &Parts) -> Option<String> {
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    let sent = || parts.headers.get(header::HOST)?.to_str().ok();
    let host = authority.or_else(sent)?;
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let host = match host.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        Some(_) | None => host,
    };
    Some(host.to_ascii_lowercase())
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
        assert_eq!(all[10], of("POST", "http://one:81/a", Some("b"), "c"));
    }

    #[test]
    fn the_parts_that_differ_have_names() {
        let one = of("POST", "http://one/a?b", Some("c"), "d");
        for (other, parts) in [
            (of("PUT", "http://one/a?b", Some("c"), "d"), &["method"][..]),
            (
                of("POST", "http://two/a", Some("c"), "d"),
                &["host", "query"],
            ),
            (
                of("POST", "http://one/b?b", None, "e"),
                &["path", "content type", "body"],
            ),
            (one, &[]),
        ] {
            assert_eq!(one.differences(other), parts);
        }
    }

    #[test]
    fn a_claim_survives_its_bytes() {
        let fingerprint = of("POST", "/a", None, "b");
        for alive in [None, Some(Duration::from_secs(70))] {
            let claim = fingerprint.to_claim(alive);
            assert_eq!(Fingerprint::of_claim(&claim), Some((fingerprint, alive)));
            assert_eq!(Fingerprint::of_claim(&claim[1..]), None);
        }
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
}
