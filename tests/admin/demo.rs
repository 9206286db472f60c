//! A service with the page, and requests to it.

use std::net::SocketAddr;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tower_distributed_lock::{Locks, admin::Admin};

use crate::support::PATIENCE;

/// A server on a free port, gone with the test.
pub(crate) struct Server {
    addr: SocketAddr,
    _serving: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            addr,
            _serving: serving,
        }
    }

    /// The page at `/locks`, which only reads.
    pub(crate) async fn read_only(locks: &Locks) -> Self {
        Self::page(Admin::new(locks.clone())).await
    }

    /// The page at `/locks`, which may release.
    pub(crate) async fn releasing(locks: &Locks) -> Self {
        Self::page(Admin::new(locks.clone()).allow_force_release()).await
    }

    /// The page at `/locks`, which may write the outcome of a request.
    pub(crate) async fn settling(locks: &Locks) -> Self {
        Self::page(Admin::new(locks.clone()).allow_settle()).await
    }

    async fn page(admin: Admin) -> Self {
        Self::start(Router::new().nest("/locks", admin.router())).await
    }

    pub(crate) fn host(&self) -> String {
        self.addr.to_string()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], String::new()).await
    }

    /// Asks as the page does, and expects an answer.
    pub(crate) async fn ask(&self, name: &str, fields: &[(&str, &str)]) -> Value {
        let answer = self.try_ask(name, fields).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    pub(crate) async fn try_ask(&self, name: &str, fields: &[(&str, &str)]) -> Answer {
        self.ask_with(name, fields, &[("x-locks-admin", "1")]).await
    }

    pub(crate) async fn ask_with(
        &self,
        name: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Answer {
        let path = format!("/locks/api/{name}");
        self.send(Method::POST, &path, headers, form(fields)).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let sending = send(self.addr, method, path, headers, body);
        timeout(PATIENCE, sending).await.expect("a response")
    }
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    addr: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("host", addr.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut running = JoinSet::new();
    running.spawn(async move { drop(connection.await) });
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String {
        let escaped = text.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        escaped.collect()
    };
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", encode(value)));
    fields.collect::<Vec<_>>().join("&")
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}
