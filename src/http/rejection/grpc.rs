//! Refusals of gRPC requests: a response without a message, whose status is in its headers.
//!
//! A refusal for a held key, as a client of gRPC sees it:
//!
//! ```text
//! HTTP/2 200
//! content-type: application/grpc
//! grpc-status: 14
//! grpc-message: another request holds the lock
//! refusal-code: held
//! grpc-retry-pushback-ms: 1000
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::Rejection;
use crate::locks::Wait;

const GRPC: &[u8] = b"application/grpc";

/// Whether these are the headers of a gRPC request or response. gRPC-Web, whose responses have
/// another form, does not count.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let parts = content_type.and_then(|value| value.as_bytes().split_at_checked(GRPC.len()));
    // Media types have no case.
    parts.is_some_and(|(kind, rest)| {
        kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
    })
}

/// The time for which the client of a gRPC request waits for the answer.
///
/// `grpc-timeout: 250m` is a quarter of a second, and `grpc-timeout: 2S` two seconds.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // Eight digits of any unit do not overflow.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// How long a request waits: a gRPC client that has given up does not wait any more.
pub(crate) fn within_deadline(headers: &HeaderMap, wait: Wait) -> Wait {
    match (wait, timeout(headers)) {
        (Wait::AtMost(wait), Some(deadline)) => Wait::AtMost(wait.min(deadline)),
        (wait, _) => wait,
    }
}

/// The encoding of gRPC messages: everything but printable ASCII is percent-encoded, and `%` too.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// The response of a refusal, with the status in its headers ("trailers-only").
pub(super) fn response(rejection: &Rejection) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let grpc = HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, grpc);
    headers.insert("grpc-status", rejection.reason.grpc_status().into());
    let message = utf8_percent_encode(rejection.detail(), MESSAGE).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    let code = HeaderValue::from_static(rejection.reason.code());
    headers.insert("refusal-code", code);
    // For clients with a retry policy; a negative number means: do not retry.
    let pushback = match rejection.retry_after {
        Some(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        None => -1,
    };
    headers.insert("grpc-retry-pushback-ms", pushback.into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).unwrap();
        HeaderMap::from_iter([(name.parse().unwrap(), value)])
    }

    #[test]
    fn a_deadline_is_a_number_of_at_most_eight_digits_and_a_unit() {
        let of = |text: &str| timeout(&headers("grpc-timeout", text));
        assert_eq!(of("5S"), Some(Duration::from_secs(5)));
        assert_eq!(
            of("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        assert_eq!(of("250m"), Some(Duration::from_millis(250)));
        for none in ["", "S", "5", "5s", "-5S", "+5S", "123456789S", "5 S"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn grpc_is_recognized_by_its_content_type() {
        let is = |text: &str| is_grpc(&headers("content-type", text));
        assert!(is("application/grpc") && is("Application/gRPC+proto"));
        assert!(!is("application/grpc-web") && !is("application/json"));
    }
}
