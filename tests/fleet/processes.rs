//! Requests to replicas.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{PATIENCE, replica::Replica};

/// How long a replica keeps its keys, in the tests.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Response {
    /// A number in the JSON of the body.
    pub(crate) fn number(&self, field: &str) -> i64 {
        let json: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        json[field]
            .as_i64()
            .unwrap_or_else(|| panic!("no {field} in {}", self.body))
    }
}

/// The requests of a client to the example `ledger`.
pub(crate) trait Client {
    /// Does not hold the replica, which can be killed while a request waits for its answer.
    fn deposit(
        &self,
        account: &str,
        work_ms: u64,
    ) -> impl Future<Output = Option<Response>> + Send + use<Self>;

    async fn account(&self, account: &str) -> Response;
}

impl Client for Replica {
    fn deposit(
        &self,
        account: &str,
        work_ms: u64,
    ) -> impl Future<Output = Option<Response>> + Send + use<> {
        let path = format!("/accounts/{account}/deposits?work_ms={work_ms}");
        send(self.addr(), "POST", path, r#"{"amount": 1}"#)
    }

    async fn account(&self, account: &str) -> Response {
        let path = format!("/accounts/{account}");
        send(self.addr(), "GET", path, "")
            .await
            .expect("a replica that is there answers")
    }
}

/// Sends a request. `None` if the replica ended, or was killed, before its answer.
pub(crate) async fn send(
    addr: SocketAddr,
    method: &'static str,
    path: String,
    body: &'static str,
) -> Option<Response> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-tenant-id: acme\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.ok()?;
        let status = reply.split(' ').nth(1)?.parse().ok()?;
        let body = reply.split_once("\r\n\r\n")?.1.to_owned();
        Some(Response { status, body })
    };
    timeout(PATIENCE, exchange)
        .await
        .expect("no answer, and no end either")
}
