//! A header's one value.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::key::{KeyError, KeyErrorKind};

/// The header's value, `None` when there is no such header.
///
/// Whoever reads the first of two lines sees another value than whoever reads the last, so two are refused, also
/// when they are equal.
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
    visible(value).map(Some).ok_or_else(|| {
        KeyError::new(
            KeyErrorKind::Malformed,
            format!("the header `{name}` is not visible ASCII"),
        )
    })
}

/// Spaces are taken between words only: around a value HTTP/1 drops them and HTTP/2 keeps them, so that one client
/// could write one name in two ways.
fn visible(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    (text.trim() == text && !text.contains('\t')).then_some(text)
}
