//! Turns that are held until the response's body has ended.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::State, routing::any};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tower_distributed_lock::{Locks, store::FaultyStore};

use crate::support::{Server, eventually, lock, nothing_left, take_away, watchful, within};

/// The sender of a body that a test feeds, and the senders for all bodies of a route.
type Feed = mpsc::UnboundedSender<Bytes>;
type Feeds = mpsc::UnboundedReceiver<Feed>;

async fn fed(State(feeds): State<mpsc::UnboundedSender<Feed>>) -> Body {
    let (feed, mut frames) = mpsc::unbounded_channel();
    feeds.send(feed).unwrap();
    Body::from_stream(futures_util::stream::poll_fn(move |cx| {
        frames
            .poll_recv(cx)
            .map(|frame| frame.map(Ok::<_, Infallible>))
    }))
}

async fn serve(locks: &Locks) -> (Server, Feeds) {
    let (feeds, bodies) = mpsc::unbounded_channel();
    let lock = lock(locks).all_methods();
    let app = Router::new()
        .route("/accounts/{id}", any(fed))
        .route_layer(lock.hold_until_body_ends())
        .with_state(feeds);
    (Server::start(app).await, bodies)
}

async fn next(feeds: &mut Feeds) -> Feed {
    within("a handler to be run", feeds.recv()).await.unwrap()
}

fn request() -> Request<Full<Bytes>> {
    Request::post("/accounts/7").body(Full::default()).unwrap()
}

#[tokio::test]
async fn a_slow_body_keeps_the_key_until_its_end() {
    let locks = Locks::in_memory();
    let (server, mut feeds) = serve(&locks).await;
    let mut client = server.connect().await;
    let mut response = client.head(request()).await.unwrap();
    let feed = next(&mut feeds).await;
    feed.send("some".into()).unwrap();
    let frame = within("a frame", response.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "some");

    let second = tokio::spawn(server.post("/accounts/7"));
    eventually("the second waits", || locks.stats().waiting == 1).await;
    drop(feed);
    assert!(within("the end", response.frame()).await.is_none());
    drop(next(&mut feeds).await);
    assert_eq!(
        within("the second", second).await.unwrap().status,
        StatusCode::OK
    );
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_slow_reader_keeps_the_key() {
    let locks = Locks::in_memory();
    let large = Bytes::from(vec![b'x'; 32 << 20]);
    let lock = lock(&locks).hold_until_body_ends();
    let body = large.clone();
    let app = Router::new().route(
        "/accounts/{id}",
        axum::routing::post(async move || {
            // The body has many pieces, so that some are still unsent when the connection is full.
            let pieces =
                (0..32).map(move |at| Ok::<_, Infallible>(body.slice(at << 20..(at + 1) << 20)));
            Body::from_stream(futures_util::stream::iter(pieces))
        })
        .route_layer(lock),
    );
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    let response = client.head(request()).await.unwrap();
    let second = tokio::spawn(server.post("/accounts/7"));
    eventually("the second waits", || locks.stats().waiting == 1).await;
    let body = within("the body", response.collect())
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(body, large);
    assert_eq!(within("the second", second).await.unwrap().body, large);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn without_the_option_a_body_keeps_no_key() {
    let locks = Locks::in_memory();
    let (feeds, mut bodies) = mpsc::unbounded_channel();
    let app = Router::new()
        .route("/accounts/{id}", any(fed))
        .route_layer(lock(&locks))
        .with_state(feeds);
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    let response = client.head(request()).await.unwrap();
    let feed = next(&mut bodies).await;
    nothing_left(&locks).await;
    drop((feed, response));
}

#[tokio::test]
async fn a_client_that_goes_away_in_mid_body_frees_the_key() {
    let locks = Locks::in_memory();
    let (server, mut feeds) = serve(&locks).await;
    let mut client = server.connect().await;
    let response = client.head(request()).await.unwrap();
    let feed = next(&mut feeds).await;
    assert_eq!(locks.stats().keys, 1);
    drop((response, client));
    nothing_left(&locks).await;
    within("the body is dropped", feed.closed()).await;
}

#[tokio::test]
async fn a_lease_lost_in_mid_stream_ends_the_body_with_an_error() {
    let store = FaultyStore::new();
    let locks = watchful(&store);
    let (server, mut feeds) = serve(&locks).await;
    let mut client = server.connect().await;
    let mut response = client.head(request()).await.unwrap();
    let feed = next(&mut feeds).await;
    feed.send("some".into()).unwrap();
    within("a frame", response.frame()).await.unwrap().unwrap();

    take_away(&store).await;
    let error = within("the error", response.frame()).await.unwrap();
    assert!(error.is_err(), "an incomplete body must not look complete");
    within("what makes the body is dropped", feed.closed()).await;
    nothing_left(&locks).await;
}

#[tokio::test]
async fn responses_without_a_body_keep_no_key() {
    let locks = Locks::in_memory();
    let lock = lock(&locks).all_methods();
    let app = Router::new()
        .route("/accounts/{id}", any(|| async {}))
        .route("/accounts/{id}/body", any(|| async { "a body" }))
        .route_layer(lock.hold_until_body_ends());
    let server = Server::start(app).await;
    assert_eq!(
        server.post("/accounts/7").await.header("content-length"),
        Some("0")
    );
    nothing_left(&locks).await;
    // The server drops the body of an answer to HEAD unsent.
    let head = server.send(Method::HEAD, "/accounts/7/body").await;
    assert_eq!(
        (head.header("content-length"), head.text()),
        (Some("6"), "")
    );
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_known_length_stays_known() {
    let locks = Locks::in_memory();
    let layer = lock(&locks);
    for lock in [layer.clone(), layer.hold_until_body_ends()] {
        let app = Router::new()
            .route("/accounts/{id}", any(|| async { "seven letters" }))
            .route_layer(lock);
        let answer = Server::start(app).await.post("/accounts/7").await;
        assert_eq!(answer.header("content-length"), Some("13"));
        assert_eq!(answer.header("transfer-encoding"), None);
        nothing_left(&locks).await;
    }
}
