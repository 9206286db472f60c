//! The encoding of names, labels and values: no value can forge a separator, and all are readable
//! in a terminal.
//!
//! A key is a list of parts with `,` between them. A part is a bare name, or `label=value`, or
//! `label#sha256=digest`. Within names, labels and values everything but the characters below is
//! percent-encoded, above all `,`, `=`, `#` and `%` themselves. The text can be split again without
//! doubt: two different lists give two different texts.
//!
//! | the program writes | a request gives | the key is |
//! |---|---|---|
//! | `name("order").query("id")` | `?id=42` | `order,id=42` |
//! | the same | `?id=1,id=2` | `order,id=1%2Cid%3D2` |
//! | `name("file").path()` | `/a%2Fb/c` | `file,path=/a%2Fb/c` |
//! | `name("a,b").query("x=y")` | `?x%3Dy=1` | `a%2Cb,x%3Dy=1` |

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Names, labels and values. Characters that need no quotes in a shell and no escape in redis-cli
/// stay.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'/');

/// In a path, `/` separates segments and is not part of one.
const SEGMENT: &AsciiSet = &VALUE.add(b'/');

/// A route is the program's own text, and stays readable.
#[cfg(feature = "axum")]
const ROUTE: &AsciiSet = &VALUE.remove(b'{').remove(b'}').remove(b'*');

/// Between two parts.
pub(super) const NEXT: &str = ",";
/// Between a label and its value.
pub(super) const IS: &str = "=";
/// Between a label and the SHA-256 of its value.
pub(super) const IS_SHA256: &str = "#sha256=";
/// Before the HMAC-SHA-256 of a whole key.
pub(super) const IS_HMAC_SHA256: &str = "#hmac-sha256=";

/// Appends a name, a label or a value.
pub(super) fn push_value(out: &mut String, value: &str) {
    out.extend(percent_encode(value.as_bytes(), VALUE));
}

/// Appends one segment of a path, in which a slash is encoded.
pub(super) fn push_segment(out: &mut String, segment: &[u8]) {
    out.extend(percent_encode(segment, SEGMENT));
}

/// Appends a route, in which braces and asterisks stay.
#[cfg(feature = "axum")]
pub(super) fn push_route(out: &mut String, route: &str) {
    out.extend(percent_encode(route.as_bytes(), ROUTE));
}

/// Appends bytes as lower-case hexadecimal digits.
pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)].into());
        out.push(DIGITS[usize::from(byte & 15)].into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> String {
        let mut out = String::new();
        push_value(&mut out, text);
        out
    }

    #[test]
    fn common_ids_stay_as_they_are() {
        for id in ["42", "urn:uuid:0-1", "ann@example.com", "a/b", "A_b~c.d+e"] {
            assert_eq!(value(id), id);
        }
    }

    #[test]
    fn separators_and_unreadable_bytes_are_encoded() {
        assert_eq!(value("a,b=c#d%e"), "a%2Cb%3Dc%23d%25e");
        assert_eq!(value("ü \n\"{}*"), "%C3%BC%20%0A%22%7B%7D%2A");
    }

    #[test]
    fn hex_is_lower_case_with_two_digits() {
        let mut out = String::new();
        push_hex(&mut out, &[0, 0x0f, 0xa0, 0xff]);
        assert_eq!(out, "000fa0ff");
    }
}
