//! Multipart bodies without their boundary, which clients choose anew each time.
//!
//! A client that sends a form again chooses another boundary. The texts between the delimiters stay
//! the same, and are compared:
//!
//! ```text
//! --X\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--X--    boundary X
//! --Y\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--Y--    boundary Y: an equal request
//! ```
//!
//! A delimiter is a whole line (RFC 2046, 5.1.1): `--` and the boundary, then `--` for the last
//! one, then nothing but blanks. What only looks like one is content, in which every byte counts:
//!
//! ```text
//! a --X b      not at the beginning of a line
//! --Xy         goes on after the boundary
//! ```

/// The longest boundary, in bytes (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// The content type of a multipart body.
pub(super) struct Multipart {
    /// The media type in lower case.
    pub(super) media_type: String,
    /// All parameters but the boundary: their names in lower case, and their values.
    pub(super) parameters: Vec<(String, String)>,
    boundary: String,
}

impl Multipart {
    /// Reads a content type; `None` if it is not multipart, or has no boundary that can be told.
    pub(super) fn read(content_type: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content_type).ok()?;
        let (media_type, mut rest) = text.split_once(';')?;
        let media_type = media_type.trim().to_ascii_lowercase();
        if !media_type.starts_with("multipart/") {
            return None;
        }
        let (mut boundary, mut parameters) = (None, Vec::new());
        while !rest.trim().is_empty() {
            let (name, value, after) = parameter(rest)?;
            rest = after;
            match name.as_str() {
                // Of two boundaries, one reader takes the first and another the last.
                "boundary" if boundary.is_some() => return None,
                "boundary" => boundary = Some(value),
                _ => parameters.push((name, value)),
            }
        }
        let boundary = boundary.filter(|it| (1..=MAX_BOUNDARY).contains(&it.len()))?;
        Some(Self {
            media_type,
            parameters,
            boundary,
        })
    }

    /// The texts between the delimiters, in order. The text after the delimiter that says that it
    /// is the last one comes as `Err`.
    pub(super) fn parts<'a>(
        &self,
        body: &'a [u8],
    ) -> impl Iterator<Item = Result<&'a [u8], &'a [u8]>> {
        let delimiter = format!("--{}", self.boundary).into_bytes();
        let (mut rest, mut is_closed) = (Some(body), false);
        // At the beginning of a body, a delimiter needs no line break before it.
        let mut is_at_start = true;
        std::iter::from_fn(move || {
            let body = rest?;
            let found = next(body, &delimiter, std::mem::take(&mut is_at_start));
            let (part, after) = match found {
                Some(found) => (&body[..found.at], Some(found)),
                None => (body, None),
            };
            let part = if is_closed { Err(part) } else { Ok(part) };
            rest = after.as_ref().map(|found| &body[found.end..]);
            is_closed = after.is_some_and(|found| found.is_last);
            Some(part)
        })
    }
}

/// The first parameter of a list: its name in lower case, its value, and the rest of the list.
fn parameter(list: &str) -> Option<(String, String, &str)> {
    let (name, list) = list.split_once('=')?;
    let name = name.trim_matches(|it: char| it == ';' || it.is_ascii_whitespace());
    let (value, rest) = match list.trim_start().strip_prefix('"') {
        Some(quoted) => unquoted(quoted)?,
        None => {
            let (value, rest) = list.split_once(';').unwrap_or((list, ""));
            (value.trim().to_owned(), rest)
        }
    };
    let is_name = !name.is_empty() && !name.contains([';', '"', ' ', '\t']);
    is_name.then(|| (name.to_ascii_lowercase(), value, rest))
}

/// The value of a string in double quotes, after the first of them, and the rest behind the next
/// `;`.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.chars());
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => value.push(characters.next()?),
            other => value.push(other),
        }
    }
    let rest = characters.as_str().trim_start();
    if rest.is_empty() {
        return Some((value, rest));
    }
    Some((value, rest.strip_prefix(';')?))
}

