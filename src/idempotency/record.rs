//! What is kept of a finished request, as bytes in the store.
//!
//! ```text
//! version  1 byte, 1
//! kind     1 byte: A an answer, T a tombstone, V a value
//! request  32 bytes, its fingerprint; zeros for a value
//! answer:  status u16, number of headers u16, each: name's length u16, name, value's length u32, value; then the body
//! value:   the bytes
//! ```
//! Numbers are big-endian. A version that is not known, and bytes that do not add up, are errors for the request that
//! meets them: there is an answer, so the handler must not run a second time.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::fingerprint::Fingerprint;

const VERSION: u8 = 1;

/// What became of a request.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It was answered like this.
    Answer(Answer),
    /// It was answered, and the answer could not be kept.
    Tombstone,
    /// It was not a request over HTTP, and came to this.
    Value(Bytes),
}

/// A response that can be given again.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Headers that belong to one exchange, and are not given again.
const NOT_KEPT: [HeaderName; 13] = [
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    header::DATE,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The headers that are given again: not those above, nor those that `Connection` names.
pub(super) fn kept(headers: &HeaderMap) -> HeaderMap {
    let connection = headers.get_all(header::CONNECTION).iter();
    let named = connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse::<HeaderName>().ok());
    let mut kept = headers.clone();
    for name in NOT_KEPT.into_iter().chain(named) {
        kept.remove(name);
    }
    kept
}

impl Record {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u8(VERSION);
        bytes.put_u8(match &self.outcome {
            Outcome::Answer(_) => b'A',
            Outcome::Tombstone => b'T',
            Outcome::Value(_) => b'V',
        });
        bytes.put(self.fingerprint.to_bytes());
        match &self.outcome {
            Outcome::Answer(answer) => answer.encode(&mut bytes),
            Outcome::Tombstone => {}
            Outcome::Value(value) => bytes.put_slice(value),
        }
        bytes.freeze()
    }

    pub(crate) fn decode(mut bytes: Bytes) -> Result<Self, &'static str> {
        match bytes.try_get_u8() {
            Ok(VERSION) => {}
            Ok(_) => return Err("the kept answer was written by another version"),
            Err(_) => return Err(DAMAGED),
        }
        let kind = bytes.try_get_u8().map_err(|_| DAMAGED)?;
        let fingerprint = take(&mut bytes, Fingerprint::LEN)?;
        let fingerprint = Fingerprint::from_bytes(&fingerprint).ok_or(DAMAGED)?;
        let outcome = match kind {
            b'A' => Outcome::Answer(Answer::decode(bytes)?),
            b'T' if bytes.is_empty() => Outcome::Tombstone,
            b'V' => Outcome::Value(bytes),
            _ => return Err(DAMAGED),
        };
        Ok(Self {
            fingerprint,
            outcome,
        })
    }
}

impl Answer {
    fn encode(&self, bytes: &mut BytesMut) {
        bytes.put_u16(self.status.as_u16());
        // More than a server accepts; a response that has more of them loses the rest when it is given again.
        let count = u16::try_from(self.headers.len()).unwrap_or(u16::MAX);
        bytes.put_u16(count);
        for (name, value) in self.headers.iter().take(usize::from(count)) {
            // `http` allows no longer names.
            bytes.put_u16(name.as_str().len() as u16);
            bytes.put_slice(name.as_str().as_bytes());
            bytes.put_u32(value.len() as u32);
            bytes.put_slice(value.as_bytes());
        }
        bytes.put_slice(&self.body);
    }

    fn decode(mut bytes: Bytes) -> Result<Self, &'static str> {
        let status = bytes.try_get_u16().map_err(|_| DAMAGED)?;
        let status = StatusCode::from_u16(status).map_err(|_| DAMAGED)?;
        let count = bytes.try_get_u16().map_err(|_| DAMAGED)?;
        let mut headers = HeaderMap::new();
        for _ in 0..count {
            let len = bytes.try_get_u16().map_err(|_| DAMAGED)?;
            let name = take(&mut bytes, usize::from(len))?;
            let name = HeaderName::from_bytes(&name).map_err(|_| DAMAGED)?;
            let len = bytes.try_get_u32().map_err(|_| DAMAGED)?;
            let value = take(&mut bytes, len as usize)?;
            let value = HeaderValue::from_maybe_shared(value).map_err(|_| DAMAGED)?;
            headers.append(name, value);
        }
        Ok(Self {
            status,
            headers,
            body: bytes,
        })
    }
}

const DAMAGED: &str = "the kept answer is damaged";

fn take(bytes: &mut Bytes, len: usize) -> Result<Bytes, &'static str> {
    match len <= bytes.len() {
        true => Ok(bytes.split_to(len)),
        false => Err(DAMAGED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.append("location", HeaderValue::from_static("/payments/1"));
        headers.append("x-twice", HeaderValue::from_static("1"));
        headers.append("x-twice", HeaderValue::from_bytes(b"\xfc").unwrap());
        Record {
            fingerprint: Fingerprint::from_bytes(&[7; 32]).unwrap(),
            outcome: Outcome::Answer(Answer {
                status: StatusCode::CREATED,
                headers,
                body: Bytes::from_static(b"\0body"),
            }),
        }
    }

    #[test]
    fn an_answer_survives_its_bytes() {
        let before = record();
        let after = Record::decode(before.encode()).unwrap();
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let whole = record().encode();
        let header_end = whole.len() - b"\0body".len();
        for cut in 0..header_end {
            assert!(Record::decode(whole.slice(..cut)).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            for flip in [0xff, 0x01, 0x80] {
                let mut damaged = whole.to_vec();
                damaged[at] ^= flip;
                let _ = Record::decode(damaged.into()); // must not panic
            }
        }
        let mut newer = whole.to_vec();
        newer[0] = 2;
        assert_eq!(
            Record::decode(newer.into()).unwrap_err(),
            "the kept answer was written by another version"
        );
    }

    #[test]
    fn headers_of_one_exchange_are_not_kept() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "s"),
            ("date", "d"),
            ("content-length", "1"),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("www-authenticate", "w"),
            ("location", "/l"),
            ("content-type", "t"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let kept = kept(&headers);
        let mut names: Vec<_> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "location"]);
    }
}
