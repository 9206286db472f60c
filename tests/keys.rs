//! Each part of a key, and each refusal.

use std::{fmt, sync::Arc};

use http::{HeaderValue, Request, Uri, Version, request::Builder, request::Parts};
use tower_distributed_lock::{
    LockKey,
    key::{self, DeriveKey, Derived, KeyError, KeyErrorKind, RequestKey},
};

fn parts(request: Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

fn key(key: &RequestKey, request: Builder) -> String {
    match key.derive(&mut parts(request)) {
        Ok(Derived::Key(key)) => key.to_string(),
        other => panic!("no key: {other:?}"),
    }
}

fn refusal(key: RequestKey, request: Builder) -> (KeyErrorKind, String) {
    let error = key.derive(&mut parts(request)).unwrap_err();
    assert_eq!(
        error.is_bad_request(),
        error.kind() != KeyErrorKind::Misconfigured
    );
    (error.kind(), error.to_string())
}

fn bad(kind: KeyErrorKind, message: &str) -> (KeyErrorKind, String) {
    (kind, message.into())
}

fn tenant() -> RequestKey {
    key::header("X-Tenant-Id")
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
        .from_fn("v", |parts| Some(format!("{:?}", parts.version)));
    assert_eq!(
        key(&all, request()),
        "n,path=/a,method=POST,host=example.com,query.q=1,header.x-tenant-id=acme,ext.user=7,fn.v=HTTP/1.1"
    );
    assert_eq!(key(&key::method().path(), request()), "method=POST,path=/a");
    assert_eq!(key(&key::path().method(), request()), "path=/a,method=POST");
}

#[test]
fn equal_values_of_different_parts_are_different_keys() {
    let request = || {
        get("/v?x=v")
            .header("x", "v")
            .extension("v")
            .header("host", "v")
    };
    let v = |_: &Parts| Some("v".to_owned());
    let keys = [
        key::name("v"),
        key::header("x"),
        key::query("x"),
        key::extension::<&str>("x"),
        key::from_fn("x", v),
        key::host(),
        key::name("header.x=v"),
        key::from_fn("x=v", v),
    ];
    let mut texts: Vec<_> = keys.iter().map(|key_of| key(key_of, request())).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), keys.len());
}

#[test]
fn a_required_header_has_exactly_one_visible_value() {
    let message = |text: &str| format!("the header `x-tenant-id` {text}");
    let twice = get("/")
        .header("x-tenant-id", "a")
        .header("x-tenant-id", "a");
    for (request, kind, text) in [
        (get("/"), KeyErrorKind::Missing, "is missing"),
        (twice, KeyErrorKind::Doubled, "is there more than once"),
        (
            get("/").header("x-tenant-id", ""),
            KeyErrorKind::Empty,
            "is empty",
        ),
    ] {
        assert_eq!(refusal(tenant(), request), (kind, message(text)));
    }
    for value in [&b"\xff"[..], b"a\tb", b" a", b"a ", "ü".as_bytes()] {
        let value = HeaderValue::from_bytes(value).unwrap();
        assert_eq!(
            refusal(tenant(), get("/").header("x-tenant-id", value)),
            (KeyErrorKind::Malformed, message("is not visible ASCII"))
        );
    }
    let request = get("/").header("x-tenant-id", "Acme, Inc");
    assert_eq!(key(&tenant(), request), "header.x-tenant-id=Acme%2C%20Inc");
}

#[test]
fn a_refusal_does_not_repeat_what_was_sent() {
    let request = get("/").header("x-tenant-id", "evil".repeat(200));
    let (kind, message) = refusal(tenant(), request);
    assert_eq!(kind, KeyErrorKind::TooLong);
    assert_eq!(message, "the header `x-tenant-id` is longer than 512 bytes");
}

