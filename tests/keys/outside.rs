//! Keys outside of a request are exactly those that a layer derives.

use http::Request;
use tower_distributed_lock::{
    ErrorKind, LockKey, Locks,
    key::{self, KeyErrorKind, RequestKey},
};

use crate::{
    hostile::{Rng, push_hostile},
    key_of,
};

/// A key of three values that a request can say in any words.
fn order() -> RequestKey {
    key::name("order")
        .extension::<String>("tenant")
        .from_fn("id", |request| {
            Some(request.extensions.get::<Vec<u8>>()?).map(|id| String::from_utf8_lossy(id))
        })
        .query("line")
        .parsed_as::<u64>()
        .or("1")
        .value("region", "eu")
}

#[test]
fn hostile_values_give_the_key_of_the_layer() {
    let keys = [
        order(),
        order().hashed_with([3; 16]),
        order().max_value_len(8),
    ];
    let mut rng = Rng::new(11);
    for round in 0..30_000 {
        let (mut tenant, mut id) = (String::from("t"), String::from("i"));
        push_hostile(&mut rng, &mut tenant);
        push_hostile(&mut rng, &mut id);
        let line = rng.pick(&[None, Some("7"), Some("007")]);
        let uri = line.map_or("/".into(), |line| format!("/?line={line}"));
        let request = Request::post(uri)
            .extension(tenant.clone())
            .extension(id.clone().into_bytes());
        let key = &keys[round % keys.len()];
        let mut values = key.with("tenant", &tenant).with("id", &id);
        if let Some(line) = line {
            values = values.with("line", line);
        }
        assert_eq!(
            values.lock_key().unwrap().as_str(),
            key_of(key, request),
            "{tenant:?} {id:?}"
        );
    }
}

#[test]
fn a_path_a_host_and_a_header_are_brought_into_their_one_form() {
    let key = key::name("n").path().host().header("x-id").optional();
    let request = Request::post("https://Example.com:8080/a%3ab").header("x-id", "A b");
    let given = key
        .with("path", "/a%3Ab")
        .with("host", "EXAMPLE.com.")
        .with("x-id", "A b");
    assert_eq!(given.lock_key().unwrap().as_str(), key_of(&key, request));
    let without = Request::post("https://example.com/a");
    let given = key.with("path", "/a").with("host", "example.com");
    assert_eq!(given.lock_key().unwrap().as_str(), key_of(&key, without));
}

#[test]
fn a_long_key_is_hashed_in_the_same_way() {
    let key = key::name("doc").extension::<String>("title").header("x");
    let title = "t".repeat(600);
    let x = "x".repeat(500);
    let request = Request::post("/").extension(title.clone()).header("x", &x);
    let given = key.with("title", &title).with("x", &x);
    assert_eq!(given.lock_key().unwrap().as_str(), key_of(&key, request));
    let too_long = key.with("title", "t").with("x", "x".repeat(513));
    let error = too_long.lock_key().unwrap_err();
    assert_eq!(error.kind(), KeyErrorKind::TooLong);
}

#[test]
fn values_alone_are_a_key() {
    let key = key::name("account")
        .value("tenant", "acme, inc")
        .value("id", 7);
    assert_eq!(
        key.lock_key().unwrap().as_str(),
        "account,tenant=acme%2C%20inc,id=7"
    );
    assert_eq!(
        key_of(&key, Request::post("/")),
        key.lock_key().unwrap().as_str()
    );
}

#[test]
fn a_value_that_is_missing_unknown_or_wrong_is_an_error() {
    let key = key::name("account").query("id").parsed_as::<u64>();
    let refused = |result: Result<LockKey, key::KeyError>| {
        let error = result.unwrap_err();
        (error.kind(), error.to_string())
    };
    let missing = (
        KeyErrorKind::Missing,
        "the key needs a value for `id`".to_owned(),
    );
    assert_eq!(refused(key.lock_key()), missing);
    let (kind, message) = refused(key.with("di", 7).with("id", 7).lock_key());
    assert_eq!(kind, KeyErrorKind::Misconfigured);
    assert!(message.contains("no part `di`"), "{message}");
    let (kind, _) = refused(key.with("account", 7).with("id", 7).lock_key());
    assert_eq!(kind, KeyErrorKind::Misconfigured);
    assert_eq!(
        refused(key.with("id", "x").lock_key()).0,
        KeyErrorKind::Malformed
    );
    assert_eq!(
        refused(key.with("id", "").lock_key()).0,
        KeyErrorKind::Empty
    );
}

#[tokio::test]
async fn locks_take_a_key_that_is_still_to_be_built() {
    let account = key::name("account").query("id").parsed_as::<u64>();
    let locks = Locks::in_memory();
    let guard = locks.lock(account.with("id", "007")).await.unwrap();
    assert_eq!(guard.key().as_str(), "account,id=7");
    assert!(locks.lock("account,id=7").now().await.unwrap().is_none());
    let error = locks.lock(account.with("id", "x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
}
