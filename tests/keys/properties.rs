//! Properties of every key, tested with hostile input: a million lists of parts, and more.
//!
//! That two lists never share a key is shown in two ways. Small lists are compared with each other,
//! all with all. Of the others each is read back from its key by a reader that shares no code with
//! the encoder: what can be read back cannot be shared.

use std::collections::HashMap;

use http::{HeaderValue, Request, Uri, request::Parts};
use tower_distributed_lock::key::{self, DeriveKey, Derived, RequestKey};

use crate::hostile::{Rng, push_hostile};

const CASES: usize = 1_000_000;

/// A part in a test. The label of a name is its value.
#[derive(Debug, Clone)]
struct Model {
    kind: &'static str,
    label: String,
    value: String,
}

/// The kind is not in a key, except that a name differs from all others.
impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        let seen = |model: &Self| {
            (
                model.kind.is_empty(),
                model.label.clone(),
                model.value.clone(),
            )
        };
        seen(self) == seen(other)
    }
}

fn request() -> Parts {
    Request::new(()).into_parts().0
}

fn derive(key: &RequestKey, parts: &mut Parts) -> String {
    match key.derive(parts) {
        Ok(Derived::Key(key)) => key.as_str().to_owned(),
        other => panic!("no key: {other:?}"),
    }
}

/// Adds the part to the key, and its value to the request.
fn add(key: Option<RequestKey>, part: &Model, parts: &mut Parts) -> RequestKey {
    let (label, value) = (part.label.clone(), part.value.clone());
    let key = key.unwrap_or_else(|| key::name("k"));
    match part.kind {
        "" => key.name(value),
        "fn" => key.from_fn(label, move |_| Some(value.clone().into())),
        "ext" => {
            parts.extensions.insert(value);
            key.extension::<String>(label)
        }
        "header" => {
            let value = HeaderValue::from_str(&value).unwrap();
            parts.headers.insert("x.y", value);
            key.header("x.y")
        }
        kind => unreachable!("{kind}"),
    }
}

fn encode(list: &[Model], parts: &mut Parts) -> String {
    let key = list
        .iter()
        .fold(None, |key, part| Some(add(key, part, parts)));
    derive(&key.unwrap(), parts)
}

/// Reads a key back: split, split, decode.
fn read(text: &str) -> Vec<Model> {
    let parts = text.strip_prefix("k,").expect("the constant in front");
    let model = |part: &str| match part.split_once('=') {
        None => Model {
            kind: "",
            label: String::new(),
            value: decode(part),
        },
        Some((label, value)) => Model {
            kind: "labelled",
            label: decode(label),
            value: decode(value),
        },
    };
    parts.split(',').map(model).collect()
}

fn decode(text: &str) -> String {
    String::from_utf8(decode_bytes(text)).expect("UTF-8")
}

fn decode_bytes(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        rest = after;
        bytes.push(*first);
        if let (b'%', [high, low, after @ ..]) = (first, after)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            *bytes.last_mut().unwrap() = high << 4 | low;
            rest = after;
        }
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn hostile_text(rng: &mut Rng) -> String {
    let mut text = String::from(rng.pick(&["a", "ü", ",", "=", "%", "fn.a=b", "\u{0}", "k"]));
    push_hostile(rng, &mut text);
    text
}

fn hostile_part(rng: &mut Rng) -> Model {
    // One header, one extension: a second would replace the value of the first.
    let kind = rng.pick(&["", "fn", "fn"]);
    let label = if kind.is_empty() {
        String::new()
    } else {
        hostile_text(rng)
    };
    Model {
        kind,
        label,
        value: hostile_text(rng),
    }
}

fn hostile_list(rng: &mut Rng) -> Vec<Model> {
    let mut list: Vec<_> = (0..1 + rng.below(2)).map(|_| hostile_part(rng)).collect();
    if rng.below(4) == 0 {
        let (kind, label) = ("ext", hostile_text(rng));
        list.push(Model {
            kind,
            label,
            value: hostile_text(rng),
        });
    }
    if rng.below(8) == 0 {
        let value = hostile_text(rng).replace(|c: char| !c.is_ascii_graphic(), "-");
        list.push(Model {
            kind: "header",
            label: "x.y".into(),
            value,
        });
    }
    list
}

