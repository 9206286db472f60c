use std::time::Duration;

use axum::{
    extract::{Path, Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
use redis::{RedisResult, Script, aio::ConnectionManager};
use tower_distributed_lock::LockGuard;

/// The time to live of the old lock.
pub const OLD_TTL: Duration = Duration::from_secs(30);

/// Holds the lock of the old version as well, inside of the new one.
pub async fn with_old_lock(
    State(mut redis): State<ConnectionManager>,
    Path(id): Path<u64>,
    guard: LockGuard,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let (name, value) = (format!("lock:account:{id}"), guard.owner().to_string());
    let away = |_| StatusCode::SERVICE_UNAVAILABLE;
    while !set_nx(&mut redis, &name, &value).await.map_err(away)? {
        tokio::time::sleep(Duration::from_millis(20)).await; // an old process holds it
    }
    let response = next.run(request).await;
    // If this fails, the old lock expires, as it did before.
    let _ = delete(&mut redis, &name, &value).await;
    Ok(response)
}

pub async fn set_nx(redis: &mut ConnectionManager, name: &str, value: &str) -> RedisResult<bool> {
    let mut set = redis::cmd("SET");
    set.arg(name)
        .arg(value)
        .arg("NX")
        .arg("PX")
        .arg(OLD_TTL.as_millis() as u64);
    set.query_async(redis).await
}

pub async fn delete(redis: &mut ConnectionManager, name: &str, value: &str) -> RedisResult<bool> {
    let script = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";
    Script::new(script)
        .key(name)
        .arg(value)
        .invoke_async(redis)
        .await
}
