//! A canonical form of JSON, in which whitespace, the order of members and the escapes of strings do not count.
//!
//! Numbers count as they are written: `1.0` is not `1`, and no number is rounded. Two different amounts must never look the same.
//!
//! | body | canonical form |
//! |---|---|
//! | `{"b": 1, "a": [true]}` | `{"a":[true,],"b":1,}` |
//! | `{ "a" : [ true ],"b":1}` | the same |
//! | `{"a":"\u0041"}` | `{"a":"A",}` |
//! | `{"a":1,"a":2}` | none: the bytes are compared |

use std::{collections::BTreeMap, fmt::Write};

use serde_json::value::RawValue;

/// How deep values may be nested; as deep as `serde_json` reads them by default.
const MAX_DEPTH: usize = 128;

/// The canonical form of a JSON text; `None` for a text that is not JSON, names a member twice, or is nested too deep.
pub(super) fn canonical(body: &[u8]) -> Option<String> {
    let value: &RawValue = serde_json::from_slice(body).ok()?;
    let mut out = String::with_capacity(body.len());
    write(value, MAX_DEPTH, &mut out)?;
    Some(out)
}

fn write(value: &RawValue, depth: usize, out: &mut String) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let text = value.get();
    match text.as_bytes().first()? {
        b'{' => {
            let members: Members<'_> = serde_json::from_str(text).ok()?;
            out.push('{');
            for (name, value) in members.0 {
                write!(out, "{}:", serde_json::to_string(&name).ok()?).ok()?;
                write(value, depth, out)?;
                out.push(',');
            }
            out.push('}');
        }
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            out.push('[');
            for element in elements {
                write(element, depth, out)?;
                out.push(',');
            }
            out.push(']');
        }
        b'"' => {
            let string: String = serde_json::from_str(text).ok()?;
            out.push_str(&serde_json::to_string(&string).ok()?);
        }
        _ => out.push_str(text),
    }
    Some(())
}

/// The members of an object by their name, each once: of two, one handler takes the first and another the last.
struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Visitor)
    }
}

struct Visitor;

impl<'de> serde::de::Visitor<'de> for Visitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            if members.insert(name, value).is_some() {
                return Err(serde::de::Error::custom("a member is there twice"));
            }
        }
        Ok(Members(members))
    }
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
}
