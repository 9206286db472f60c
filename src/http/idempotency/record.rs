//! The record of a request, as bytes in the store.
//!
//! ```text
//! version     1 byte, 3
//! kind        1 byte: A an answer, R an answer that is a refusal, T a tombstone, V a value
//! request     60 bytes, its fingerprint; zeros for a value
//! refusal:    see `http/rejection/encode.rs`; then as an answer
//! answer:     status u16, headers, trailers, then the body
//!   headers   their number u16, each: the name's length u16, the name, the value's length u32, the value
//!   trailers  as headers, with their number plus one; 0 means no trailers at all
//! tombstone:  1 byte: N the answer could not be kept, U the outcome is not known
//! value:      the bytes
//! ```
//! Numbers are big-endian. A duplicate that finds an unknown version, or damaged bytes, is refused:
//! a record means that the handler must not run a second time.
//!
//! The record of the answer `201`, with one header, no trailers and the body `ok`, in hexadecimal
//! digits:
//!
//! ```text
//! 03 41 <60 bytes>                                            version 3, an answer, the fingerprint
//! 00c9 0001 0008 6c6f636174696f6e 00000009 2f6f72646572732f37 201, 1 header, "location", "/orders/7"
//! 0000 6f6b                                                   no trailers, "ok"
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response};

use super::{fingerprint::Fingerprint, replayed::replayed};
use crate::{
    http::gate::{self, Rest},
    rejection::Rejection,
};

const VERSION: u8 = 3;

/// The outcome of a request. Its record has the fingerprint of the request, too.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// The request was answered like this.
    Answer(Box<Answer>),
    /// A tombstone: the request was answered, and the answer could not be kept.
    NotKept,
    /// A tombstone: the request was begun, and its outcome is not known.
    Unknown,
    /// The result of [`run_once`](crate::Locks::run_once).
    Value(Bytes),
}

/// A response that can be replayed.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) body: Bytes,
    /// The refusal that the answer is, for layers further out.
    pub(crate) rejection: Option<Rejection>,
}

impl Outcome {
    /// Writes the record of the request with this fingerprint.
    pub(crate) fn encode(&self, of: Fingerprint) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.len());
        bytes.put_u8(VERSION);
        bytes.put_u8(match self {
            Self::Answer(answer) if answer.rejection.is_some() => b'R',
            Self::Answer(_) => b'A',
            Self::NotKept | Self::Unknown => b'T',
            Self::Value(_) => b'V',
        });
        bytes.put_slice(of.as_bytes());
        match self {
            Self::Answer(answer) => answer.encode(&mut bytes),
            Self::NotKept => bytes.put_u8(b'N'),
            Self::Unknown => bytes.put_u8(b'U'),
            Self::Value(value) => bytes.put_slice(value),
        }
        bytes.freeze()
    }

    /// The length of the encoded record, which is allocated at once. Refusals, which are rare, are
    /// left out.
    fn len(&self) -> usize {
        let content = match self {
            Self::Answer(answer) => {
                let headers = answer
                    .headers
                    .iter()
                    .chain(answer.trailers.iter().flatten());
                let headers = headers.map(|(name, value)| 6 + name.as_str().len() + value.len());
                6 + headers.sum::<usize>() + answer.body.len()
            }
            Self::NotKept | Self::Unknown => 1,
            Self::Value(value) => value.len(),
        };
        2 + Fingerprint::LEN + content
    }

    /// A word for operators: what the record says of its request.
    #[cfg(feature = "admin")]
    pub(crate) fn kind(bytes: &Bytes) -> &'static str {
        match Self::decode(bytes.clone()).map(|(_, outcome)| outcome) {
            Ok(Self::Answer(_)) => "answer",
            Ok(Self::Value(_)) => "value",
            Ok(Self::NotKept) => "not_kept",
            Ok(Self::Unknown) => "unknown",
            Err(_) => "unreadable",
        }
    }

    /// Reads a record: the fingerprint of the request, and its outcome. The error is a sentence for
    /// the client, who gets 500.
    pub(crate) fn decode(mut bytes: Bytes) -> Result<(Fingerprint, Self), &'static str> {
        match bytes.try_get_u8() {
            Ok(VERSION) => {}
            Ok(_) => return Err("the kept answer was written by another version"),
            Err(_) => return Err(DAMAGED),
        }
        let kind = bytes.try_get_u8().map_err(|_| DAMAGED)?;
        let fingerprint = take(&mut bytes, Fingerprint::LEN)?;
        let fingerprint = Fingerprint::from_bytes(&fingerprint).ok_or(DAMAGED)?;
        let outcome = match kind {
            b'A' => Self::Answer(Box::new(Answer::decode(bytes, None)?)),
            b'R' => {
                let rejection = Rejection::decode(&mut bytes).ok_or(DAMAGED)?;
                Self::Answer(Box::new(Answer::decode(bytes, Some(rejection))?))
            }
            b'T' if *bytes == *b"N" => Self::NotKept,
            b'T' if *bytes == *b"U" => Self::Unknown,
            b'V' => Self::Value(bytes),
            _ => return Err(DAMAGED),
        };
        Ok((fingerprint, outcome))
    }
}

impl Answer {
    /// The answer of a handler, with the headers that are [`replayed`] and not in `never`.
    pub(crate) fn of(
        parts: &response::Parts,
        never: &[HeaderName],
        trailers: Option<HeaderMap>,
        body: Bytes,
    ) -> Self {
        let mut headers = replayed(&parts.headers, never);
        // Over HTTP/1, trailers are sent only if this header names them.
        if trailers.is_some() {
            for named in parts.headers.get_all(header::TRAILER) {
                headers.append(header::TRAILER, named.clone());
            }
        }
        Self {
            status: parts.status,
            headers,
            trailers,
            body,
            rejection: parts.extensions.get().cloned(),
        }
    }

