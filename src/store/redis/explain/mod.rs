//! The errors of the Redis store.
//!
//! A message names the fault, its cause and the remedy, because only the message is logged. No
//! message quotes the server, because a server may quote a key, and keys may be personal data; the
//! server's own text is in the error's source.

mod server_error;

use std::time::Duration;

use redis::{ErrorKind as Kind, RedisError};

use self::server_error::is_refusal;
pub(super) use self::server_error::{demoted, mentions, refused, temporary};
use crate::{Error, ErrorKind};

const SLOT_IS_MOVING: &str =
    "the slot of this key is moving to another node of the Redis Cluster: try again later";
const WRONG_PASSWORD: &str =
    "Redis refused the user name or password, of the URL or of the provider of credentials";
const RECORD_TOO_LARGE: &str =
    "a record is larger than Redis takes: raise `proto-max-bulk-len`, or keep smaller answers";
const CLUSTER_IS_DOWN: &str =
    "the Redis Cluster is down: a fail-over is under way, or a slot has no node";

fn unreachable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}

/// The error of a question that none of the servers has answered, with the last reason.
fn no_server_answers(message: String, error: Option<RedisError>) -> Error {
    match error {
        Some(error) => {
            let message = format!("{message}: {}", cause(&error));
            Error::with_source(ErrorKind::Unreachable, message, error)
        }
        None => unreachable(message),
    }
}

/// A setting that cannot work.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

/// The error of a connect that failed, by its reason: a refusal of the server, the login, the URL,
/// RESP3, or no server at all.
pub(super) fn cannot_connect(address: &str, error: RedisError) -> Error {
    if mentions(&error, "DB index is out of range") {
        let message = format!(
            "Redis at {address} has no database of the number in the URL: choose another one, or raise `databases`"
        );
        return Error::with_source(ErrorKind::Unreachable, message, error);
    }
    if is_refusal(&error) {
        return refused(error);
    }
    let message = match error.kind() {
        Kind::AuthenticationFailed => WRONG_PASSWORD.to_owned(),
        Kind::InvalidClientConfig => {
            format!("the client library cannot use the URL of Redis at {address}: {error}")
        }
        Kind::RESP3NotSupported => {
            format!("Redis at {address} does not speak RESP3: add `?protocol=resp2` to the URL")
        }
        _ => match tls_fault(&error) {
            Some(fault) => format!("TLS with Redis at {address} failed: {fault}"),
            None => format!("cannot connect to Redis at {address}: {error}: is it running?"),
        },
    };
    Error::with_source(ErrorKind::Unreachable, message, error)
}

/// Why a server has not answered, or what it has answered with, without its own text.
fn cause(error: &RedisError) -> String {
    match error.kind() {
        Kind::AuthenticationFailed => WRONG_PASSWORD.to_owned(),
        _ if is_refusal(error) => refused(error.clone()).to_string(),
        _ => tls_fault(error).unwrap_or_else(|| error.to_string()),
    }
}

/// The text of the TLS library, if that is the reason: such as a certificate that is not trusted.
#[cfg(feature = "tls-rustls")]
fn tls_fault(error: &RedisError) -> Option<String> {
    use std::{error::Error, io, sync::Arc};

    // The client library's error has an `Arc` as its source.
    let source = error.source()?;
    let source = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let fault = source.downcast_ref::<io::Error>()?.get_ref()?;
    let fault = fault.downcast_ref::<rustls::Error>()?;
    Some(fault.to_string())
}

#[cfg(not(feature = "tls-rustls"))]
fn tls_fault(_: &RedisError) -> Option<String> {
    None
}

/// The error of a connect, or of a question for the servers, that has reached the time limit.
pub(super) fn cannot_connect_in_time(address: &str, limit: Duration) -> Error {
    unreachable(format!(
        "no connection to Redis at {address} within {limit:?}"
    ))
}

/// The error of a server that a sentinel has named and that has another role.
pub(super) fn not_a_primary(address: &str) -> Error {
    unreachable(format!(
        "Redis at {address} is no primary, although the sentinels say so: a fail-over is under way"
    ))
}

