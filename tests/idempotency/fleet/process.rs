//! A process of the example `ledger`, and a client of it.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    support::{PATIENCE, redis_server::RedisServer},
    web::Answer,
};

/// Builds the example beside this test, with the same features: after a `cargo test` there is nothing to be done.
fn ledger() -> &'static PathBuf {
    static LEDGER: OnceLock<PathBuf> = OnceLock::new();
    LEDGER.get_or_init(|| {
        let this = env::current_exe().unwrap();
        let profile = this.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--example",
            "ledger",
            "--no-default-features",
        ]);
        cargo.arg("--features").arg(features());
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        cargo
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example must build");
        profile.join("examples").join("ledger")
    })
}

fn features() -> String {
    let features = [
        ("axum", cfg!(feature = "axum")),
        ("redis", cfg!(feature = "redis")),
        ("tracing", cfg!(feature = "tracing")),
        ("json", cfg!(feature = "json")),
        ("tls-rustls", cfg!(feature = "tls-rustls")),
    ];
    let on = features.iter().filter(|(_, on)| *on).map(|(name, _)| *name);
    on.collect::<Vec<_>>().join(",")
}

pub(crate) struct Replica {
    child: Child,
    addr: SocketAddr,
}

impl Replica {
    pub(crate) fn start(server: &RedisServer, lease_ms: u64) -> Self {
        let mut child = Command::new(ledger())
            .env("PORT", "0")
            .env("STORE", server.url())
            .env("LEDGER", server.url())
            .env("LEASE_MS", lease_ms.to_string())
            .env("WAIT_MS", PATIENCE.as_millis().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let addr = line.trim().rsplit(' ').next().unwrap();
        let addr = addr
            .parse()
            .unwrap_or_else(|_| panic!("no address: {line}"));
        Self { child, addr }
    }

    pub(crate) async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { drop(connection.await) });
        Client {
            sender,
            _connection: running,
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.expect("`kill` is there").success());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One connection.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Client {
    /// A payment that takes so long.
    pub(crate) async fn pay(&mut self, key: &str, work_ms: u64) -> Answer {
        self.try_pay(key, work_ms).await.expect("an answer")
    }

    pub(crate) async fn try_pay(&mut self, key: &str, work_ms: u64) -> hyper::Result<Answer> {
        let request = Request::post(format!("/payments?work_ms={work_ms}"))
            .header("idempotency-key", key)
            .header("content-type", "application/json");
        self.send(request, r#"{"account": "a", "amount": 5}"#).await
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
                body: body.collect().await?.to_bytes(),
            })
        };
        timeout(PATIENCE, answering).await.expect("it ends in time")
    }
}