    /// The answer as a response.
    pub(crate) fn into_response<B>(self) -> Response<gate::Body<B>> {
        let body = gate::Body::read(self.body, self.trailers, Rest::Ended(None));
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(rejection) = self.rejection {
            response.extensions_mut().insert(rejection);
        }
        response
    }

    fn encode(&self, bytes: &mut BytesMut) {
        if let Some(rejection) = &self.rejection {
            rejection.encode(bytes);
        }
        bytes.put_u16(self.status.as_u16());
        put_headers(bytes, &self.headers, 0);
        match &self.trailers {
            Some(trailers) => put_headers(bytes, trailers, 1),
            None => bytes.put_u16(0),
        }
        bytes.put_slice(&self.body);
    }

    fn decode(mut bytes: Bytes, rejection: Option<Rejection>) -> Result<Self, &'static str> {
        let status = bytes.try_get_u16().map_err(|_| DAMAGED)?;
        let status = StatusCode::from_u16(status).map_err(|_| DAMAGED)?;
        // No server sends an informational status as an answer.
        if status.is_informational() {
            return Err(DAMAGED);
        }
        let count = bytes.try_get_u16().map_err(|_| DAMAGED)?;
        let headers = take_headers(&mut bytes, count)?;
        let trailers = match bytes.try_get_u16().map_err(|_| DAMAGED)? {
            0 => None,
            count => Some(take_headers(&mut bytes, count - 1)?),
        };
        Ok(Self {
            status,
            headers,
            trailers,
            body: bytes,
            rejection,
        })
    }
}

/// Writes `headers.len() + more` and the headers. Values beyond the range of the format are left
/// out.
fn put_headers(bytes: &mut BytesMut, headers: &HeaderMap, more: u16) {
    let count = headers.len().min(usize::from(u16::MAX - 1)) as u16;
    bytes.put_u16(count + more);
    for (name, value) in headers.iter().take(usize::from(count)) {
        // `http` allows no longer names.
        bytes.put_u16(name.as_str().len() as u16);
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_u32(value.len() as u32);
        bytes.put_slice(value.as_bytes());
    }
}

fn take_headers(bytes: &mut Bytes, count: u16) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    for _ in 0..count {
        let len = bytes.try_get_u16().map_err(|_| DAMAGED)?;
        let name = take(bytes, usize::from(len))?;
        let name = HeaderName::from_bytes(&name).map_err(|_| DAMAGED)?;
        let len = bytes.try_get_u32().map_err(|_| DAMAGED)?;
        let value = take(bytes, len as usize)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| DAMAGED)?;
        // A map has less room than a record may claim to need.
        headers.try_append(name, value).map_err(|_| DAMAGED)?;
    }
    Ok(headers)
}

const DAMAGED: &str = "the kept answer is damaged";

fn take(bytes: &mut Bytes, len: usize) -> Result<Bytes, &'static str> {
    if len > bytes.len() {
        return Err(DAMAGED);
    }
    Ok(bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Fingerprint = Fingerprint::ONES;

    fn outcome() -> Outcome {
        let mut headers = HeaderMap::new();
        headers.append("location", HeaderValue::from_static("/payments/1"));
        headers.append("x-twice", HeaderValue::from_static("1"));
        headers.append("x-twice", HeaderValue::from_bytes(b"\xfc").unwrap());
        Outcome::Answer(Box::new(Answer {
            status: StatusCode::CREATED,
            headers,
            trailers: Some(HeaderMap::from_iter([(
                HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("0"),
            )])),
            body: Bytes::from_static(b"\0body"),
            rejection: None,
        }))
    }

    #[test]
    fn an_answer_survives_its_bytes() {
        let before = outcome();
        let (of, after) = Outcome::decode(before.encode(OF)).unwrap();
        assert_eq!(of, OF);
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let whole = outcome().encode(OF);
        let header_end = whole.len() - b"\0body".len();
        for cut in 0..header_end {
            assert!(Outcome::decode(whole.slice(..cut)).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            for flip in [0xff, 0x01, 0x80] {
                let mut damaged = whole.to_vec();
                damaged[at] ^= flip;
                let _ = Outcome::decode(damaged.into()); // must not panic
            }
        }
        let mut newer = whole.to_vec();
        newer[0] = VERSION + 1;
        assert_eq!(
            Outcome::decode(newer.into()).unwrap_err(),
            "the kept answer was written by another version"
        );
    }

    #[test]
    fn the_length_of_a_record_is_known_beforehand() {
        let value = Outcome::Value(Bytes::from_static(b"value"));
        for outcome in [outcome(), value, Outcome::Unknown] {
            assert_eq!(outcome.encode(OF).len(), outcome.len());
        }
    }

    /// The largest number of headers that the format allows, on which a `HeaderMap` panics.
    #[test]
    fn a_record_with_too_many_headers_is_damaged_and_does_not_panic() {
        let mut bytes = BytesMut::new();
        bytes.put_slice(&[VERSION, b'A']);
        bytes.put_bytes(0, Fingerprint::LEN);
        bytes.put_u16(200);
        bytes.put_u16(u16::MAX);
        for number in 0..u16::MAX {
            let name = format!("x-{number}");
            bytes.put_u16(name.len() as u16);
            bytes.put_slice(name.as_bytes());
            bytes.put_u32(0);
        }
        bytes.put_u16(0);
        assert_eq!(Outcome::decode(bytes.freeze()).unwrap_err(), DAMAGED);
    }
}
