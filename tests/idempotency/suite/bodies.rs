//! Bodies: too large, broken off, streamed.

use std::io;

use axum::{body::Body, response::IntoResponse};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, future::ready, stream};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::{Instant, timeout};
use tower::ServiceExt;
use tower_distributed_lock::{IdempotencyLayer, idempotency::Keep, key};

use crate::{
    subject::{A_WHILE, Subject},
    support::PATIENCE,
    web::{Answer, Runs, app, layer, pay, pay_as, send, send_body},
};

type Chunk = Result<&'static str, io::Error>;

fn chunks<const N: usize>(chunks: [Chunk; N]) -> impl Stream<Item = Chunk> + Send {
    stream::iter(chunks)
}

fn broke_off() -> Chunk {
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "broke off"))
}

fn assert_not_kept(answer: &Answer) {
    answer.assert_refused(409, "answer-not-kept");
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.problem()["title"], "Completed, answer not kept");
}

pub(crate) async fn a_request_over_the_limit_is_413_without_a_claim(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks).max_request(8), runs.handler());
    let asked = subject.asked().await;
    let too_large = [
        Body::from("123456789"),
        Body::from_stream(chunks([Ok("12345"), Ok("6789")])),
        // The body is read no further than necessary.
        Body::from_stream(chunks([Ok("123456789")]).chain(stream::pending())),
    ];
    for body in too_large {
        let answer = send_body(&app, pay(), body).await;
        answer.assert_refused(413, "body-too-large");
        assert_eq!(answer.problem()["idempotency_key"], "k");
    }
    assert_eq!((runs.begun(), subject.asked().await), (0, asked));
    for (tenant, body) in [
        ("known", Body::from("12345678")),
        (
            "chunked",
            Body::from_stream(chunks([Ok("1234"), Ok("5678")])),
        ),
    ] {
        let answer = send_body(&app, pay_as(tenant), body).await;
        assert_eq!(answer.status, StatusCode::CREATED);
    }
}

pub(crate) async fn a_body_that_breaks_off_is_400_without_a_claim(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let asked = subject.asked().await;
    let broken = Body::from_stream(chunks([Ok("fi"), broke_off()]));
    let answer = send_body(&app, pay(), broken).await;
    answer.assert_refused(400, "body-broken");
    assert_eq!((runs.begun(), subject.asked().await), (0, asked));
    assert_eq!(send(&app, pay()).await.text(), "run 1");
}

pub(crate) async fn a_response_over_the_limit_is_delivered_and_not_run_again(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = |known: bool| {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            match known {
                true => Body::from("123456789"),
                false => Body::from_stream(chunks([Ok("12345"), Ok("6789"), Ok("0")])),
            }
        }
    };
    for (tenant, known, whole) in [
        ("known", true, "123456789"),
        ("chunked", false, "1234567890"),
    ] {
        let app = app(layer(&locks).max_response(8), handler(known));
        assert_eq!(send(&app, pay_as(tenant)).await.text(), whole);
        assert_not_kept(&send(&app, pay_as(tenant)).await);
    }
    assert_eq!(runs.begun(), 2);
}

/// A handler that streams a first word and then the texts of a sender, and that sender.
fn streaming(
    runs: &Runs,
    content_type: &'static str,
) -> (
    impl axum::handler::Handler<((),), ()> + use<>,
    tokio::sync::mpsc::UnboundedSender<&'static str>,
) {
    let (more, rest) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let rest = std::sync::Arc::new(std::sync::Mutex::new(Some(rest)));
    let runs = runs.clone();
    let handler = async move || {
        runs.run().await;
        let rest = rest.lock().unwrap().take().expect("it runs once");
        let rest = stream::unfold(rest, async |mut rest| Some((Ok(rest.recv().await?), rest)));
        let body = Body::from_stream(chunks([Ok("now, ")]).chain(rest));
        ([("content-type", content_type)], body)
    };
    (handler, more)
}