#[test]
fn the_limit_is_a_setter_and_counts_what_was_sent() {
    let commas = |len| get("/").header("x-tenant-id", ",".repeat(len));
    assert_eq!(key(&tenant(), commas(300)).len(), 19 + 900);
    let short = tenant().max_value_len(3);
    assert_eq!(key(&short, commas(3)), "header.x-tenant-id=%2C%2C%2C");
    assert_eq!(refusal(short, commas(4)).0, KeyErrorKind::TooLong);
}

#[test]
fn a_fallback_is_the_value_it_stands_for() {
    let key_of = tenant().or("a,b");
    let sent = key(&key_of, get("/").header("x-tenant-id", "a,b"));
    assert_eq!(key(&key_of, get("/")), sent);
    assert_eq!(sent, "header.x-tenant-id=a%2Cb");
}

#[test]
fn optional_absence_is_no_value_that_could_be_sent() {
    let key_of = tenant().optional().name("x");
    assert_eq!(key(&key_of, get("/")), "header.x-tenant-id=,x");
    assert_eq!(
        key(&key_of, get("/").header("x-tenant-id", "-")),
        "header.x-tenant-id=-,x"
    );
}

#[test]
fn what_is_wrong_is_not_absent() {
    for key_of in [tenant().or("none"), tenant().optional()] {
        let empty = get("/").header("x-tenant-id", "");
        assert_eq!(refusal(key_of.clone(), empty).0, KeyErrorKind::Empty);
        let twice = get("/")
            .header("x-tenant-id", "a")
            .header("x-tenant-id", "b");
        assert_eq!(refusal(key_of, twice).0, KeyErrorKind::Doubled);
    }
}

#[test]
fn a_fallback_is_for_the_part_before_it() {
    let key_of = key::header("a").or("1").header("b").or("2");
    assert_eq!(
        key(&key_of, get("/").header("b", "3")),
        "header.a=1,header.b=3"
    );
    assert_eq!(
        key(&key_of, get("/").header("a", "3")),
        "header.a=3,header.b=2"
    );
}

#[test]
fn hosts_are_canonical_and_have_no_port() {
    for host in [
        "example.com",
        "EXAMPLE.com",
        "example.com:443",
        "example.com.",
        "Example.com.:80",
    ] {
        assert_eq!(
            key(&key::host(), get("/").header("host", host)),
            "host=example.com"
        );
        let uri = format!("https://{host}/");
        assert_eq!(key(&key::host(), get(&uri)), "host=example.com");
        // HTTP/2 may send both.
        let both = get(&uri)
            .version(Version::HTTP_2)
            .header("host", "example.com");
        assert_eq!(key(&key::host(), both), "host=example.com");
    }
    let v6 = get("/").header("host", "[2001:DB8::1]:8080");
    assert_eq!(key(&key::host(), v6), "host=%5B2001:db8::1%5D");
}

#[test]
fn a_host_that_is_none_or_two_is_refused() {
    let two = get("http://a/").header("host", "b");
    for (request, kind) in [
        (get("/"), KeyErrorKind::Missing),
        (two, KeyErrorKind::Doubled),
        (
            get("/").header("host", "a").header("host", "a"),
            KeyErrorKind::Doubled,
        ),
        (get("/").header("host", ""), KeyErrorKind::Empty),
        (get("/").header("host", "."), KeyErrorKind::Empty),
        (get("/").header("host", "a b"), KeyErrorKind::Malformed),
        (get("/").header("host", "a/b"), KeyErrorKind::Malformed),
        (get("/").header("host", "u@a"), KeyErrorKind::Malformed),
        (get("http://u@a/"), KeyErrorKind::Malformed),
    ] {
        assert_eq!(refusal(key::host(), request).0, kind);
    }
}

