//! The load: clients that each stay with one replica, so that a replica that stands still stops its
//! own clients only.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    fleet::Fleet,
    random::Random,
    record::{Answer, Asked, Event, Recorder, Request},
};

/// The accounts, and whether the ledger compares tokens for them.
pub(crate) const ACCOUNTS: [(&str, bool); 6] = [
    ("fenced-a", true),
    ("fenced-b", true),
    ("fenced-c", true),
    ("fenced-d", true),
    ("unfenced-a", false),
    ("unfenced-b", false),
];

/// A request without an answer after this time never gets one.
const LIMIT: Duration = Duration::from_secs(60);

/// One client.
pub(crate) struct Client {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) record: Arc<Recorder>,
    pub(crate) replica: usize,
    pub(crate) random: Random,
    pub(crate) stopped: Arc<AtomicBool>,
}

impl Client {
    /// Deposits to one account again and again.
    pub(crate) async fn deposit(mut self, account: &'static str, fenced: bool) {
        let mut count = 0;
        while !self.stopped.load(Relaxed) {
            count += 1;
            let id = format!("{account}-{}-{count}", self.replica);
            let work = self.random.within(0..12);
            let path = format!(
                "/accounts/{account}/deposits?work_ms={work}&unfenced={}",
                !fenced
            );
            let body = format!(r#"{{"amount": 1, "id": "{id}"}}"#);
            let account = account.to_owned();
            let asked = Asked::Deposit {
                account,
                fenced,
                id,
            };
            self.send(asked, post(&path, "", &body)).await;
        }
    }

    /// Pays with idempotency keys that all clients share: most keys are sent about three times,
    /// some again later.
    pub(crate) async fn pay(mut self, sent: Arc<AtomicU64>) {
        while !self.stopped.load(Relaxed) {
            let mut number = sent.fetch_add(1, Relaxed) / 3;
            if self.random.percent(10) {
                number = number.saturating_sub(self.random.within(1..100));
            }
            // One key always stands for the same request: the replicas refuse another one.
            let (key, work) = (format!("pay-{number}"), number % 30);
            let path = format!("/payments?work_ms={work}");
            let body = format!(r#"{{"account": "{key}", "amount": 1}}"#);
            let header = format!("idempotency-key: {key}\r\n");
            self.send(Asked::Payment { key }, post(&path, &header, &body))
                .await;
            sleep(Duration::from_millis(self.random.within(0..20))).await;
        }
    }

    /// Sends a request and records its outcome; waits a little after a refusal.
    async fn send(&mut self, asked: Asked, request: String) {
        let Some(addr) = self.fleet.addr(self.replica) else {
            sleep(Duration::from_millis(20)).await;
            return;
        };
        let leaves = self.random.percent(3);
        let patience = if leaves {
            Duration::from_millis(self.random.within(0..40))
        } else {
            LIMIT
        };
        let at = self.record.now();
        let answered = timeout(patience, exchange(addr, &request)).await;
        let abandoned = leaves && answered.is_err();
        let answer = answered.ok().flatten();
        let refused = answer.as_ref().is_none_or(|answer| answer.status >= 400);
        self.record.add(&Event::Request(Request {
            at,
            until: self.record.now(),
            replica: self.replica,
            asked,
            abandoned,
            answer,
        }));
        let pause = if refused { 10..40 } else { 0..10 };
        sleep(Duration::from_millis(self.random.within(pause))).await;
    }
}

fn post(path: &str, header: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-tenant-id: acme\r\nconnection: close\r\n{header}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks a replica that answers.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> serde_json::Value {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nx-tenant-id: acme\r\nconnection: close\r\n\r\n"
    );
    let answer = timeout(LIMIT, exchange(addr, &request)).await;
    let answer = answer.ok().flatten().expect("a replica answers");
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{path}: {}", answer.body))
}

/// `None` if the connection ended without an answer.
async fn exchange(addr: SocketAddr, request: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(other, value)| other.eq_ignore_ascii_case(name).then_some(value))
    };
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        body: body.to_owned(),
        token: json["token"].as_u64(),
        balance: json["balance"].as_i64(),
        replayed: header("idempotent-replayed").is_some(),
        stored: header("idempotency-stored").map(str::to_owned),
    })
}
