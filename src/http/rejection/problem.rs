//! A refusal as a JSON document.

use std::fmt::Write;

use super::{Reason, Rejection};

/// Where each reason is explained: the headings of the module `rejection`.
const TYPES: &str =
    "https://docs.rs/tower-distributed-lock/latest/tower_distributed_lock/rejection/index.html";

pub(super) fn json(rejection: &Rejection) -> String {
    let (anchor, title) = name(rejection.reason);
    let mut json = format!(
        r#"{{"type":"{TYPES}#{anchor}","title":"{title}","status":{},"detail":{},"instance":"urn:uuid:{}","retryable":{}"#,
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

/// The code and the title of a reason.
pub(super) fn name(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::BadKey => ("bad-key", "No lock key in the request"),
        Reason::BadIdempotencyKey => ("bad-idempotency-key", "No valid Idempotency-Key"),
        Reason::MissingIdempotencyKey => ("missing-idempotency-key", "No Idempotency-Key"),
        Reason::OutcomeUnknown => ("outcome-unknown", "Begun, outcome unknown"),
        Reason::Panicked => ("handler-panicked", "Handler panicked"),
        Reason::InProgress => (
            "in-progress",
            "A request with this Idempotency-Key is under way",
        ),
        Reason::AnswerNotKept => ("answer-not-kept", "Completed, answer not kept"),
        Reason::KeyReused => ("key-reused", "Idempotency-Key used for another request"),
        Reason::TooManyRunning => ("too-many-running", "Too many requests under way"),
        Reason::RecordUnreadable => ("record-unreadable", "Kept answer unreadable"),
        Reason::BodyBroken => ("body-broken", "Request body broke off"),
        Reason::LeaseLost => ("lease-lost", "Lock lost"),
        Reason::BodyTooLarge => ("body-too-large", "Request body too large"),
        Reason::Held => ("held", "Locked"),
        Reason::Misconfigured => ("misconfigured", "Server misconfigured"),
        Reason::LineFull => ("line-full", "Too many requests wait"),
        Reason::TooManyKeys => ("too-many-keys", "Too many keys in use"),
        Reason::StoreUnreachable => ("store-unreachable", "Lock store unreachable"),
        Reason::Closed => ("closed", "Shutting down"),
    }
}

/// A text as a JSON string.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_cannot_break_out_of_its_string() {
        let hostile = Quoted("a\"b\\c\n\u{7f}ü").to_string();
        assert_eq!(hostile, r#""a\"b\\c\u000a\u007fü""#);
    }

    #[test]
    fn is_a_problem_document() {
        let rejection = Rejection::new(Reason::Held, "taken");
        let expected = format!(
            r#"{{"type":"{TYPES}#held","title":"Locked","status":423,"detail":"taken","instance":"urn:uuid:{}","retryable":true}}"#,
            rejection.instance
        );
        assert_eq!(json(&rejection), expected);
    }
}
