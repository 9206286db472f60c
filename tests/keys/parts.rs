//! Each part: accepted and refused values.

use std::{fmt, sync::Arc};

use http::{HeaderValue, Request, Uri, Version, request::Builder};
use tower_distributed_lock::key::{self, KeyErrorKind, RequestKey};

use crate::{key_of, refusal};

fn tenant() -> RequestKey {
    key::request().header("X-Tenant-Id")
}

fn get(uri: &str) -> Builder {
    Request::get(uri)
}

fn bad(kind: KeyErrorKind, message: &str) -> (KeyErrorKind, String) {
    (kind, message.into())
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
        assert_eq!(refusal(&tenant(), request), (kind, message(text)));
    }
    for value in [&b"\xff"[..], b"a\tb", b" a", b"a ", "ü".as_bytes()] {
        let value = HeaderValue::from_bytes(value).unwrap();
        assert_eq!(
            refusal(&tenant(), get("/").header("x-tenant-id", value)),
            (KeyErrorKind::Malformed, message("is not visible ASCII"))
        );
    }
    let request = get("/").header("x-tenant-id", "Acme, Inc");
    assert_eq!(key_of(&tenant(), request), "x-tenant-id=Acme%2C%20Inc");
}

#[test]
fn a_refusal_does_not_repeat_the_clients_text() {
    let request = get("/").header("x-tenant-id", "evil".repeat(200));
    let (kind, message) = refusal(&tenant(), request);
    assert_eq!(kind, KeyErrorKind::TooLong);
    assert_eq!(message, "the header `x-tenant-id` is longer than 512 bytes");
}

#[test]
fn the_limit_can_be_set_and_counts_the_sent_bytes() {
    let commas = |len| get("/").header("x-tenant-id", ",".repeat(len));
    assert_eq!(
        key_of(&tenant(), commas(300)).len(),
        "x-tenant-id=".len() + 900
    );
    let short = tenant().max_value_len(3);
    assert_eq!(key_of(&short, commas(3)), "x-tenant-id=%2C%2C%2C");
    assert_eq!(refusal(&short, commas(4)).0, KeyErrorKind::TooLong);
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
            key_of(&key::request().host(), get("/").header("host", host)),
            "host=example.com"
        );
        let uri = format!("https://{host}/");
        assert_eq!(
            key_of(&key::request().host(), get(&uri)),
            "host=example.com"
        );
        // HTTP/2 may send both.
        let both = get(&uri)
            .version(Version::HTTP_2)
            .header("host", "example.com");
        assert_eq!(key_of(&key::request().host(), both), "host=example.com");
    }
    let v6 = get("/").header("host", "[2001:DB8::1]:8080");
    assert_eq!(key_of(&key::request().host(), v6), "host=%5B2001:db8::1%5D");
}

#[test]
fn a_missing_doubled_or_malformed_host_is_refused() {
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
        assert_eq!(refusal(&key::request().host(), request).0, kind);
    }
}

#[test]
fn a_query_parameter_is_there_once_in_utf8() {
    let q = key::request().query("q");
    for same in ["/?q=a+b", "/?q=a%20b", "/?x=1&%71=a+b&&y"] {
        assert_eq!(key_of(&q, get(same)), "q=a%20b");
    }
    assert_eq!(key_of(&q, get("/?q=a%2Bb=c")), "q=a+b%3Dc");
    for (uri, kind) in [
        ("/", KeyErrorKind::Missing),
        ("/?Q=1", KeyErrorKind::Missing),
        ("/?q=1&q=1", KeyErrorKind::Doubled),
        ("/?q=1&%71=2", KeyErrorKind::Doubled),
        ("/?q", KeyErrorKind::Empty),
        ("/?q=", KeyErrorKind::Empty),
        ("/?q=%ff", KeyErrorKind::Malformed),
    ] {
        assert_eq!(refusal(&q, get(uri)).0, kind, "{uri}");
    }
}

#[test]
fn a_path_has_no_query_and_is_one_in_every_form_of_uri() {
    for uri in ["/a%3Ab", "/a:b?x=1", "http://example.com/a:b"] {
        assert_eq!(key_of(&key::request().path(), get(uri)), "path=/a:b");
    }
    assert_eq!(
        key_of(&key::request().path(), Request::options("*")),
        "path=%2A"
    );
    let connect = Request::connect(Uri::from_static("example.com:80"));
    assert_eq!(
        refusal(&key::request().path(), connect),
        bad(KeyErrorKind::Empty, "the path is empty")
    );
}

