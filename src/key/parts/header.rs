//! The single value of a header.

use std::fmt::Display;

use http::{HeaderMap, HeaderName};

use crate::key::{KeyError, KeyErrorKind};

/// The header's value, `None` when there is no such header.
///
/// A header with two lines is refused, even if both are equal: one program would read the first
/// line, another the last.
pub(super) fn read<'r>(
    headers: &'r HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'r str>, KeyError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(KeyError::new(
            KeyErrorKind::Doubled,
            format!("the header `{name}` is there more than once"),
        ));
    }
    let text = value.to_str().ok().and_then(visible);
    text.map(Some).ok_or_else(|| not_visible(name))
}

/// Spaces are allowed between words only: around a value, HTTP/1 drops spaces and HTTP/2 keeps
/// them, and a client could write one name in two ways.
pub(super) fn visible(text: &str) -> Option<&str> {
    let is_visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    (text.trim() == text && text.bytes().all(is_visible)).then_some(text)
}

pub(super) fn not_visible(name: impl Display) -> KeyError {
    KeyError::new(
        KeyErrorKind::Malformed,
        format!("the header `{name}` is not visible ASCII"),
    )
}
