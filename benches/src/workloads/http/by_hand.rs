//! What people write instead of the layers: a lock around the handler, idempotency, a mutex for each key.

use std::{sync::Arc, sync::LazyLock};

use axum::{
    body::{Body, to_bytes},
    extract::{RawPathParams, Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use dashmap::DashMap;
use redis::{Script, cmd};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::peers::{Client, HandWritten, LEASE};

/// How long an answer is kept.
const RETAIN_MS: u64 = 60_000;
const LARGEST_BODY: usize = 1 << 20;
/// The length of a fingerprint in hexadecimal digits.
const FINGERPRINT: usize = 64;

/// Takes the lock, runs the handler, and releases the lock before the response leaves.
pub(super) async fn lock_around(
    State(locks): State<HandWritten>,
    params: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let id = params.iter().find(|(name, _)| *name == "id");
    let (_, id) = id.expect("the route has an id");
    let held = locks.lock_text(&format!("account:{id}")).await;
    let response = next.run(request).await;
    locks.release(held).await;
    response
}

static KEEP_IF_OURS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2]) return 1 end return 0",
    )
});

/// Idempotency that is complete: the request's body counts, the answer is read to its end, and only whoever has the claim keeps
/// an answer. A claim is the fingerprint and a token, an answer the fingerprint, the status, the type of the content and the body.
pub(super) async fn once(
    State(locks): State<HandWritten>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST_BODY).await.expect("a short body");
    let value = |name| {
        parts
            .headers
            .get(name)
            .map_or(&b""[..], |value| value.as_bytes())
    };
    let key = [
        b"once:",
        value("x-tenant-id"),
        b":",
        value("idempotency-key"),
    ]
    .concat();
    let mut hash = Sha256::new();
    hash.update(parts.method.as_str());
    hash.update(parts.uri.path());
    hash.update(&body);
    let mut fingerprint = String::with_capacity(FINGERPRINT);
    for byte in hash.finalize() {
        fingerprint.push_str(&format!("{byte:02x}"));
    }
    let claim = format!("{fingerprint}?{}", Uuid::new_v4());
    let mut connection = locks.connection();
    let mut set = cmd("SET");
    set.arg(&key).arg(&claim).arg("NX").arg("GET");
    set.arg("PX").arg(LEASE.as_millis() as u64);
    let found: Option<Bytes> = set.query_async(&mut connection).await.expect("SET");
    if let Some(found) = found {
        return replay(&fingerprint, &found);
    }
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, LARGEST_BODY).await.expect("a short answer");
    let content_type = parts.headers.get(CONTENT_TYPE);
    let content_type = content_type.map_or(&b""[..], |value| value.as_bytes());
    let status = parts.status.as_str().as_bytes();
    let record = [fingerprint.as_bytes(), status, content_type, b"\n", &body].concat();
    let mut keep = KEEP_IF_OURS.prepare_invoke();
    keep.key(&key).arg(&claim).arg(record).arg(RETAIN_MS);
    let is_kept: bool = keep
        .invoke_async(&mut connection)
        .await
        .expect("the record");
    assert!(is_kept, "the claim was lost");
    Response::from_parts(parts, Body::from(body))
}

fn replay(fingerprint: &str, found: &Bytes) -> Response {
    if !found.starts_with(fingerprint.as_bytes()) {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    let rest = found.slice(FINGERPRINT..);
    if rest.starts_with(b"?") {
        return StatusCode::CONFLICT.into_response();
    }
    let end = rest.iter().position(|byte| *byte == b'\n');
    let end = end.expect("an end of the content's type");
    let status = StatusCode::from_bytes(&rest[..3]).expect("a status");
    let mut response = (status, Body::from(rest.slice(end + 1..))).into_response();
    let content_type = rest[3..end].try_into().expect("a value of a header");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A mutex for each key, which goes with its last user.
#[derive(Clone, Default)]
pub(super) struct KeyedMutexes(Arc<DashMap<String, Arc<Mutex<()>>>>);

pub(super) async fn keyed_mutex(mutexes: KeyedMutexes, request: Request, next: Next) -> Response {
    let key = request.uri().path().to_owned();
    let mutex = mutexes.0.entry(key.clone()).or_default().clone();
    let turn = mutex.lock().await;
    let response = next.run(request).await;
    drop(turn);
    drop(mutex);
    mutexes
        .0
        .remove_if(&key, |_, mutex| Arc::strong_count(mutex) == 1);
    response
}
