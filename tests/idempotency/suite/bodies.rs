//! Bodies: too large, broken off, streamed.

use std::io;

use axum::{body::Body, response::IntoResponse};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, future::ready, stream};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::timeout;
use tower::ServiceExt;
use tower_distributed_lock::idempotency::Keep;

use crate::{
    subject::Subject,
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
        // It is not read any further than necessary.
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

pub(crate) async fn a_stream_is_delivered_without_delay_and_not_run_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let (more, rest) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let rest = std::sync::Arc::new(std::sync::Mutex::new(Some(rest)));
    let handler = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            let rest = rest.lock().unwrap().take().expect("it runs once");
            let rest = stream::unfold(rest, async |mut rest| Some((Ok(rest.recv().await?), rest)));
            Body::from_stream(chunks([Ok("now, ")]).chain(rest))
        }
    };
    let app = app(layer(&locks), handler);
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
    assert_eq!(runs.begun(), 1);
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

/// Says how long it is, and takes its time.
struct Slow<B>(B, u64);

impl<B: http_body::Body + Unpin> http_body::Body for Slow<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        std::pin::Pin::new(&mut self.0).poll_frame(cx)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.1)
    }
}

pub(crate) async fn a_body_of_known_length_is_awaited_and_kept(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || {
        let later = stream::once(async {
            tokio::time::sleep(crate::subject::A_WHILE).await;
            Ok("later")
        });
        let body = Body::from_stream(chunks([Ok("now, ")]).chain(later));
        Body::new(Slow(body, 10))
    });
    for replayed in [false, true] {
        let answer = send(&app, pay()).await;
        assert_eq!(
            (answer.text(), answer.is_replayed()),
            ("now, later", replayed)
        );
    }
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

pub(crate) async fn an_answer_with_trailers_is_not_kept_as_if_it_had_none(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let app = app(layer(&locks), async || {
        let trailers =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(0))]);
        let data = Frame::data(Bytes::from_static(b"body"));
        let frames = [data, Frame::trailers(trailers)].map(Ok::<_, io::Error>);
        Body::new(StreamBody::new(stream::iter(frames)))
    });
    let request = pay().body(Body::from("five")).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), "body");
    assert_not_kept(&send(&app, pay()).await);
}

pub(crate) async fn a_switch_of_protocols_is_not_given_again(subject: impl Subject) {
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
    let usual = app(layer(&locks), switch(None));
    for _ in 0..2 {
        assert_eq!(
            send(&usual, pay()).await.status,
            StatusCode::SWITCHING_PROTOCOLS
        );
    }
    let kept = app(layer(&locks), switch(Some(Keep::Yes)));
    assert_eq!(
        send(&kept, pay()).await.status,
        StatusCode::SWITCHING_PROTOCOLS
    );
    assert_not_kept(&send(&kept, pay()).await);
}
