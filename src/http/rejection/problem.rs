//! A refusal as a JSON document.

use std::fmt::Write;

use super::Rejection;

/// Where each reason is explained: the headings of the module `rejection`.
const TYPES: &str =
    "https://docs.rs/tower-distributed-lock/latest/tower_distributed_lock/rejection/index.html";

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
    use crate::rejection::Reason;

    #[test]
    fn a_detail_cannot_break_out_of_its_string() {
        let hostile = Quoted("a\"b\\c\n\u{7f}ü").to_string();
        assert_eq!(hostile, r#""a\"b\\c\u000a\u007fü""#);
    }

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
