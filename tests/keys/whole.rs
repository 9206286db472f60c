//! The key as a whole: order, labels, fallbacks, hashes, and key functions of the program.

use std::sync::Arc;

use http::{
    Request,
    request::{Builder, Parts},
};
use tower_distributed_lock::{
    LockKey,
    key::{self, DeriveKey, Derived, KeyError, KeyErrorKind, RequestKey},
};

use crate::{key_of, parts_of, refusal};

fn tenant() -> RequestKey {
    key::request().header("X-Tenant-Id")
}

fn get(uri: &str) -> Builder {
    Request::get(uri)
}

#[test]
fn parts_are_combined_in_the_order_written() {
    let request = || {
        Request::post("https://Example.com/a?q=1")
            .header("x-tenant-id", "acme")
            .extension(7_u32)
    };
    let all = key::name("n")
        .path()
        .method()
        .host()
        .query("q")
        .header("x-tenant-id");
    let all = all
        .extension::<u32>("user")
        .from_fn("v", |request| Some(format!("{:?}", request.version).into()));
    assert_eq!(
        key_of(&all, request()),
        "n,path=/a,method=POST,host=example.com,q=1,x-tenant-id=acme,user=7,v=HTTP/1.1"
    );
    assert_eq!(
        key_of(&key::request().method().path(), request()),
        "method=POST,path=/a"
    );
    assert_eq!(
        key_of(&key::request().path().method(), request()),
        "path=/a,method=POST"
    );
}

/// The source of a value is not part of the key.
#[test]
fn a_value_gives_the_same_key_from_every_source() {
    let request = || {
        get("/v?x=v")
            .header("x", "v")
            .extension("v")
            .header("host", "v")
    };
    let keys = [
        key::request().header("x"),
        key::request().query("x"),
        key::request().extension::<&str>("x"),
        key::request().extension_with("x", |text: &&str| *text),
        key::request().from_fn("x", |_| Some("v".into())),
        key::request().host().labelled("x"),
    ];
    for wanted in keys {
        assert_eq!(key_of(&wanted, request()), "x=v", "{wanted:?}");
    }
}

#[test]
fn names_labels_and_values_cannot_be_mistaken_for_each_other() {
    let request = || get("/v").header("x", "v");
    let found = |label| key::request().from_fn(label, |_| Some("v".into()));
    let keys = [
        key::name("v"),
        key::name("x"),
        key::request().header("x"),
        key::name("x=v"),
        found("x=v"),
        found("x,x"),
        key::name("x").name("v"),
        key::request().header("x").name("x"),
    ];
    let mut texts: Vec<_> = keys
        .iter()
        .map(|wanted| key_of(wanted, request()))
        .collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), keys.len());
}

#[test]
fn a_fallback_gives_the_key_of_its_value() {
    let wanted = tenant().or("a,b");
    let sent = key_of(&wanted, get("/").header("x-tenant-id", "a,b"));
    assert_eq!(key_of(&wanted, get("/")), sent);
    assert_eq!(sent, "x-tenant-id=a%2Cb");

    let wanted = key::request().host().or("Shop.example");
    let sent = key_of(&wanted, get("/").header("host", "Shop.example"));
    assert_eq!(key_of(&wanted, get("/")), sent);
    assert_eq!(sent, "host=shop.example");

    let wanted = key::request().from_fn("tenant", |request| {
        Some(request.headers.get("x-tenant")?.to_str().ok()?.into())
    });
    let wanted = wanted.or("default-tenant").max_value_len(8);
    let sent = key_of(&wanted, get("/").header("x-tenant", "default-tenant"));
    assert_eq!(key_of(&wanted, get("/")), sent);
    assert!(sent.starts_with("tenant#sha256="), "{sent}");
}

#[test]
#[should_panic(expected = "no request can send the fallback `a b c d/`")]
fn a_fallback_that_no_request_can_send_is_refused_at_once() {
    let _ = key::request().host().or("a b c d/");
}

#[test]
fn optional_absence_is_no_value_that_could_be_sent() {
    let wanted = tenant().optional().name("x");
    assert_eq!(key_of(&wanted, get("/")), "x-tenant-id=,x");
    assert_eq!(
        key_of(&wanted, get("/").header("x-tenant-id", "-")),
        "x-tenant-id=-,x"
    );
}

#[test]
fn a_malformed_part_is_not_absent() {
    for wanted in [tenant().or("none"), tenant().optional()] {
        let empty = get("/").header("x-tenant-id", "");
        assert_eq!(refusal(&wanted, empty).0, KeyErrorKind::Empty);
        let twice = get("/")
            .header("x-tenant-id", "a")
            .header("x-tenant-id", "b");
        assert_eq!(refusal(&wanted, twice).0, KeyErrorKind::Doubled);
    }
}

