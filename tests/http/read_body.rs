//! Bodies that are read before a request contends.

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::io::AsyncWriteExt;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, Locks, ReadBodyLayer,
    key::{self, RequestKey},
    read_body::WholeBody,
};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, eventually, lock, nothing_left, read_to_end, within},
};

fn app(locks: &Locks, gate: &Gate) -> Router {
    let gate = gate.clone();
    let handler = async move |body: Bytes| {
        gate.pass().await;
        body
    };
    Router::new()
        .route("/accounts/{id}", post(handler))
        .route_layer(lock(locks))
        .route_layer(ReadBodyLayer::new(16))
}

fn head(headers: &str) -> String {
    format!("POST /accounts/7 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n\r\n")
}

async fn assert_refused(response: &str, status: &str, reason: &str, gate: &Gate, locks: &Locks) {
    assert!(
        response.starts_with(&format!("HTTP/1.1 {status}")),
        "{response}"
    );
    assert!(response.contains("application/problem+json"), "{response}");
    assert!(response.contains(&format!("#{reason}\"")), "{response}");
    assert_eq!(gate.inside() + gate.finished() + gate.dropped(), 0);
    nothing_left(locks).await;
}

#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_the_body_comes() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    let mut client = server.raw(head("content-length: 17")).await;
    let response = read_to_end(&mut client).await;
    assert_refused(&response, "413", "body-too-large", &gate, &locks).await;
}

#[tokio::test]
async fn chunks_are_refused_as_soon_as_they_exceed_the_limit() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    // The body has no end.
    let chunks = "\r\n\r\na\r\n0123456789\r\n7\r\n0123456\r\n";
    let start = head("transfer-encoding: chunked");
    let mut client = server.raw(start.trim_end().to_owned() + chunks).await;
    let response = read_to_end(&mut client).await;
    assert_refused(&response, "413", "body-too-large", &gate, &locks).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_400() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    let broken = head("transfer-encoding: chunked") + "not a length\r\n";
    let mut client = server.raw(broken).await;
    let response = read_to_end(&mut client).await;
    assert_refused(&response, "400", "body-broken", &gate, &locks).await;
}

#[tokio::test]
async fn a_body_up_to_the_limit_reaches_the_handler_whole() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    let chunked =
        head("transfer-encoding: chunked") + "a\r\n0123456789\r\n6\r\nabcdef\r\n0\r\n\r\n";
    for request in [head("content-length: 16") + "0123456789abcdef", chunked] {
        gate.open();
        let mut client = server.raw(request).await;
        let response = read_to_end(&mut client).await;
        assert!(response.ends_with("\r\n\r\n0123456789abcdef"), "{response}");
    }
}

#[tokio::test]
async fn an_upload_that_trickles_in_holds_no_key() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    let mut slow = server.raw(head("content-length: 2") + "1").await;

    let quick = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    gate.open();
    assert_eq!(
        within("the quick one", quick).await.unwrap().status,
        StatusCode::OK
    );
    nothing_left(&locks).await;

    slow.write_all(b"2").await.unwrap();
    gate.arrival().await;
    gate.open();
    assert!(read_to_end(&mut slow).await.ends_with("\r\n\r\n12"));
}

#[tokio::test]
async fn without_the_layer_a_large_upload_that_waits_hides_that_the_client_has_gone() {
    let locks = Locks::in_memory();
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let lock = lock(&locks);
    let app = Router::new().route("/accounts/{id}", post(|| async {}).route_layer(lock));
    let server = Server::start(app).await;
    let client = server.raw(head("content-length: 2") + "1").await;
    eventually("the request waits", || locks.stats().waiting == 1).await;
    drop(client);
    // A slow machine cannot fail this check, only a server that notices after all.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(locks.stats().waiting, 1);
    drop(held);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_client_that_goes_away_is_noticed_while_its_complete_request_waits() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(app(&locks, &gate)).await;
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let client = server.raw(head("content-length: 2") + "12").await;
    eventually("the request waits", || locks.stats().waiting == 1).await;
    drop(client);
    eventually("the request has left", || locks.stats().waiting == 0).await;
    drop(held);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_refusal_by_an_outer_limit_stays_413() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let limit = axum::middleware::map_request(async |request: axum::extract::Request| {
        request.map(|body| axum::body::Body::new(http_body_util::Limited::new(body, 8)))
    });
    let server = Server::start(app(&locks, &gate).layer(limit)).await;
    let start = head("transfer-encoding: chunked");
    let chunks = "\r\n\r\na\r\n0123456789\r\n0\r\n\r\n";
    let mut client = server.raw(start.trim_end().to_owned() + chunks).await;
    let response = read_to_end(&mut client).await;
    assert_refused(&response, "413", "body-too-large", &gate, &locks).await;
}