#[test]
fn a_query_parameter_is_there_once_in_utf8() {
    let q = key::query("q");
    for same in ["/?q=a+b", "/?q=a%20b", "/?x=1&%71=a+b&&y"] {
        assert_eq!(key(&q, get(same)), "query.q=a%20b");
    }
    assert_eq!(key(&q, get("/?q=a%2Bb=c")), "query.q=a+b%3Dc");
    for (uri, kind) in [
        ("/", KeyErrorKind::Missing),
        ("/?Q=1", KeyErrorKind::Missing),
        ("/?q=1&q=1", KeyErrorKind::Doubled),
        ("/?q=1&%71=2", KeyErrorKind::Doubled),
        ("/?q", KeyErrorKind::Empty),
        ("/?q=", KeyErrorKind::Empty),
        ("/?q=%ff", KeyErrorKind::Malformed),
    ] {
        assert_eq!(refusal(q.clone(), get(uri)).0, kind, "{uri}");
    }
}

#[test]
fn a_path_has_no_query_and_is_one_in_every_form_of_uri() {
    for uri in ["/a%3Ab", "/a:b?x=1", "http://example.com/a:b"] {
        assert_eq!(key(&key::path(), get(uri)), "path=/a:b");
    }
    assert_eq!(key(&key::path(), Request::options("*")), "path=%2A");
    let connect = Request::connect(Uri::from_static("example.com:80"));
    assert_eq!(
        refusal(key::path(), connect),
        bad(KeyErrorKind::Empty, "the path is empty")
    );
}

#[test]
fn a_long_path_is_hashed_under_a_label_of_its_own() {
    let long = format!("/{}", "a".repeat(600));
    let hashed = key(&key::path(), get(&long));
    assert_eq!(hashed.len(), "path#sha256=".len() + 64);
    assert!(hashed.starts_with("path#sha256="));
    // The same path in another form, and what a forger would send.
    assert_eq!(key(&key::path(), get(&long.replace("/a", "/%61"))), hashed);
    let forged = key(
        &key::path(),
        get(&format!("/{}", hashed.replace('#', "%23"))),
    );
    assert_ne!(forged, hashed);
    assert_ne!(key(&key::path(), get(&format!("{long}b"))), hashed);
    // Right at the limit it is not.
    let limit = format!("/{}", "a".repeat(511));
    assert_eq!(key(&key::path(), get(&limit)), format!("path={limit}"));
}

struct Tenant(&'static str);

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "broken" => Err(fmt::Error),
            name => f.write_str(name),
        }
    }
}

#[test]
fn a_missing_extension_is_the_servers_fault() {
    let key_of = key::extension::<Arc<Tenant>>("tenant");
    let with = |name| get("/").extension(Arc::new(Tenant(name)));
    assert_eq!(key(&key_of, with("a,b")), "ext.tenant=a%2Cb");
    for (request, text) in [
        (
            get("/"),
            "the request extension `tenant` is not set: add the layer that sets it",
        ),
        (
            with(""),
            "the request extension `tenant` is written as an empty text",
        ),
        (with("broken"), "its `Display` returned an error"),
    ] {
        let (kind, message) = refusal(key_of.clone(), request);
        assert_eq!(kind, KeyErrorKind::Misconfigured);
        assert!(message.contains(text), "{message}");
    }
    assert_eq!(key(&key_of.clone().optional(), get("/")), "ext.tenant=");
    assert_eq!(key(&key_of.or("public"), get("/")), "ext.tenant=public");
}

#[test]
fn a_long_extension_is_hashed() {
    let long = get("/").extension("t".repeat(513));
    let hashed = key(&key::extension::<String>("tenant"), long);
    assert!(hashed.starts_with("ext.tenant#sha256="), "{hashed}");
}

#[test]
fn a_closure_finds_a_value_or_none() {
    let found = |text: Option<&'static str>| key::from_fn("x", move |_| text.map(str::to_owned));
    assert_eq!(key(&found(Some("v")), get("/")), "fn.x=v");
    assert_eq!(
        refusal(found(None), get("/")),
        bad(KeyErrorKind::Missing, "the key part `x` is missing")
    );
    assert_eq!(refusal(found(Some("")), get("/")).0, KeyErrorKind::Empty);
    assert_eq!(key(&found(None).or("w"), get("/")), "fn.x=w");
}