#[test]
fn a_fallback_applies_to_the_previous_part() {
    let wanted = key::request().header("a").or("1").header("b").or("2");
    assert_eq!(key_of(&wanted, get("/").header("b", "3")), "a=1,b=3");
    assert_eq!(key_of(&wanted, get("/").header("a", "3")), "a=3,b=2");
}

#[test]
fn a_key_that_is_too_long_is_hashed_but_keeps_its_names() {
    let values = ["a", "b", "c"];
    let wanted = key::name("account")
        .name("v1")
        .header("a")
        .header("b")
        .header("c")
        .name("x");
    let request = |last: &str| {
        let long = values.iter().fold(get("/"), |request, name| {
            request.header(*name, format!("{}{last}", "x".repeat(500)))
        });
        key_of(&wanted, long)
    };
    assert!(request("1").starts_with("account,v1,#sha256="));
    assert_eq!(request("1").len(), "account,v1,#sha256=".len() + 64);
    assert_eq!(request("1"), request("1"));
    assert_ne!(request("1"), request("2"));

    let endless = key::name("n".repeat(2000)).name("m");
    assert!(key_of(&endless, get("/")).starts_with("#sha256="));
    let forged = key::name("account").name("#sha256=00");
    assert_eq!(key_of(&forged, get("/")), "account,%23sha256%3D00");
}

#[test]
fn a_keyed_hash_hides_all_but_the_first_names() {
    let request = || get("/").header("x-tenant-id", "acme");
    let wanted = |secret: &[u8]| {
        key_of(
            &key::name("account")
                .header("x-tenant-id")
                .name("z")
                .hashed_with(secret),
            request(),
        )
    };
    let hidden = wanted(&[1; 32]);
    assert!(hidden.starts_with("account,#hmac-sha256="), "{hidden}");
    assert_eq!(hidden.len(), "account,#hmac-sha256=".len() + 64);
    assert_eq!(hidden, wanted(&[1; 32]));
    assert_ne!(hidden, wanted(&[2; 32]));
    let alone = tenant().hashed_with([1; 32]);
    assert!(key_of(&alone, request()).starts_with("#hmac-sha256="));
    assert!(!format!("{alone:?}").contains("[1, 1"), "{alone:?}");
}

#[test]
fn requests_that_fail_the_condition_are_not_locked() {
    let wanted = tenant().only_when(|parts| parts.uri.path() != "/health");
    let derive = |uri| wanted.derive(&mut parts_of(get(uri)));
    assert_eq!(derive("/health"), Ok(Derived::NoLock));
    assert!(derive("/").is_err());
}

#[test]
fn a_key_function_of_the_program_decides() {
    let own = |parts: &mut Parts| -> Result<Derived, KeyError> {
        match parts.uri.path() {
            "/free" => Ok(Derived::NoLock),
            "/wrong" => Err(KeyError::bad_request("not like this")),
            path => Ok(LockKey::new(path)?.into()),
        }
    };
    let derive = |uri| own.derive(&mut parts_of(get(uri)));
    assert_eq!(derive("/free").unwrap().key(), None);
    assert_eq!(derive("/a").unwrap().key().unwrap().as_str(), "/a");
    assert_eq!(derive("/wrong").unwrap_err().kind(), KeyErrorKind::Refused);
    let long = format!("/{}", "a".repeat(2000));
    assert_eq!(derive(&long).unwrap_err().kind(), KeyErrorKind::Malformed);

    let shared: Arc<dyn DeriveKey> = Arc::new(LockKey::new("all").unwrap());
    let derived = shared.derive(&mut parts_of(get("/"))).unwrap();
    assert_eq!(derived.key().unwrap().as_str(), "all");
}

#[test]
fn a_part_that_cannot_work_panics_in_the_builder() {
    let panics = |f: fn() -> RequestKey| assert!(std::panic::catch_unwind(f).is_err());
    panics(|| key::name(""));
    panics(|| key::request().query(""));
    panics(|| key::request().header("x y"));
    panics(|| key::request().header("x").or(""));
    panics(|| key::name("x").or("y"));
    panics(|| key::request().path().optional());
    panics(|| key::request().method().or("GET"));
    panics(|| key::request().path().hashed_with("short"));
    panics(|| key::name("x").labelled("y"));
    panics(|| key::request().header("x").labelled(""));
    panics(|| key::name("x").parsed_as::<u64>());
    panics(|| key::name("x").value("", 1));
    panics(|| key::name("x").value("y", 1).optional());
}
