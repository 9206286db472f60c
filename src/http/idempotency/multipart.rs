//! Multipart bodies without their boundary, which clients choose anew each time.
//!
//! A client that sends a form again chooses another boundary. The texts between the boundaries stay the same, and are compared:
//!
//! ```text
//! --X\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--X--    boundary X
//! --Y\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--Y--    boundary Y: an equal request
//! ```

/// The boundary of a multipart content type.
pub(super) fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(content_type).ok()?;
    let (kind, parameters) = text.split_once(';')?;
    if !kind.trim().to_ascii_lowercase().starts_with("multipart/") {
        return None;
    }
    let boundary = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_boundary = name.trim().eq_ignore_ascii_case("boundary");
        is_boundary.then(|| value.trim().trim_matches('"').as_bytes().to_vec())
    })?;
    (!boundary.is_empty()).then_some(boundary)
}

/// The texts between the boundaries, in order.
pub(super) fn parts<'a>(body: &'a [u8], boundary: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let delimiter = [b"--", boundary].concat();
    let mut rest = Some(body);
    std::iter::from_fn(move || {
        let body = rest?;
        let (part, after) = match find(body, &delimiter) {
            Some(at) => (&body[..at], Some(&body[at + delimiter.len()..])),
            None => (body, None),
        };
        rest = after;
        Some(part)
    })
}

/// The first place of the delimiter. Only places with its first byte are compared, since a body can be large.
fn find(body: &[u8], delimiter: &[u8]) -> Option<usize> {
    let first = *delimiter.first()?;
    let mut from = 0;
    loop {
        let at = from + body[from..].iter().position(|byte| *byte == first)?;
        if body[at..].starts_with(delimiter) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_multipart_type_has_a_boundary() {
        let found = |text: &str| boundary(text.as_bytes());
        assert_eq!(
            found("multipart/form-data; boundary=x-1"),
            Some(b"x-1".to_vec())
        );
        assert_eq!(
            found("Multipart/Mixed; charset=utf-8; BOUNDARY=\"a b\""),
            Some(b"a b".to_vec())
        );
        for none in [
            "multipart/form-data",
            "text/plain; boundary=x",
            "multipart/x; boundary=",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_body_is_split_at_each_boundary() {
        let split: Vec<_> = parts(b"--x\r\none--x\r\ntwo--x--", b"x").collect();
        assert_eq!(split, [&b""[..], b"\r\none", b"\r\ntwo", b"--"]);
        assert_eq!(parts(b"none", b"x").collect::<Vec<_>>(), [b"none"]);
        let hyphens: Vec<_> = parts(b"---x-a--", b"x").collect();
        assert_eq!(hyphens, [&b"-"[..], b"-a--"]);
    }
}
