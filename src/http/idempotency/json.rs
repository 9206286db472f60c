//! A canonical form of JSON, in which whitespace, the order of members and the escapes of strings
//! do not count.
//!
//! Numbers count as they are written: `1.0` is not `1`, and no number is rounded. Two different
//! amounts must never look the same.
//!
//! | body | canonical form |
//! |---|---|
//! | `{"b": 1, "a": [true]}` | `{"a":[true,],"b":1,}` |
//! | `{ "a" : [ true ],"b":1}` | the same |
//! | `{"a":"\u0041"}` | `{"a":"A",}` |
//! | `{"a":1,"a":2}` | none: the bytes are compared |

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// How deep values may be nested; as deep as `serde_json` reads them by default.
const MAX_DEPTH: usize = 128;

/// The canonical form of a JSON text; `None` for a text that is not JSON, names a member twice, or
/// is nested too deep.
///
/// The text is read twice, however deep its values are nested: once to see that it is JSON, and
/// once for the values.
pub(super) fn canonical(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let value = Reader(text).value(MAX_DEPTH)?;
    let mut out = String::with_capacity(text.len());
    value.write(&mut out)?;
    Some(out)
}

/// A value, with numbers and literals as they are written: `serde_json::Value` would round numbers.
enum Value<'a> {
    Object(BTreeMap<String, Value<'a>>),
    Array(Vec<Value<'a>>),
    String(String),
    Other(&'a str),
}

/// The rest of a text that is JSON.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        let depth = depth.checked_sub(1)?;
        if self.takes('{') {
            return self.members(depth).map(Value::Object);
        }
        if self.takes('[') {
            return self.elements(depth).map(Value::Array);
        }
        if self.0.starts_with('"') {
            return self.string().map(Value::String);
        }
        let ends = |it: char| matches!(it, ',' | ']' | '}') || it.is_ascii_whitespace();
        let end = self.0.find(ends).unwrap_or(self.0.len());
        Some(Value::Other(self.next(end)))
    }

    /// The members of an object by their name, each once: of two, one handler takes the first and
    /// another the last.
    fn members(&mut self, depth: usize) -> Option<BTreeMap<String, Value<'a>>> {
        let mut members = BTreeMap::new();
        while !self.takes('}') {
            let name = self.string()?;
            self.takes(':');
            if members.insert(name, self.value(depth)?).is_some() {
                return None;
            }
            self.takes(',');
        }
        Some(members)
    }

    fn elements(&mut self, depth: usize) -> Option<Vec<Value<'a>>> {
        let mut elements = Vec::new();
        while !self.takes(']') {
            elements.push(self.value(depth)?);
            self.takes(',');
        }
        Some(elements)
    }

    /// A string without its escapes. The rest begins with its quote, perhaps after blanks.
    fn string(&mut self) -> Option<String> {
        self.0 = self.0.trim_ascii_start();
        let bytes = self.0.as_bytes();
        let mut end = 1;
        while *bytes.get(end)? != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        serde_json::from_str(self.next(end + 1)).ok()
    }

    /// Whether this is what comes next after blanks, which are skipped.
    fn takes(&mut self, token: char) -> bool {
        self.0 = self.0.trim_ascii_start();
        let rest = self.0.strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// The next so many bytes.
    fn next(&mut self, count: usize) -> &'a str {
        let (next, rest) = self.0.split_at(count);
        self.0 = rest;
        next
    }
}

impl Value<'_> {
    fn write(&self, out: &mut String) -> Option<()> {
        match self {
            Self::Object(members) => {
                out.push('{');
                for (name, value) in members {
                    write_string(name, out)?;
                    out.push(':');
                    value.write(out)?;
                    out.push(',');
                }
                out.push('}');
            }
            Self::Array(elements) => {
                out.push('[');
                for element in elements {
                    element.write(out)?;
                    out.push(',');
                }
                out.push(']');
            }
            Self::String(string) => write_string(string, out)?,
            Self::Other(text) => out.push_str(text),
        }
        Some(())
    }
}

fn write_string(string: &str, out: &mut String) -> Option<()> {
    out.push_str(&serde_json::to_string(string).ok()?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Option<String> {
        canonical(text.as_bytes())
    }

    #[test]
    fn spelling_does_not_count() {
        let one = form(r#"{"a": 1, "b": ["x", {"d": null, "c": true}]}"#).unwrap();
        let same = form("{\"b\":[\"\\u0078\",{\"c\":true,\"d\":null}],\n\"a\":1}").unwrap();
        assert_eq!(one, same);
    }

    #[test]
    fn values_count_and_no_number_is_rounded() {
        let texts = [
            r#"{"a":1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":18446744073709551616}"#,
            r#"{"a":18446744073709551617}"#,
            r#"{"a":0.1}"#,
            r#"{"a":0.10000000000000000001}"#,
            r#"{"b":1}"#,
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            "[[1,2]]",
        ];
        let mut forms: Vec<_> = texts.iter().map(|text| form(text).unwrap()).collect();
        forms.sort();
        forms.dedup();
        assert_eq!(forms.len(), texts.len());
    }

    #[test]
    fn text_that_is_no_json_or_nested_too_deep_has_no_canonical_form() {
        let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(form(&deep(100)).is_some());
        let open = "[".repeat(10_000);
        let too_deep = deep(100_000);
        for text in ["", "{", "{\"a\":1}x", "{\"a\":1,\"a\":2}", &open, &too_deep] {
            assert_eq!(form(text), None, "{}", &text[..text.len().min(20)]);
        }
    }

    #[test]
    fn blanks_and_escapes_are_read_everywhere() {
        assert_eq!(form(" [ ] \n").unwrap(), "[]");
        assert_eq!(form("\t-1.50e+3 ").unwrap(), "-1.50e+3");
        assert_eq!(
            form(r#" { "a\"}" : [ "\\" , "]," , { } , null ] } "#).unwrap(),
            r#"{"a\"}":["\\","],",{},null,],}"#
        );
        assert_eq!(
            form("[\"\u{e4}\u{1f600}\\ud83d\\ude00\"]").unwrap(),
            "[\"\u{e4}\u{1f600}\u{1f600}\",]"
        );
        // A surrogate without its other half is no text.
        assert_eq!(form(r#"["\ud83d"]"#), None);
        assert_eq!(canonical(b"[\"\xff\"]"), None);
    }

    /// A text that is nested deep is not read anew at each level.
    #[test]
    fn the_depth_of_a_text_costs_nothing() {
        let elements = vec!["\"element\""; 30_000].join(",");
        let nested = |levels| format!("{}{elements}{}", "[".repeat(levels), "]".repeat(levels));
        let time = |text: String| {
            let runs = (0..5).map(|_| {
                let begun = std::time::Instant::now();
                assert!(form(&text).is_some());
                begun.elapsed()
            });
            runs.min().unwrap()
        };
        let (flat, deep) = (time(nested(1)), time(nested(120)));
        assert!(deep < flat * 6, "{flat:?} flat, {deep:?} nested");
    }
}