/// A delimiter in a body, with the line breaks around it.
struct Delimiter {
    at: usize,
    end: usize,
    is_last: bool,
}

/// The first delimiter of a body. The line break before it belongs to it, the one after it does
/// not: that one may begin the next delimiter.
///
/// A delimiter has no line break in it, so that no byte of a line is compared twice.
fn next(body: &[u8], delimiter: &[u8], is_at_start: bool) -> Option<Delimiter> {
    let line_ends = body.iter().enumerate().filter(|(_, byte)| **byte == b'\r');
    let lines =
        line_ends.filter_map(|(at, _)| body[at..].starts_with(b"\r\n").then_some((at, at + 2)));
    let first = is_at_start.then_some((0, 0));
    first.into_iter().chain(lines).find_map(|(at, line)| {
        let after = body[line..].strip_prefix(delimiter)?;
        let (is_last, after) = match after.strip_prefix(b"--") {
            Some(after) => (true, after),
            None => (false, after),
        };
        let blanks = after
            .iter()
            .take_while(|it| matches!(it, b' ' | b'\t'))
            .count();
        let after = &after[blanks..];
        let is_line = after.is_empty() || after.starts_with(b"\r\n");
        is_line.then(|| Delimiter {
            at,
            end: body.len() - after.len(),
            is_last,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Multipart> {
        Multipart::read(text.as_bytes())
    }

    fn split(body: &str, boundary: &str) -> Vec<String> {
        let form = read(&format!("multipart/form-data; boundary={boundary}")).unwrap();
        let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
        form.parts(body.as_bytes())
            .map(|part| part.map_or_else(|after| format!("after: {}", text(after)), text))
            .collect()
    }

    #[test]
    fn only_a_multipart_type_has_a_boundary() {
        for (content_type, boundary) in [
            ("multipart/form-data; boundary=x-1", "x-1"),
            ("Multipart/Mixed; charset=utf-8; BOUNDARY=\"a b\"", "a b"),
            ("multipart/form-data;boundary=\"a;b\"; charset=utf-8", "a;b"),
            ("multipart/form-data; boundary=\"a\\\"b\\\\\" ;", "a\"b\\"),
        ] {
            let form = read(content_type).unwrap_or_else(|| panic!("{content_type}"));
            assert_eq!(form.boundary, boundary, "{content_type}");
        }
        let too_long = format!("multipart/x; boundary={}", "x".repeat(71));
        for none in [
            &*too_long,
            "multipart/form-data",
            "text/plain; boundary=x",
            "multipart/x; boundary=",
            "multipart/x; boundary=\"a",
            "multipart/x; boundary=\"a\"b",
            "multipart/x; boundary=a; boundary=b",
            "multipart/x; nonsense",
        ] {
            assert!(read(none).is_none(), "{none}");
        }
    }

    #[test]
    fn all_other_parameters_are_read() {
        let related =
            read("multipart/related; Start=\"<a;b>\"; boundary=x; type=text/xml").unwrap();
        assert_eq!(related.media_type, "multipart/related");
        let parameters = [("start", "<a;b>"), ("type", "text/xml")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(related.parameters, parameters);
    }

    #[test]
    fn a_body_is_split_at_each_line_that_is_a_delimiter() {
        assert_eq!(
            split("--x\r\none\r\n--x \t\r\ntwo\r\n--x--\r\nend", "x"),
            ["", "\r\none", "\r\ntwo", "after: \r\nend"]
        );
        assert_eq!(split("none", "x"), ["none"]);
        // Two delimiters share the line break between them.
        assert_eq!(split("--x\r\n--x--", "x"), ["", "", "after: "]);
        for content in [
            "a--x\r\n",
            "--xy\r\n",
            "---x\r\n",
            "\n--x\r\n",
            "--x-\r\n",
            "\r--x\r\n",
        ] {
            assert_eq!(split(content, "x"), [content], "{content:?}");
        }
    }
}
