//! The ledger example as processes of their own.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::PATIENCE;

/// One replica. It is killed when this is dropped.
pub(crate) struct Replica {
    process: Child,
    port: u16,
}

/// What came back over HTTP.
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

impl Replica {
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        let mut process = Command::new(ledger())
            .envs(settings.iter().copied())
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the ledger example starts");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it listens").unwrap();
        let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
        Self {
            process,
            port: port.unwrap_or_else(|| panic!("no port in {line:?}")),
        }
    }

    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Ends it gracefully, and says whether it ended well.
    pub(crate) fn terminate(mut self) -> bool {
        self.signal("-TERM");
        self.process.wait().is_ok_and(|status| status.success())
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "kill {signal} {id}"
        );
    }

    /// Does not hold the replica, so that this can be killed while somebody waits for its answer.
    pub(crate) fn deposit(
        &self,
        account: &str,
        work_ms: u64,
    ) -> impl Future<Output = Option<Response>> + Send + use<> {
        let path = format!("/accounts/{account}/deposits?work_ms={work_ms}");
        send(self.port, "POST", path, r#"{"amount": 1}"#)
    }

    pub(crate) async fn account(&self, account: &str) -> Response {
        let path = format!("/accounts/{account}");
        send(self.port, "GET", path, "")
            .await
            .expect("a replica that is there answers")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `None` if the replica ended, or was ended, before it answered.
async fn send(
    port: u16,
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
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
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

/// The example's binary, beside this test's own. `cargo test` builds it; `cargo test --test fleet` does not.
fn ledger() -> &'static PathBuf {
    static LEDGER: OnceLock<PathBuf> = OnceLock::new();
    LEDGER.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--example", "ledger", "--all-features"])
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "the ledger example builds"
        );
        let test = std::env::current_exe().unwrap();
        let debug = test.ancestors().nth(2).unwrap();
        debug.join("examples").join("ledger")
    })
}

/// How long a replica keeps its keys, in the tests.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);