#[test]
fn a_key_that_is_too_long_is_hashed_but_keeps_its_names() {
    let values = ["a", "b", "c"];
    let key_of = key::name("account")
        .name("v1")
        .header("a")
        .header("b")
        .header("c")
        .name("x");
    let request = |last: &str| {
        let long = values.iter().fold(get("/"), |request, name| {
            request.header(*name, format!("{}{last}", "x".repeat(500)))
        });
        key(&key_of, long)
    };
    assert!(request("1").starts_with("account,v1,#sha256="));
    assert_eq!(request("1").len(), "account,v1,#sha256=".len() + 64);
    assert_eq!(request("1"), request("1"));
    assert_ne!(request("1"), request("2"));

    let endless = key::name("n".repeat(2000)).name("m");
    assert!(key(&endless, get("/")).starts_with("#sha256="));
    let forged = key::name("account").name("#sha256=00");
    assert_eq!(key(&forged, get("/")), "account,%23sha256%3D00");
}

#[test]
fn a_keyed_hash_hides_all_but_the_first_names() {
    let request = || get("/").header("x-tenant-id", "acme");
    let key_of = |secret: &[u8]| {
        key(
            &key::name("account")
                .header("x-tenant-id")
                .name("z")
                .hashed_with(secret),
            request(),
        )
    };
    let hidden = key_of(&[1; 32]);
    assert!(hidden.starts_with("account,#hmac-sha256="), "{hidden}");
    assert_eq!(hidden.len(), "account,#hmac-sha256=".len() + 64);
    assert_eq!(hidden, key_of(&[1; 32]));
    assert_ne!(hidden, key_of(&[2; 32]));
    let alone = tenant().hashed_with([1; 32]);
    assert!(key(&alone, request()).starts_with("#hmac-sha256="));
    assert!(!format!("{alone:?}").contains("[1, 1"), "{alone:?}");
}

#[test]
fn only_some_requests_are_locked() {
    let key_of = tenant().only_when(|parts| parts.uri.path() != "/health");
    let derive = |uri| key_of.derive(&mut parts(get(uri)));
    assert_eq!(derive("/health"), Ok(Derived::NoLock));
    assert!(derive("/").is_err());
}

#[test]
fn ones_own_key_function() {
    let own = |parts: &mut Parts| -> Result<Derived, KeyError> {
        match parts.uri.path() {
            "/free" => Ok(Derived::NoLock),
            "/wrong" => Err(KeyError::bad_request("not like this")),
            path => Ok(LockKey::new(path)?.into()),
        }
    };
    let derive = |uri| own.derive(&mut parts(get(uri)));
    assert_eq!(derive("/free").unwrap().key(), None);
    assert_eq!(derive("/a").unwrap().key().unwrap().as_str(), "/a");
    assert_eq!(derive("/wrong").unwrap_err().kind(), KeyErrorKind::Refused);
    let long = format!("/{}", "a".repeat(2000));
    assert_eq!(derive(&long).unwrap_err().kind(), KeyErrorKind::Malformed);

    let shared: Arc<dyn DeriveKey> = Arc::new(LockKey::new("all").unwrap());
    let derived = shared.derive(&mut parts(get("/"))).unwrap();
    assert_eq!(derived.key().unwrap().as_str(), "all");
}

#[test]
fn what_cannot_work_panics_when_it_is_written() {
    let panics = |f: fn() -> RequestKey| assert!(std::panic::catch_unwind(f).is_err());
    panics(|| key::name(""));
    panics(|| key::query(""));
    panics(|| key::header("x y"));
    panics(|| key::header("x").or(""));
    panics(|| key::name("x").or("y"));
    panics(|| key::path().optional());
    panics(|| key::method().or("GET"));
    panics(|| key::path().hashed_with("short"));
}
