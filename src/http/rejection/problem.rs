//! A refusal as a JSON document.

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use super::Rejection;
use crate::http::json::Quoted;

/// Where each reason is explained: the headings of the module `rejection`.
const TYPES: &str =
    "https://docs.rs/tower-distributed-lock/latest/tower_distributed_lock/rejection/index.html";

/// The response with the document, and with `Retry-After` if the request may be sent again.
pub(super) fn response(rejection: &Rejection) -> Response<Bytes> {
    let mut response = Response::new(json(rejection).into());
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, json);
    if let Some(after) = rejection.retry_after {
        // Whole seconds, rounded up.
        let seconds = after
            .as_secs()
            .saturating_add((after.subsec_nanos() > 0).into());
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Writes the document (RFC 9457). The members and their order are stable.
fn json(rejection: &Rejection) -> String {
    let (code, title) = (rejection.reason.code(), rejection.reason.title());
    let mut json = format!(
        r#"{{"type":"{TYPES}#{code}","title":"{title}","status":{},"detail":{},"instance":"urn:uuid:{}","retryable":{}"#,
        rejection.status().as_u16(),
        Quoted(&rejection.detail),
        rejection.instance,
        rejection.is_retryable(),
    );
    if let Some(key) = rejection.idempotency_key() {
        let _ = write!(json, r#","idempotency_key":{}"#, Quoted(key));
    }
    json.push('}');
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::Reason;

    #[test]
    fn a_refusal_is_a_problem_document() {
        let rejection = Rejection::new(Reason::Held, "taken");
        let expected = format!(
            r#"{{"type":"{TYPES}#held","title":"Locked","status":423,"detail":"taken","instance":"urn:uuid:{}","retryable":true}}"#,
            rejection.instance
        );
        assert_eq!(json(&rejection), expected);
    }
}