/// Reads a stream that goes on while the key is taken already.
async fn assert_streams(app: axum::Router, more: tokio::sync::mpsc::UnboundedSender<&'static str>) {
    let request = pay().body(Body::from("five")).unwrap();
    let response = timeout(PATIENCE, app.clone().oneshot(request)).await;
    let response = response.expect("it is not kept back").unwrap();
    let mut body = response.into_body().into_data_stream();
    assert_eq!(body.next().await.unwrap().unwrap(), "now, ");
    // The key is taken before the stream has ended.
    assert_not_kept(&send(&app, pay()).await);
    more.send("then").unwrap();
    assert_eq!(body.next().await.unwrap().unwrap(), "then");
    drop(more);
    assert!(body.next().await.is_none());
}

pub(crate) async fn a_stream_is_delayed_by_the_read_limit_and_not_run_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let (handler, more) = streaming(&runs, "application/json");
    let app = app(layer(&locks).read_within(A_WHILE), handler);
    let began = Instant::now();
    assert_streams(app, more).await;
    assert!(began.elapsed() >= A_WHILE);
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn server_sent_events_are_not_held_back(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    // Media types have no case.
    for (at, kind) in ["text/event-stream", "Text/Event-Stream; charset=utf-8"]
        .into_iter()
        .enumerate()
    {
        let (handler, more) = streaming(&runs, kind);
        let scope = key::request()
            .header("x-tenant-id")
            .value("kind", at as u64);
        let layer = IdempotencyLayer::new(locks.clone(), scope);
        let app = app(layer.read_within(10 * PATIENCE), handler);
        assert_streams(app, more).await;
        assert_eq!(runs.begun(), at as u64 + 1);
    }
}

pub(crate) async fn a_stream_that_ends_at_once_is_kept(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || {
        Body::from_stream(chunks([Ok("a"), Ok("b")]))
    });
    for replayed in [false, true] {
        let answer = send(&app, pay()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("ab", replayed));
    }
}

/// As from an upstream: the length is in a header, and unknown to the body.
pub(crate) async fn a_body_in_several_frames_is_awaited_and_kept(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    for (tenant, length) in [("told", Some("10")), ("untold", None)] {
        let app = app(layer(&locks), async move || {
            let later = stream::once(async {
                tokio::time::sleep(A_WHILE).await;
                Ok("later")
            });
            let body = Body::from_stream(chunks([Ok("now, ")]).chain(later));
            let mut response = body.into_response();
            if let Some(length) = length {
                let length = HeaderValue::from_static(length);
                response.headers_mut().insert("content-length", length);
            }
            response
        });
        for replayed in [false, true] {
            let answer = send(&app, pay_as(tenant)).await;
            assert_eq!(
                (answer.text(), answer.is_replayed()),
                ("now, later", replayed)
            );
        }
    }
}

/// More than a task may poll without a break.
pub(crate) async fn two_hundred_frames_are_kept(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || {
        let (send, receive) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..200 {
            send.send(format!("{number} ")).unwrap();
        }
        let frames = stream::unfold(receive, async |mut receive| {
            Some((Ok::<_, io::Error>(receive.recv().await?), receive))
        });
        Body::from_stream(frames)
    });
    let first = send(&app, pay()).await;
    let again = send(&app, pay()).await;
    assert!(again.is_replayed(), "{}", again.text());
    assert_eq!(again.body, first.body);
    assert!(again.text().ends_with("198 199 "));
}

