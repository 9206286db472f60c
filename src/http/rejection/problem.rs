//! A refusal as a JSON document.

use std::fmt::Write;

use super::Rejection;
use crate::http::json::Quoted;

/// Where each reason is explained: the headings of the module `rejection`.
const TYPES: &str =
    "https://docs.rs/tower-distributed-lock/latest/tower_distributed_lock/rejection/index.html";

/// Writes the document (RFC 9457). The members and their order are stable.
pub(super) fn json(rejection: &Rejection) -> String {
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
