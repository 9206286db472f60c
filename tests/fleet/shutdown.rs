//! A process that is told to end (SIGTERM) while handlers run.

use std::time::Duration;

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};
use tower_distributed_lock::{
    Locks,
    store::{List, Store},
};

use crate::{
    instance_and_store,
    processes::Client,
    support::{PATIENCE, eventually, redis_server::RedisServer, replica::Replica},
};

/// A replica that gives its handlers this long to end.
fn replica(server: &RedisServer, grace_ms: &str) -> Replica {
    Replica::start(&[("STORE", &server.url()), ("GRACE_MS", grace_ms)])
}

/// Waits until this many keys of the fleet are held.
async fn are_held(locks: &Locks, keys: usize) {
    eventually("the handlers run", async || {
        locks.list(List::all()).await.unwrap().keys.len() == keys
    })
    .await;
}

/// Sends SIGTERM, and returns how long the process took to end.
async fn terminate(replica: Replica) -> Duration {
    let began = Instant::now();
    let ending = tokio::task::spawn_blocking(move || replica.terminate());
    let ended_well = timeout(PATIENCE, ending).await.expect("the process ends");
    assert!(ended_well.unwrap());
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_end_within_the_grace_are_answered_and_leave_nothing() {
    let server = RedisServer::start().await;
    let (locks, _) = instance_and_store(&server).await;
    let replica = replica(&server, "20000");
    let deposit = tokio::spawn(replica.deposit("7", 500));
    are_held(&locks, 1).await;
    let took = terminate(replica).await;
    assert_eq!(deposit.await.unwrap().expect("an answer").status, 200);
    assert!(took < Duration::from_secs(15), "{took:?}");
    are_held(&locks, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_ends_in_time_although_its_handlers_do_not() {
    let server = RedisServer::start().await;
    let (locks, store) = instance_and_store(&server).await;
    let replica = replica(&server, "500");
    let deposit = tokio::spawn(replica.deposit("7", 600_000));
    let mut payment = TcpStream::connect(replica.addr()).await.unwrap();
    let body = r#"{"account": "a", "amount": 5}"#;
    let request = format!(
        "POST /payments?work_ms=600000 HTTP/1.1\r\nhost: localhost\r\nx-tenant-id: acme\r\nidempotency-key: order-17\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    payment.write_all(request.as_bytes()).await.unwrap();
    are_held(&locks, 2).await;

    let took = terminate(replica).await;
    // The grace, 2 s for releases and 1 s for the last answers.
    assert!(took >= Duration::from_millis(500), "{took:?}");
    assert!(took < Duration::from_secs(12), "{took:?}");
    let refused = deposit.await.unwrap();
    assert!(refused.is_none_or(|answer| answer.status == 409));
    // The deposit's key is free. That of the payment, which was cut off, stays until its lease
    // expires.
    let left = locks.list(List::all()).await.unwrap().keys;
    let [left] = &left[..] else {
        panic!("one key is left: {left:?}");
    };
    assert!(left.as_str().starts_with("idempotency"), "{left}");
    let seen = store.inspect(left.clone()).await.unwrap();
    assert!(seen.holder().is_some() && seen.record.is_none(), "{seen:?}");
}
