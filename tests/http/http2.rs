//! HTTP/2 clients that reset a stream and keep the connection.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request, routing::post};
use bytes::Bytes;
use http::{Request as HttpRequest, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, body::Incoming, client::conn::http2};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tower_distributed_lock::{LockGuard, Locks};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, eventually, lock, nothing_left, within},
};

/// One connection, on which each request is a stream. Dropping the value closes the connection.
struct Connection {
    sender: http2::SendRequest<BoxBody<Bytes, Infallible>>,
    tasks: Tasks,
}

/// Spawns the tasks of a connection for hyper.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock().unwrap();
        tasks.spawn(async move { drop(task.await) });
    }
}

impl Connection {
    async fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(server.addr()).await.unwrap();
        let tasks = Tasks::default();
        let (sender, connection) = http2::handshake(tasks.clone(), TokioIo::new(stream))
            .await
            .unwrap();
        hyper::rt::Executor::execute(&tasks, connection);
        Self { sender, tasks }
    }

    /// Sends a POST on a new stream. Aborting the task resets the stream.
    fn post(&self, path: &str) -> JoinHandle<StatusCode> {
        self.send(path, Full::default().boxed())
    }

    /// Sends a POST whose body never ends. The server's window limits the amount that is sent.
    fn post_endless(&self, path: &str) -> JoinHandle<StatusCode> {
        let chunk = Bytes::from_static(&[b'x'; 16 * 1024]);
        let chunks = futures_util::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
        self.send(path, BodyExt::boxed(StreamBody::new(chunks)))
    }

    fn send(&self, path: &str, body: BoxBody<Bytes, Infallible>) -> JoinHandle<StatusCode> {
        let mut sender = self.sender.clone();
        let request = HttpRequest::post(format!("http://localhost{path}"))
            .body(body)
            .unwrap();
        tokio::spawn(async move {
            sender.ready().await.unwrap();
            let response: Response<Incoming> = sender.send_request(request).await.unwrap();
            response.status()
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.0.lock().unwrap().abort_all();
    }
}

fn gated(locks: &Locks, gate: &Gate) -> Router {
    let gate = gate.clone();
    Router::new()
        .route("/accounts/{id}", post(async move || gate.pass().await))
        .route_layer(lock(locks))
}

#[tokio::test]
async fn a_stream_reset_in_mid_handler_drops_the_handler_and_frees_the_key() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(&locks, &gate)).await;
    let client = Connection::open(&server).await;

    let leaving = client.post("/accounts/7");
    gate.arrival().await;
    let next = client.post("/accounts/7");
    eventually("the next one waits", || locks.stats().waiting == 1).await;

    leaving.abort();
    gate.arrival().await;
    assert_eq!((gate.dropped(), gate.inside()), (1, 1));
    gate.open();
    // The connection still works, because only the stream was reset.
    assert_eq!(within("the next", next).await.unwrap(), StatusCode::OK);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_stream_reset_while_its_request_waits_gives_up_the_place_in_line() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(&locks, &gate)).await;
    let client = Connection::open(&server).await;
    let held = locks.lock(ACCOUNT_7).await.unwrap();

    let leaving = client.post("/accounts/7");
    eventually("the request waits", || locks.stats().waiting == 1).await;
    let staying = client.post("/accounts/7");
    eventually("two wait", || locks.stats().waiting == 2).await;
    leaving.abort();
    eventually("one has left", || locks.stats().waiting == 1).await;

    drop(held);
    gate.arrival().await;
    gate.open();
    let answer = within("the one that stayed", staying).await;
    assert_eq!(answer.unwrap(), StatusCode::OK);
    assert_eq!((gate.finished(), gate.dropped()), (1, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_body_left_unread_does_not_hide_a_reset() {
    for keeps_it in [false, true] {
        let (locks, gate) = (Locks::in_memory(), Gate::default());
        let handler = {
            let gate = gate.clone();
            post(async move |_: LockGuard, request: Request| {
                let kept = keeps_it.then_some(request);
                gate.pass().await;
                drop(kept);
            })
        };
        let app = Router::new()
            .route("/accounts/{id}", handler)
            .route_layer(lock(&locks));
        let server = Server::start(app).await;
        let client = Connection::open(&server).await;

        let leaving = client.post_endless("/accounts/7");
        gate.arrival().await;
        leaving.abort();
        eventually("the handler is dropped", || gate.dropped() == 1).await;
        nothing_left(&locks).await;

        // A reset is noticed while the request waits, too.
        let held = locks.lock(ACCOUNT_7).await.unwrap();
        let leaving = client.post_endless("/accounts/7");
        eventually("the request waits", || locks.stats().waiting == 1).await;
        leaving.abort();
        eventually("the request has left", || locks.stats().waiting == 0).await;
        drop(held);
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn a_connection_that_closes_drops_the_handlers_of_all_its_streams() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(&locks, &gate)).await;
    let client = Connection::open(&server).await;
    let _streams = [client.post("/accounts/7"), client.post("/accounts/8")];
    gate.arrival().await;
    gate.arrival().await;
    drop(client);
    eventually("both are dropped", || gate.dropped() == 2).await;
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_detached_handler_outlives_a_reset_and_keeps_its_key() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    let app = Router::new()
        .route("/accounts/{id}", handler)
        .route_layer(lock(&locks).detached());
    let server = Server::start(app).await;
    let client = Connection::open(&server).await;

    let leaving = client.post("/accounts/7");
    gate.arrival().await;
    leaving.abort();
    // A slow machine cannot fail this check, only a reset that reaches the handler.
    sleep(Duration::from_millis(300)).await;
    assert_eq!((gate.inside(), gate.dropped()), (1, 0));
    assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
    gate.open();
    nothing_left(&locks).await;
    assert_eq!(gate.finished(), 1);
}
