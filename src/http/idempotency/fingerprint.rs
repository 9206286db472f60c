//! The fingerprint of a request: a digest that differs between different requests with the same
//! Idempotency-Key.
//!
//! | the part | by default |
//! |---|---|
//! | method, path, query | count |
//! | host | counts, without its port: replicas of a service may have different ports |
//! | content type | counts, without the boundary of a multipart body |
//! | body | every byte counts; JSON by value with `compare_json_values` |
//! | other headers | do not count, unless named with `compare_headers` |
//!
//! ```text
//! digest      32 bytes, of all parts
//! tags        4 bytes of each part's own digest, which name the parts that differ
//! silence     8 bytes, in the lease of a request that runs at most once: see `Silence`
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

    pub(crate) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    /// The fingerprint of a lease.
    pub(super) fn to_claim(self, silence: Option<Silence>) -> Bytes {
        let silence = silence.map(Silence::to_bytes);
        [&self.0[..], silence.as_ref().map_or(&[], |it| &it[..])]
            .concat()
            .into()
    }

    /// Reads the fingerprint of a lease.
    pub(super) fn of_claim(claim: &[u8]) -> Option<(Self, Option<Silence>)> {
        let (fingerprint, silence) = claim.split_at_checked(Self::LEN)?;
        let silence = match silence {
            [] => None,
            bytes => Some(Silence::from_bytes(bytes)?),
        };
        Some((Self::from_bytes(fingerprint)?, silence))
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

/// The remaining time of a lease at which its request counts as abandoned.
///
/// A request that runs at most once has a lease of a day, say, which its process extends to a full
/// day every few seconds. If less than a day without those seconds is left, the process has not
/// done that for so long that an ordinary lease would be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silence(Duration);

impl Silence {
    /// For claims of the length `claim`, of a process whose leases usually have the length `lease`.
    pub(super) fn new(claim: Duration, lease: Duration) -> Self {
        Self(claim.saturating_sub(lease))
    }

    /// Whether a lease with so much time left is abandoned.
    pub(super) fn is_over(self, remaining: Duration) -> bool {
        remaining < self.0
    }

    fn to_bytes(self) -> [u8; 8] {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        millis.to_be_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let millis = u64::from_be_bytes(bytes.try_into().ok()?);
        Some(Self(Duration::from_millis(millis)))
    }
}

/// A digest of parts. The length of each part comes first: no part can run into the next. An absent
/// part differs from an empty one.
#[derive(Default)]
struct Parts256(Sha256);

impl Parts256 {
    fn part(&mut self, part: Option<&[u8]>) {
        let len = part.map_or(u64::MAX, |part| part.len() as u64);
        self.0.update(len.to_be_bytes());
        self.0.update(part.unwrap_or_default());
    }

    fn finish(self) -> [u8; DIGEST] {
        self.0.finalize().into()
    }
}

type Own = Opaque<dyn Fn(&Parts, &[u8]) -> Bytes + Send + Sync>;

/// Which parts of a request count.
#[derive(Debug, Clone, Default)]
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
        let mut fingerprint = [0; Fingerprint::LEN];
        let mut all = Parts256::default();
        if let Some(own) = &self.own {
            all.part(Some(&own(parts, body)));
        } else {
            let tags = fingerprint[DIGEST..].chunks_mut(TAG);
            for (part, tag) in self.parts(parts, body).into_iter().zip(tags) {
                let digest = part.finish();
                all.part(Some(&digest));
                tag.copy_from_slice(&digest[..TAG]);
            }
        }
        fingerprint[..DIGEST].copy_from_slice(&all.finish());
        Fingerprint(fingerprint)
    }

    /// The digests of all parts, in the order of [`PARTS`].
    fn parts(&self, parts: &Parts, body: &[u8]) -> [Parts256; PARTS.len()] {
        let uri = original_uri(parts);
        let mut digests: [Parts256; PARTS.len()] = std::array::from_fn(|_| Parts256::default());
        let [method, host, path, query, headers, content_type, content] = &mut digests;
        method.part(Some(parts.method.as_str().as_bytes()));
        host.part(self::host(parts).as_deref().map(str::as_bytes));
        path.part(Some(uri.path().as_bytes()));
        query.part(uri.query().map(str::as_bytes));
        for name in &self.headers {
            let values = parts.headers.get_all(name).iter();
            let values: Vec<_> = values.map(|value| value.as_bytes()).collect();
            headers.part(Some(&values.len().to_be_bytes()));
            values.iter().for_each(|value| headers.part(Some(value)));
        }
        let sent = parts.headers.get(header::CONTENT_TYPE);
        let sent = sent.map(|value| value.as_bytes());
        match sent.and_then(Multipart::read) {
            Some(form) => self::form(content_type, content, &form, body),
            None => {
                content_type.part(sent);
                self.body(content, body);
            }
        }
        digests
    }

    fn body(&self, digest: &mut Parts256, body: &[u8]) {
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

/// A multipart body without its boundary: a client that tries again may choose another one.
fn form(content_type: &mut Parts256, content: &mut Parts256, form: &Multipart, body: &[u8]) {
    content_type.part(Some(b"multipart"));
    content_type.part(Some(form.media_type.as_bytes()));
    for (name, value) in &form.parameters {
        content_type.part(Some(name.as_bytes()));
        content_type.part(Some(value.as_bytes()));
    }
    content.part(Some(b"multipart"));
    for part in form.parts(body) {
        content.part(part.is_err().then_some(b"after the last delimiter"));
        content.part(Some(part.unwrap_or_else(|after| after)));
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
    fn a_claim_tells_when_it_counts_as_abandoned() {
        let (fingerprint, second) = (of("POST", "/a", None, "b"), Duration::from_secs(1));
        let silence = Silence::new(100 * second, 30 * second);
        assert!(!silence.is_over(70 * second) && silence.is_over(69 * second));
        for silence in [None, Some(silence)] {
            let claim = fingerprint.to_claim(silence);
            assert_eq!(Fingerprint::of_claim(&claim), Some((fingerprint, silence)));
            assert_eq!(Fingerprint::of_claim(&claim[1..]), None);
        }
        // A claim that is no longer than a lease ends by itself.
        assert!(!Silence::new(second, 30 * second).is_over(Duration::ZERO));
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
