//! A server whose clock is wrong: the functions of the scripts, on a real server, with a clock of
//! the test's own.

use redis::{Script, Value};

use crate::support::redis_server::RedisServer;

const LOCK: &str = "tdl:2:{b1}:lock:k";
const QUEUE: &str = "tdl:2:{b1}:queue:k";
const FIRST: &str = "0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:1";
const SECOND: &str = "5d1f0f3c-2b8e-4a6f-8c1d-7e9a0b3c4d22:1";

/// Asks for the key `k` at the given time of the server's clock, in ms. An attempt that is not
/// granted the key waits for 30 s, with a head start of 300 ms.
async fn ask(server: &RedisServer, attempt: &str, now: u64) -> Value {
    let parts = [
        include_str!("../../src/store/redis/lua/value.lua"),
        include_str!("../../src/store/redis/lua/holders.lua"),
        include_str!("../../src/store/redis/lua/queue.lua"),
        include_str!("../../src/store/redis/lua/contend.lua"),
        "local answer = contend(ARGV[1], {}, '30000 300', clock()) return answer or 'granted'",
    ];
    let clock = format!("{{'{}', '{}'}}", now / 1000, now % 1000 * 1000);
    let text = parts.join("\n").replace("redis.call('TIME')", &clock);
    let script = Script::new(&text);
    let mut call = script.key(LOCK);
    let asked = call.key(QUEUE).arg(attempt);
    asked
        .invoke_async(&mut server.connection().await)
        .await
        .unwrap()
}

/// Whether the key was granted.
async fn is_granted(server: &RedisServer, attempt: &str, now: u64) -> bool {
    matches!(ask(server, attempt, now).await, Value::BulkString(_))
}

async fn hold(server: &RedisServer) {
    let lease = "lease:7b0d9a3e-1c4f-4e2a-b5d6-3f8e9c0a1b33:1@web-3";
    server.send::<Value>(&["SET", LOCK, lease]).await;
}

#[tokio::test]
async fn a_clock_that_begins_in_1970_counts_no_deadline_as_an_attempt() {
    let server = RedisServer::start().await;
    let now = 5_000;
    hold(&server).await;
    for attempt in [SECOND, "shared:00000000-0000-4000-8000-000000000000:1"] {
        assert!(!is_granted(&server, attempt, now).await);
    }
    let attempts: Vec<String> = server
        .send(&["ZRANGEBYSCORE", QUEUE, "0", "100000000000"])
        .await;
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    server.send::<Value>(&["DEL", LOCK]).await;
    // Both places have expired by then.
    assert!(is_granted(&server, FIRST, now + 31_000).await);
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn an_offer_from_before_the_clock_was_set_back_lasts_for_a_head_start() {
    let server = RedisServer::start().await;
    let now = 1_794_825_692_000;
    hold(&server).await;
    for attempt in [SECOND, FIRST] {
        assert!(!is_granted(&server, attempt, now).await);
    }
    server.send::<Value>(&["DEL", LOCK]).await;
    // The key is offered to the first attempt in the queue, which does not come.
    assert!(!is_granted(&server, FIRST, now).await);
    let hour_ago = now - 60 * 60 * 1000;
    assert!(!is_granted(&server, FIRST, hour_ago).await);
    assert!(!is_granted(&server, FIRST, hour_ago + 299).await);
    assert!(is_granted(&server, FIRST, hour_ago + 300).await);
}