/// The error of a call whose deadline has passed before a connection was free.
pub(super) fn not_sent_in_time() -> Error {
    unreachable(
        "earlier calls have taken all the time of this one: Redis is slow, or does not answer",
    )
}

/// The error of a bucket without a node in the slot map.
pub(super) fn no_owner() -> Error {
    unreachable("no node of the Redis Cluster has the slot of this key: is the Cluster complete?")
}

/// The error of a Cluster of which no node has answered the question for its slots.
pub(super) fn no_node(cluster: &str, error: Option<RedisError>) -> Error {
    let message =
        format!("no node of {cluster} answered CLUSTER SLOTS: is it a Cluster, and is it running?");
    no_server_answers(message, error)
}

/// The error of an acquire or a record that too few replicas have acknowledged. `what` is said of
/// it.
pub(super) fn too_few_replicas(found: i64, wanted: usize, limit: Duration, what: &str) -> Error {
    unreachable(format!(
        "{found} replicas of Redis, not {wanted}, have acknowledged {what} within {limit:?}"
    ))
}

/// The end of a subscription at a server that is not the primary any more, or at a node of a
/// Cluster that has no slots any more.
pub(super) fn subscription_moves() -> Error {
    unreachable(
        "hints arrive at another Redis now: the primary has changed, or this node has no slots any more",
    )
}

/// The error of a service that no sentinel knows, although some have answered.
pub(super) fn unknown_service(service: &str) -> Error {
    unreachable(format!(
        "the sentinels know no service of the name `{service}`: check the name"
    ))
}

/// The error of a service of which no sentinel has answered.
pub(super) fn no_sentinel(service: &str, error: Option<RedisError>) -> Error {
    let message = format!("no sentinel of `{service}` answers: are the sentinels running?");
    no_server_answers(message, error)
}

/// The error of a call that was sent, and not answered by the deadline.
pub(super) fn no_answer(limit: Duration) -> Error {
    unreachable(format!("Redis did not answer within {limit:?}"))
}

/// The error of a call whose connection has ended before the reply.
pub(super) fn connection_broke(error: RedisError) -> Error {
    let message = format!(
        "the connection to Redis broke before the answer came: {}",
        cause(&error)
    );
    Error::broken(message, Some(error.into()))
}

/// The error of a connection whose end the client library reports without a reason.
pub(super) fn connection_ended() -> Error {
    connection_broke(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
}

/// The error of a call whose lane has lost its runtime before the reply.
pub(super) fn runtime_ended() -> Error {
    Error::interrupted(
        "the tokio runtime of the connection to Redis has shut down before the answer came: try again",
    )
}

/// The error of a call that was started outside of a runtime, while nothing drives the lane.
pub(super) fn no_runtime() -> Error {
    unreachable("the connection to Redis needs a tokio runtime, and there is none here")
}

/// The error of a key whose value in Redis, or whose token counter, this crate did not write.
pub(super) fn foreign() -> Error {
    let message = "Redis holds a value that this crate did not write where the lock or its token counter would be";
    Error::new(ErrorKind::Foreign, message)
}

/// The error of a large record that was alone in flight when the connection broke. The server may
/// have said why, but its answer can be lost with the connection.
pub(super) fn record_too_large() -> Error {
    unreachable(format!(
        "the connection to Redis broke when the record was sent; perhaps {RECORD_TOO_LARGE}"
    ))
}

/// The error of a call that was redirected until its deadline.
pub(super) fn slot_is_moving() -> Error {
    unreachable(SLOT_IS_MOVING)
}

/// The error of a call that was answered with CLUSTERDOWN until its deadline.
pub(super) fn cluster_is_down() -> Error {
    unreachable(CLUSTER_IS_DOWN)
}

/// The error of a server that does not answer a ping, or refuses writes.
pub(super) fn not_ready(server: &str, error: Error) -> Error {
    let message = format!("Redis at {server} is not ready");
    Error::caused_by(error.kind(), message, error)
}

/// The error of a reply that no script of this crate gives.
pub(super) fn unexpected_reply() -> Error {
    unreachable(
        "Redis returned a reply that no script of this crate returns: is a proxy in between?",
    )
}