/// A service on hyper alone. Its body, `Incoming`, cannot be made from bytes.
#[tokio::test]
async fn bodies_of_hyper_itself_can_be_read() {
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use tower::ServiceBuilder;
    use tower_distributed_lock::{IdempotencyLayer, gate, key};

    type Twice = gate::Body<gate::Body<Incoming>>;
    let locks = Locks::in_memory();
    let echo = async |request: http::Request<Twice>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(body)))
    };
    let service = ServiceBuilder::new()
        .layer(ReadBodyLayer::new(16).any_body())
        .layer(IdempotencyLayer::new(locks, key::name("everybody")).any_body())
        .service_fn(echo);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::at(listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(service.clone());
            let stream = hyper_util::rt::TokioIo::new(stream);
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::spawn(serving.serve_connection(stream, service));
        }
    });
    let mut client = server.connect().await;
    for replayed in [None, Some("true")] {
        let request = http::Request::post("/").header("idempotency-key", "k");
        let answer = client.whole(request.body("body".into()).unwrap()).await;
        let answer = answer.unwrap();
        assert_eq!(answer.text(), "body");
        assert_eq!(answer.header("idempotent-replayed"), replayed);
    }
}

/// Keys from a body, written in two ways.
fn from_body() -> [RequestKey; 2] {
    let text = |WholeBody(body): &WholeBody| String::from_utf8(body.to_vec()).ok();
    let computed = key::name("account").from_fn("id", move |request| {
        let body = request.extensions.get::<WholeBody>()?;
        Some(text(body)?.into())
    });
    let extension =
        key::name("account").extension_with("id", move |body| text(body).unwrap_or_default());
    [computed, extension]
}

#[tokio::test]
async fn a_key_from_a_body_that_was_not_read_is_500_and_the_error_names_the_layer() {
    let locks = Locks::in_memory();
    for key in from_body() {
        let app = Router::new().route("/accounts/{id}", post(async || {}));
        let lock = || DistributedLockLayer::new(locks.clone(), key.clone());
        let inside = app.clone().route_layer(ReadBodyLayer::new(16));
        let outside = app.clone().route_layer(lock());
        for (app, status) in [
            (app.route_layer(lock()), 500),
            (inside.route_layer(lock()), 500),
            (outside.route_layer(ReadBodyLayer::new(16)), 200),
        ] {
            let server = Server::start(app).await;
            let request = Request::post("/accounts/7").body("seven".into()).unwrap();
            let answer = server.connect().await.whole(request).await.unwrap();
            assert_eq!(answer.status, status, "{}", answer.text());
            if status == 500 {
                assert_eq!(answer.reason(), "misconfigured");
                let detail = answer.json()["detail"].to_string();
                assert!(detail.contains("add a `ReadBodyLayer` outside"), "{detail}");
            }
        }
    }
}

/// The client is at fault, once the body was read.
#[tokio::test]
async fn a_body_that_gives_no_key_is_400() {
    let [computed, _] = from_body();
    let app = Router::new()
        .route("/accounts/{id}", post(async || {}))
        .route_layer(DistributedLockLayer::new(Locks::in_memory(), computed))
        .route_layer(ReadBodyLayer::new(16));
    let server = Server::start(app).await;
    let request = Request::post("/accounts/7").body(Bytes::from_static(b"\xff").into());
    let answer = server
        .connect()
        .await
        .whole(request.unwrap())
        .await
        .unwrap();
    assert_eq!(
        (answer.status.as_u16(), &*answer.reason()),
        (400, "bad-key")
    );
}

#[tokio::test]
async fn a_key_can_come_from_the_body_that_an_idempotency_layer_has_read() {
    let locks = Locks::in_memory();
    let handler = async |guard: tower_distributed_lock::LockGuard, body: String| {
        format!("{} for {body}", guard.key())
    };
    for key in from_body() {
        let idempotent = IdempotencyLayer::new(locks.clone(), key::name("all").path());
        let app = Router::new()
            .route("/accounts/{id}", post(handler))
            .route_layer(DistributedLockLayer::new(locks.clone(), key))
            .route_layer(idempotent);
        let server = Server::start(app).await;
        let request = Request::post("/accounts/7").header("idempotency-key", "k");
        let request = request.body("seven".into()).unwrap();
        let answer = server.connect().await.whole(request).await.unwrap();
        assert_eq!(answer.text(), "account,id=seven for seven");
    }
}
