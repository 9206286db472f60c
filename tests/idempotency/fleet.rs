//! Real processes of the example `ledger` on one Redis: many at once, killed, and stopped past
//! their lease.

mod exactly_once;
mod process;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;

use self::process::{Client, connect, replica};
use crate::{
    support::{eventually, redis_server::RedisServer, replica::Replica},
    web::Answer,
};

/// How often the payment was really made.
async fn payments(replica: &Replica) -> u64 {
    let answer = connect(replica.addr()).await.get("/payments").await;
    let count: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    count["count"].as_u64().unwrap()
}

/// The parts that are equal in all answers to one request.
fn content(answer: &Answer) -> (StatusCode, Option<&str>, &str) {
    (answer.status, answer.header("location"), answer.text())
}

/// Waits until a handler runs, and returns the name of its lease.
async fn lease(server: &RedisServer) -> String {
    let mut found = None;
    eventually("a handler runs", async || {
        let keys = server.leftovers().await;
        found = keys.into_iter().find(|key| key.contains("idempotency"));
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_duplicates_over_two_processes_run_once_a_hundred_times() {
    let server = RedisServer::start().await;
    let replicas = [replica(&server, 30_000), replica(&server, 30_000)];
    let mut clients: Vec<Client> = Vec::new();
    for at in 0..50 {
        clients.push(connect(replicas[at % 2].addr()).await);
    }
    for round in 1..=100 {
        let key = format!("round-{round}");
        let sent = clients.iter_mut().map(|client| client.pay(&key, 5));
        let answers = join_all(sent).await;
        let ran = answers.iter().filter(|answer| !answer.is_replayed());
        assert_eq!(ran.count(), 1, "round {round}");
        assert_eq!(
            answers[0].status,
            StatusCode::CREATED,
            "{}",
            answers[0].text()
        );
        for answer in &answers {
            assert_eq!(content(answer), content(&answers[0]), "round {round}");
        }
    }
    assert_eq!(payments(&replicas[1]).await, 100);
}

#[tokio::test]
async fn after_a_kill_in_mid_handler_a_retry_runs_once_the_lease_has_passed() {
    let server = RedisServer::start().await;
    let (mut doomed, heir) = (replica(&server, 1000), replica(&server, 1000));
    let mut client = connect(doomed.addr()).await;
    let lost = tokio::spawn(async move { client.try_pay("k", 1500).await.is_err() });
    let lease = lease(&server).await;
    doomed.kill();
    let killed = Instant::now();
    assert!(lost.await.unwrap(), "it was killed in time");
    let left: u64 = server.send(&["PTTL", &lease]).await;
    let retry = connect(heir.addr()).await.pay("k", 1500).await;
    assert_eq!(retry.status, StatusCode::CREATED, "{}", retry.text());
    assert!(!retry.is_replayed());
    // The lease first, then its own work.
    assert!(killed.elapsed() >= Duration::from_millis(left + 1500));
    assert_eq!(payments(&heir).await, 1);
}

#[tokio::test]
async fn a_process_stopped_past_its_lease_does_not_replace_the_stored_answer() {
    let server = RedisServer::start().await;
    let (stopped, other) = (replica(&server, 500), replica(&server, 500));
    let mut client = connect(stopped.addr()).await;
    let first = tokio::spawn(async move { client.pay("k", 1500).await });
    let lease = lease(&server).await;
    stopped.freeze();
    let second = connect(other.addr()).await.pay("k", 1500).await;
    assert_eq!(second.status, StatusCode::CREATED, "{}", second.text());
    assert!(!second.is_replayed());
    let stored: Vec<u8> = server.send(&["GET", &lease]).await;
    stopped.thaw();
    first.await.unwrap().assert_refused(409, "lease-lost");
    let still: Vec<u8> = server.send(&["GET", &lease]).await;
    assert_eq!(still, stored);
    for replica in [&stopped, &other] {
        let again = connect(replica.addr()).await.pay("k", 1500).await;
        assert!(again.is_replayed());
        assert_eq!(content(&again), content(&second));
    }
}