pub(crate) async fn a_response_that_breaks_off_is_not_run_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            Body::from_stream(chunks([Ok("hal"), broke_off()]))
        }
    };
    let app = app(layer(&locks), handler);
    let request = pay().body(Body::from("five")).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    assert_eq!(body.next().await.unwrap().unwrap(), "hal");
    assert!(body.next().await.unwrap().is_err());
    assert_not_kept(&send(&app, pay()).await);
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_cut_answer_looks_cut(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || {
        Body::from_stream(chunks([Ok("{\"amount\": 100"), broke_off()]))
    });
    let request = pay().body(Body::from("five")).unwrap();
    let response = app.oneshot(request).await.unwrap();
    // With a length, a client would take the beginning for the whole.
    assert_eq!(response.headers().get("content-length"), None);
    assert_eq!(http_body::Body::size_hint(response.body()).exact(), None);
    assert!(response.into_body().collect().await.is_err());
}

/// A body of one data frame and trailers.
pub(crate) fn with_trailers(data: &'static str, grpc_status: u16) -> Body {
    let trailers = HeaderMap::from_iter([(
        "grpc-status".parse().unwrap(),
        HeaderValue::from(grpc_status),
    )]);
    let data = Frame::data(Bytes::from_static(data.as_bytes()));
    let frames = [data, Frame::trailers(trailers)].map(Ok::<_, io::Error>);
    Body::new(StreamBody::new(stream::iter(frames)))
}

pub(crate) async fn trailers_are_kept_and_replayed(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || with_trailers("body", 0));
    for replayed in [false, true] {
        let request = pay().body(Body::from("five")).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            replayed
        );
        // A server that knows the length sends no trailers.
        assert_eq!(response.headers().get("content-length"), None);
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(whole.to_bytes(), "body");
    }
}

pub(crate) async fn a_grpc_answer_is_kept_by_its_grpc_status(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    const GRPC: [(&str, &str); 1] = [("content-type", "application/grpc+proto")];
    let runs_of = async |status: u16, trailers_only: bool| {
        let runs_here = runs.clone();
        let handler = async move || {
            runs_here.run().await;
            match trailers_only {
                true => (GRPC, [("grpc-status", status.to_string())]).into_response(),
                false => (GRPC, with_trailers("\0message", status)).into_response(),
            }
        };
        let app = app(layer(&locks), handler);
        let tenant = format!("{status} {trailers_only}");
        let before = runs.begun();
        let first = send(&app, pay_as(&tenant)).await;
        assert_eq!(first.status, StatusCode::OK);
        let again = send(&app, pay_as(&tenant)).await;
        (runs.begun() - before, again.status.as_u16())
    };
    for trailers_only in [false, true] {
        // Clients take a number that gRPC does not have for UNKNOWN.
        for kept in [0, 2, 13, 15, 17] {
            assert_eq!(runs_of(kept, trailers_only).await, (1, 200), "{kept}");
        }
        for free in [3, 5, 7, 8, 14, 16] {
            assert_eq!(runs_of(free, trailers_only).await, (2, 200), "{free}");
        }
        for unknown in [1, 4] {
            assert_eq!(runs_of(unknown, trailers_only).await, (1, 409), "{unknown}");
        }
    }
}

pub(crate) async fn a_policy_sees_the_trailers_of_a_grpc_answer(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            let grpc = [("content-type", "application/grpc")];
            (grpc, with_trailers("\0message", 0))
        }
    };
    let app = app(layer(&locks).keep(Keep::when_errors_do_nothing), handler);
    send(&app, pay()).await;
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_switch_of_protocols_is_not_replayed(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let switch = |keep: Option<Keep>| {
        move || {
            let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
            response.extensions_mut().extend(keep.into_iter().fold(
                http::Extensions::new(),
                |mut extensions, keep| {
                    extensions.insert(keep);
                    extensions
                },
            ));
            ready(response)
        }
    };
    for (tenant, keep) in [("usual", None), ("kept", Some(Keep::Yes))] {
        let app = app(layer(&locks), switch(keep));
        let first = send(&app, pay_as(tenant)).await;
        assert_eq!(first.status, StatusCode::SWITCHING_PROTOCOLS);
        send(&app, pay_as(tenant))
            .await
            .assert_refused(409, "outcome-unknown");
    }
}
