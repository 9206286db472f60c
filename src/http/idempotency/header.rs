//! The source of a request's key: the `Idempotency-Key` header field, another header, or a closure.
//!
//! | the header | the key | strict |
//! |---|---|---|
//! | `Idempotency-Key: "8e03"` | `8e03` | `8e03` |
//! | `Idempotency-Key: 8e03` | `8e03` | 400 |
//! | `Idempotency-Key: a,b` | 400: a proxy may have joined two | 400 |
//! | two lines | 400 | 400 |

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, request::Parts};

use crate::http::opaque::Opaque;

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key, in bytes.
const MAX_LEN: usize = 255;

type Find = Opaque<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// The source of a request's key.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Header(HeaderName),
    Computed(Find),
}

impl Source {
    /// The request's key, if there is one. An error names the mistake, and does not repeat the
    /// client's text.
    pub(super) fn read(&self, parts: &Parts, strict: bool) -> Result<Option<String>, String> {
        let read = match self {
            Self::Header(name) => parse(&parts.headers, name, strict),
            Self::Computed(find) => find(parts).map(check_len).transpose(),
        };
        read.map_err(|why| format!("the {} {why}", self.name()))
    }

    /// The name of the key in messages.
    pub(super) fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Header(name) if *name != IDEMPOTENCY_KEY => name.as_str().into(),
            Self::Header(_) | Self::Computed(_) => "Idempotency-Key".into(),
        }
    }
}

fn parse(
    headers: &HeaderMap,
    name: &HeaderName,
    strict: bool,
) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err("is there more than once");
    }
    let key = match line.as_bytes() {
        [b'"', ..] => quoted(line)?,
        _ if strict => return Err("is not a string in double quotes"),
        bare => self::bare(bare)?,
    };
    check_len(key).map(Some)
}

fn check_len(key: String) -> Result<String, &'static str> {
    match key.len() {
        0 => Err("is empty"),
        1..=MAX_LEN => Ok(key),
        _ => Err("is longer than 255 bytes"),
    }
}

/// The string of a structured field (RFC 9651), as the draft demands. Parameters are ignored, but a
/// comma in them is refused: a proxy may have joined two fields.
fn quoted(line: &HeaderValue) -> Result<String, &'static str> {
    const NOT_ONE: &str = "begins like a string in double quotes, and is not one";
    let mut rest = line.as_bytes().iter().copied().skip(1);
    let mut key = String::new();
    loop {
        match rest.next().ok_or(NOT_ONE)? {
            b'"' => break,
            b'\\' => match rest.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(escaped.into()),
                Some(_) | None => return Err(NOT_ONE),
            },
            byte @ b' '..=b'~' => key.push(byte.into()),
            _ => return Err(NOT_ONE),
        }
    }
    let mut rest = rest.skip_while(|byte| *byte == b' ').peekable();
    let begins_well = rest.peek().is_none_or(|byte| *byte == b';');
    if begins_well && rest.all(|byte| matches!(byte, b' '..=b'~') && byte != b',') {
        Ok(key)
    } else {
        Err(NOT_ONE)
    }
}

/// A value without quotes, the form that most clients send.
fn bare(line: &[u8]) -> Result<String, &'static str> {
    if line.contains(&b',') {
        return Err("has a comma in it: a proxy may have joined two");
    }
    if !line
        .iter()
        .all(|byte| byte.is_ascii_graphic() && *byte != b'"')
    {
        return Err("has characters that are not visible ASCII");
    }
    Ok(line.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(lines: &[&[u8]], strict: bool) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).unwrap());
        }
        parse(&headers, &IDEMPOTENCY_KEY, strict)
    }

    #[test]
    fn a_string_and_a_bare_value_are_the_same_key() {
        let key = Ok(Some("8e03978e-40d5".to_owned()));
        assert_eq!(parsed(&[b"8e03978e-40d5"], false), key);
        assert_eq!(parsed(&[b"\"8e03978e-40d5\""], false), key);
        assert_eq!(parsed(&[b"\"8e03978e-40d5\";v=1;w"], true), key);
        assert_eq!(
            parsed(&[br#""a \"b\"""#], true),
            Ok(Some("a \"b\"".to_owned()))
        );
    }

    #[test]
    fn a_request_without_the_header_has_no_key() {
        assert_eq!(parsed(&[], true), Ok(None));
    }

    #[test]
    fn doubled_and_malformed_keys_are_refused() {
        let too_long = format!("\"{}\"", "x".repeat(256));
        let bad: [&[&[u8]]; 17] = [
            &[b"a", b"a"],
            &[b""],
            &[b"\"\""],
            &[b"a,b"],
            &[b"\"a\", \"b\""],
            &[b"a b"],
            &[b"\xfcber"],
            &[b"\"a"],
            &[b"\"a\" b"],
            &[b"\"a\";v, \"b\""],
            &[b"\"a\";v=\xfc"],
            &[br#""a\b""#],
            &[br#""a\"#],
            &[b"\"\xfcber\""],
            &[b"a\"b"],
            &[too_long.as_bytes()],
            &[&too_long.as_bytes()[1..257]],
        ];
        for lines in bad {
            assert!(parsed(lines, false).is_err(), "{lines:?}");
        }
        assert!(parsed(&[b"bare"], true).is_err());
        assert!(parsed(&["x".repeat(255).as_bytes()], false).is_ok());
    }
}