#[test]
fn a_million_hostile_lists_can_be_read_back() {
    let cases = |seed| {
        let (mut rng, mut parts) = (Rng::new(seed), request());
        for _ in 0..CASES / 2 {
            let list = hostile_list(&mut rng);
            let text = encode(&list, &mut parts);
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            // Only a hash may have one, and nothing here is long enough to be hashed.
            assert!(!text.contains('#'), "{text}");
            assert_eq!(read(&text), list, "{text}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| cases(1));
        scope.spawn(|| cases(2));
    });
}

#[test]
fn small_lists_all_differ() {
    let alphabet = ["a", ",", "=", "=a", "#", "%", "2C", ".", "fn.a"];
    let mut texts: Vec<String> = alphabet.map(String::from).into();
    texts.extend(
        alphabet
            .iter()
            .flat_map(|a| alphabet.map(|b| format!("{a}{b}"))),
    );
    texts.sort();
    texts.dedup(); // `=` and `a` are also `=a`
    let mut kinds = vec![];
    for value in &texts {
        for (kind, label) in [("", ""), ("fn", "a"), ("fn", ","), ("fn", "a=a")] {
            let (label, value) = (label.into(), value.clone());
            kinds.push(Model { kind, label, value });
        }
    }
    let mut seen = HashMap::new();
    let mut parts = request();
    let mut check = |list: Vec<Model>| {
        let text = encode(&list, &mut parts);
        if let Some(other) = seen.insert(text, list.clone()) {
            panic!("one key for {list:?} and {other:?}");
        }
    };
    for first in &kinds {
        check(vec![first.clone()]);
        for second in &kinds {
            check(vec![first.clone(), second.clone()]);
        }
    }
    assert_eq!(seen.len(), kinds.len() * (kinds.len() + 1));
}

/// A path with random bytes encoded, in either case. For a handler, all of these are the same path.
fn rewritten(segments: &[Vec<u8>], rng: &mut Rng) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        for &byte in segment {
            match (
                rng.below(3),
                byte.is_ascii_alphanumeric() || b":@!,=.~".contains(&byte),
            ) {
                (0, true) | (1, true) => path.push(byte.into()),
                (_, _) if rng.below(2) == 0 => path.push_str(&format!("%{byte:02x}")),
                (_, _) => path.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    path
}

#[test]
fn one_path_has_one_key_and_two_have_two() {
    let key = key::request().path();
    let (mut rng, mut parts) = (Rng::new(3), request());
    for _ in 0..100_000 {
        let segment = |rng: &mut Rng| -> Vec<u8> {
            let len = rng.below(4);
            (0..len)
                .map(|_| rng.pick(b"aA/%,=:.2F\xff\xc3\xbc\0 "))
                .collect()
        };
        let segments: Vec<_> = (0..1 + rng.below(3)).map(|_| segment(&mut rng)).collect();
        let mut key_of = |path: &str| {
            parts.uri = path.parse::<Uri>().unwrap();
            // Not taken for a host: `//a` is a path with an empty segment.
            assert_eq!(parts.uri.path(), path);
            derive(&key, &mut parts)
        };
        let text = key_of(&rewritten(&segments, &mut rng));
        assert_eq!(text, key_of(&rewritten(&segments, &mut rng)));
        let read: Vec<_> = text
            .strip_prefix("path=/")
            .unwrap()
            .split('/')
            .map(decode_bytes)
            .collect();
        assert_eq!(read, segments, "{text}");
    }
}

#[test]
fn any_request_has_a_key_or_a_reason() {
    let key = key::name("n")
        .path()
        .host()
        .optional()
        .query("q")
        .optional()
        .header("x")
        .optional();
    let keys = [
        key.clone(),
        key.clone().max_value_len(8),
        key.clone().hashed_with([7; 16]),
    ];
    let (mut rng, mut parts) = (Rng::new(4), request());
    let (mut keyed, mut refused) = (0, 0);
    for _ in 0..100_000 {
        parts.headers.clear();
        for name in ["host", "x", "x"] {
            let value: Vec<u8> = (0..rng.below(6)).map(|_| rng.below(256) as u8).collect();
            if rng.below(3) == 0
                && let Ok(value) = HeaderValue::from_bytes(&value)
            {
                parts.headers.append(name, value);
            }
        }
        let mut uri =
            String::from(rng.pick(&["/", "/?q=", "http://a@b/", "http://B:1/?q=", "/?q=1&"]));
        (0..rng.pick(&[1, 1, 1, 400])).for_each(|_| push_hostile(&mut rng, &mut uri));
        let Ok(uri) = uri.parse() else { continue };
        parts.uri = uri;
        match rng.pick(&[&keys[0], &keys[1], &keys[2]]).derive(&mut parts) {
            Ok(derived) => {
                assert!(derived.key().unwrap().as_str().starts_with("n,"));
                keyed += 1;
            }
            Err(error) => {
                assert!(!error.is_misconfigured(), "{error}");
                refused += 1;
            }
        }
    }
    assert!(
        keyed > 10_000 && refused > 10_000,
        "{keyed} keys, {refused} refused"
    );
}
