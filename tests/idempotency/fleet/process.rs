//! A client of the example `ledger`.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    support::{PATIENCE, redis_server::RedisServer, replica::Replica},
    web::Answer,
};

pub(crate) fn replica(server: &RedisServer, lease_ms: u64) -> Replica {
    let url = server.url();
    let (lease, wait) = (lease_ms.to_string(), PATIENCE.as_millis().to_string());
    Replica::start(&[("STORE", &url), ("LEASE_MS", &lease), ("WAIT_MS", &wait)])
}

pub(crate) async fn connect(addr: SocketAddr) -> Client {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut running = JoinSet::new();
    running.spawn(async move { drop(connection.await) });
    Client {
        sender,
        _connection: running,
    }
}

/// One connection.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Client {
    /// A payment that takes this long.
    pub(crate) async fn pay(&mut self, key: &str, work_ms: u64) -> Answer {
        self.try_pay(key, work_ms).await.expect("an answer")
    }

    pub(crate) async fn try_pay(&mut self, key: &str, work_ms: u64) -> hyper::Result<Answer> {
        let request = Request::post(format!("/payments?work_ms={work_ms}"))
            .header("idempotency-key", key)
            .header("content-type", "application/json");
        self.send(request, r#"{"account": "a", "amount": 5}"#).await
    }

    /// A payment of the example `exactly_once`.
    pub(crate) async fn pay_once(&mut self, key: &str, amount: &'static str) -> Answer {
        let answer = self.try_pay_once(key, amount).await;
        answer.expect("an answer")
    }

    pub(crate) async fn try_pay_once(
        &mut self,
        key: &str,
        amount: &'static str,
    ) -> hyper::Result<Answer> {
        let request = Request::post("/payments").header("idempotency-key", key);
        self.send(request, amount).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(Request::get(path), "").await.expect("an answer")
    }

    async fn send(
        &mut self,
        request: http::request::Builder,
        body: &'static str,
    ) -> hyper::Result<Answer> {
        let request = request
            .header("host", "localhost")
            .header("x-tenant-id", "acme");
        let request = request.body(Full::from(body)).unwrap();
        let answering = async {
            self.sender.ready().await?;
            let (parts, body) = self.sender.send_request(request).await?.into_parts();
            Ok(Answer {
                status: parts.status,
                headers: parts.headers,
                trailers: None,
                body: body.collect().await?.to_bytes(),
            })
        };
        timeout(PATIENCE, answering).await.expect("it ends in time")
    }
}
