//! A parameter of the query string.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::key::{KeyError, KeyErrorKind};

/// The parameter's decoded value, `None` when the query has no such parameter.
///
/// The query is read as a form, like axum's `Query`, with one difference: `Query` replaces bytes
/// that are not UTF-8, which gives different queries the same value. Here such bytes are refused.
pub(super) fn read<'r>(
    query: Option<&'r str>,
    name: &str,
) -> Result<Option<Cow<'r, str>>, KeyError> {
    let mut values = query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| decode(key).is_some_and(|key| key == name));
    let Some((_, value)) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(KeyError::new(
            KeyErrorKind::Doubled,
            format!("the query parameter `{name}` is there more than once"),
        ));
    }
    decode(value).map(Some).ok_or_else(|| {
        KeyError::new(
            KeyErrorKind::Malformed,
            format!("the query parameter `{name}` is not UTF-8"),
        )
    })
}

fn decode(text: &str) -> Option<Cow<'_, str>> {
    // Spaces are replaced before the percent-decoding: an encoded `+` is a plus.
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
        return Some(Cow::Owned(decoded.into_owned()));
    }
    percent_decode_str(text).decode_utf8().ok()
}
