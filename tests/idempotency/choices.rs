//! Choices of the program: the source of the key, the comparison, and the replayed headers.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower_distributed_lock::{
    IdempotencyLayer, Locks,
    store::{FaultyStore, Store},
};

use crate::web::{Runs, app, layer, lock_key, pay, pay_as, send, send_body, sending};

fn header(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

/// How many times the handler runs for these requests, which have one key.
async fn runs_of(
    layer: IdempotencyLayer,
    requests: impl IntoIterator<Item = (http::request::Builder, &'static str)>,
) -> (u64, Vec<u16>) {
    let runs = Runs::free();
    let app = app(layer, runs.handler());
    let mut statuses = Vec::new();
    for (request, body) in requests {
        let answer = send_body(&app, request, body.into()).await;
        statuses.push(answer.status.as_u16());
    }
    (runs.begun(), statuses)
}

#[tokio::test]
async fn the_key_can_come_from_another_header() {
    let locks = Locks::in_memory();
    let github = || layer(&locks).key_header(header("x-github-delivery"));
    let delivery = || Request::post("/hook").header("x-tenant-id", "acme");
    let twice = [(); 2].map(|()| (delivery().header("x-github-delivery", "72d3162e"), ""));
    assert_eq!(runs_of(github(), twice).await, (1, vec![201, 201]));
    // The usual header means nothing then.
    let usual = [(); 2].map(|()| (delivery().header("idempotency-key", "k"), ""));
    assert_eq!(runs_of(github(), usual).await.0, 2);
    let app = app(github().required(), async || {});
    let refused = send(&app, delivery()).await;
    refused.assert_refused(400, "missing-idempotency-key");
    assert!(refused.text().contains("has no x-github-delivery"));
}

#[tokio::test]
async fn the_key_can_come_from_a_closure() {
    let locks = Locks::in_memory();
    let by_query = || {
        layer(&locks).key_from(|parts| {
            let query = parts.uri.query()?;
            Some(query.strip_prefix("event=")?.to_owned())
        })
    };
    let event = |query: &str| {
        let request = Request::post(format!("/hook{query}")).header("x-tenant-id", "acme");
        (request, "")
    };
    let twice = [event("?event=1"), event("?event=1"), event("?event=2")];
    assert_eq!(runs_of(by_query(), twice).await.0, 2);
    assert_eq!(runs_of(by_query(), [event(""), event("")]).await.0, 2);
    let (runs, statuses) = runs_of(by_query(), [event("?event=")]).await;
    assert_eq!((runs, statuses), (0, vec![400]));
}

#[tokio::test]
async fn headers_count_if_they_are_named() {
    let locks = Locks::in_memory();
    let in_version = |tenant, version| (pay_as(tenant).header("x-version", version), "");
    let requests = |tenant| [in_version(tenant, "1"), in_version(tenant, "2")];
    let usual = runs_of(layer(&locks), requests("usual")).await;
    assert_eq!(usual, (1, vec![201, 201]));
    let compared = layer(&locks).compare_headers([header("x-version")]);
    let named = runs_of(compared, requests("named")).await;
    assert_eq!(named, (1, vec![201, 422]));
}

/// Fault: two replicas on different ports refused each other's retries.
#[tokio::test]
async fn the_host_counts_without_its_port() {
    let locks = Locks::in_memory();
    let at = |host| (pay().header("host", host), "");
    let requests = [
        at("a.example:8081"),
        at("A.example"),
        at("a.example:8082"),
        at("b.example:8081"),
    ];
    let (runs, statuses) = runs_of(layer(&locks), requests).await;
    assert_eq!((runs, statuses), (1, vec![201, 201, 201, 422]));
    let at = |host| (pay_as("six").header("host", host), "");
    let requests = [at("[::1]:8081"), at("[::1]"), at("[::2]:8081")];
    let (runs, statuses) = runs_of(layer(&locks), requests).await;
    assert_eq!((runs, statuses), (1, vec![201, 201, 422]));
}

/// Over HTTP/1, a server sends trailers only if the header `Trailer` names them.
#[tokio::test]
async fn trailers_are_replayed_over_http_1() {
    let locks = Locks::in_memory();
    let handler = async || {
        let trailers =
            HeaderMap::from_iter([(header("x-checksum"), HeaderValue::from_static("7"))]);
        let body =
            Full::<Bytes>::from("paid").with_trailers(std::future::ready(Some(Ok(trailers))));
        ([("trailer", "x-checksum")], Body::new(body))
    };
    let app = app(layer(&locks), handler);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async { axum::serve(listener, app).await });
    for replayed in [false, true] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "POST /pay HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: close\r\n\
            x-tenant-id: acme\r\nidempotency-key: k\r\ncontent-length: 4\r\n\r\nfive";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(
            answer.contains("idempotent-replayed: true"),
            replayed,
            "{answer}"
        );
        assert!(answer.ends_with("x-checksum: 7\r\n\r\n"), "{answer}");
    }
    serving.abort();
}

#[tokio::test]
async fn a_fingerprint_closure_replaces_the_whole_comparison() {
    let locks = Locks::in_memory();
    let first_byte = layer(&locks).fingerprint_with(|_, body| body[..1].to_vec());
    let requests = [
        (pay(), "5 EUR"),
        (pay().uri("/other"), "5.00 EUR"),
        (pay(), "6"),
    ];
    let (runs, statuses) = runs_of(first_byte, requests).await;
    assert_eq!((runs, statuses), (1, vec![201, 201, 422]));
}

#[tokio::test]
async fn headers_that_are_never_replayed_can_be_named() {
    let locks = Locks::in_memory();
    let handler = async || {
        [
            ("x-request-id", "1"),
            ("access-control-allow-origin", "https://a.example"),
            ("x-mine", "1"),
            ("x-other", "1"),
        ]
    };
    let app = app(layer(&locks).never_replay([header("x-mine")]), handler);
    let first = send(&app, pay()).await;
    let again = send(&app, pay()).await;
    for name in ["x-request-id", "access-control-allow-origin", "x-mine"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(again.header(name), None, "{name}");
    }
    assert_eq!(again.header("x-other"), Some("1"));
}

/// The claim of a crashed process stays in the store for as long as a record would.
#[tokio::test]
async fn a_request_that_may_run_at_most_once_is_claimed_for_as_long_as_its_record_would_be_kept() {
    for at_most_once in [false, true] {
        let store = FaultyStore::new();
        let locks = Locks::builder(store.clone()).build().unwrap();
        let mut claims = layer(&locks);
        if at_most_once {
            claims = claims.at_most_once();
        }
        let runs = Runs::gated();
        let app = app(claims, runs.handler());
        let first = sending(&app, pay());
        runs.arrival().await;
        let holder = store
            .inspect(lock_key())
            .await
            .unwrap()
            .holder()
            .cloned()
            .unwrap();
        let outlasts_a_crash = holder.remaining > Duration::from_secs(23 * 3600);
        assert_eq!(outlasts_a_crash, at_most_once, "{holder:?}");
        runs.open();
        assert_eq!(first.await.unwrap().status, 201);
        // The record is kept no longer than usual.
        let record = store.inspect(lock_key()).await.unwrap();
        assert!(record.record.is_some() && record.holder().is_none());
    }
}