#[test]
fn a_long_path_is_hashed_under_a_label_of_its_own() {
    let long = format!("/{}", "a".repeat(600));
    let hashed = key_of(&key::request().path(), get(&long));
    assert_eq!(hashed.len(), "path#sha256=".len() + 64);
    assert!(hashed.starts_with("path#sha256="));
    // The same path in another form, and a forged label.
    assert_eq!(
        key_of(&key::request().path(), get(&long.replace("/a", "/%61"))),
        hashed
    );
    let forged = key_of(
        &key::request().path(),
        get(&format!("/{}", hashed.replace('#', "%23"))),
    );
    assert_ne!(forged, hashed);
    assert_ne!(
        key_of(&key::request().path(), get(&format!("{long}b"))),
        hashed
    );
    // A path of exactly the limit is not hashed.
    let limit = format!("/{}", "a".repeat(511));
    assert_eq!(
        key_of(&key::request().path(), get(&limit)),
        format!("path={limit}")
    );
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
    let wanted = key::request().extension::<Arc<Tenant>>("tenant");
    let with = |name| get("/").extension(Arc::new(Tenant(name)));
    assert_eq!(key_of(&wanted, with("a,b")), "tenant=a%2Cb");
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
        let (kind, message) = refusal(&wanted, request);
        assert_eq!(kind, KeyErrorKind::Misconfigured);
        assert!(message.contains(text), "{message}");
    }
    assert_eq!(key_of(&wanted.clone().optional(), get("/")), "tenant=");
    assert_eq!(key_of(&wanted.or("public"), get("/")), "tenant=public");
}

#[test]
fn a_long_extension_is_hashed() {
    let long = get("/").extension("t".repeat(513));
    let hashed = key_of(&key::request().extension::<String>("tenant"), long);
    assert!(hashed.starts_with("tenant#sha256="), "{hashed}");
}

#[test]
fn an_extension_is_written_by_a_closure() {
    struct User {
        tenant: u64,
    }
    let user = Arc::new(User { tenant: 7 });
    let wanted = key::request().extension_with("tenant", |user: &Arc<User>| user.tenant);
    assert_eq!(key_of(&wanted, get("/").extension(user)), "tenant=7");
    assert_eq!(refusal(&wanted, get("/")).0, KeyErrorKind::Misconfigured);
    let empty = key::request().extension_with("tenant", |_: &u8| "");
    let (kind, _) = refusal(&empty, get("/").extension(7_u8));
    assert_eq!(kind, KeyErrorKind::Misconfigured);
}

#[test]
fn a_typed_part_has_one_form() {
    let account = key::name("account").query("id").parsed_as::<u64>();
    for id in ["7", "07", "007", "%2B7"] {
        assert_eq!(key_of(&account, get(&format!("/?id={id}"))), "account,id=7");
    }
    for id in ["x", "-7", "7.0", "%207"] {
        let (kind, message) = refusal(&account, get(&format!("/?id={id}")));
        assert_eq!(kind, KeyErrorKind::Malformed, "{id}");
        assert_eq!(
            message,
            "the query parameter `id` is not of the expected type"
        );
    }
    let fallback = account.clone().or("007");
    assert_eq!(key_of(&fallback, get("/")), "account,id=7");
    assert_eq!(refusal(&account, get("/?id=")).0, KeyErrorKind::Empty);
}

#[test]
fn a_closure_may_borrow_from_the_request() {
    let wanted = key::request().from_fn("device", |request| {
        let agent = request.headers.get("user-agent")?.to_str().ok()?;
        Some(agent.split('/').next()?.into())
    });
    let request = get("/").header("user-agent", "curl/8.1");
    assert_eq!(key_of(&wanted, request), "device=curl");
}

#[test]
fn a_closure_finds_a_value_or_none() {
    let found =
        |text: Option<&'static str>| key::request().from_fn("x", move |_| text.map(Into::into));
    assert_eq!(key_of(&found(Some("v")), get("/")), "x=v");
    assert_eq!(
        refusal(&found(None), get("/")),
        bad(KeyErrorKind::Missing, "the key part `x` is missing")
    );
    assert_eq!(refusal(&found(Some("")), get("/")).0, KeyErrorKind::Empty);
    assert_eq!(key_of(&found(None).or("w"), get("/")), "x=w");
}
