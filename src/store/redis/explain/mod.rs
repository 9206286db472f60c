//! The errors of the Redis store.
//!
//! A message says what is wrong and what to do about it. No message quotes the server, because a server may quote a
//! key, and keys may be personal data; the server's own text is in the error's source.

mod server_error;

use std::time::Duration;

use redis::{ErrorKind as Kind, RedisError};

use self::server_error::is_refusal;
pub(super) use self::server_error::{demoted, mentions, refused, temporary};
use crate::{Error, ErrorKind};

const SLOT_IS_MOVING: &str =
    "the slot of this key is on its way to another node of the Redis Cluster";
const CLUSTER_IS_DOWN: &str = "the Redis Cluster is down";

fn unreachable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}

fn unreachable_by(message: String, source: Option<RedisError>) -> Error {
    match source {
        Some(source) => Error::with_source(ErrorKind::Unreachable, message, source),
        None => unreachable(message),
    }
}

/// A setting that cannot work.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

pub(super) fn cannot_connect(address: &str, error: RedisError) -> Error {
    if is_refusal(&error) {
        return refused(error);
    }
    let message = match error.kind() {
        Kind::AuthenticationFailed => {
            "Redis refused the user name or password of the URL".to_owned()
        }
        Kind::InvalidClientConfig => format!("cannot connect to Redis at {address} this way"),
        Kind::RESP3NotSupported => {
            format!("Redis at {address} does not speak RESP3: add `?protocol=resp2` to the URL")
        }
        _ => format!("cannot connect to Redis at {address}: is it running?"),
    };
    Error::with_source(ErrorKind::Unreachable, message, error)
}

pub(super) fn cannot_connect_in_time(address: &str, limit: Duration) -> Error {
    unreachable(format!(
        "no connection to Redis at {address} within {limit:?}"
    ))
}

pub(super) fn not_a_primary(address: &str) -> Error {
    unreachable(format!(
        "Redis at {address} is no primary, although the sentinels say so: a fail-over is under way"
    ))
}

pub(super) fn too_many_before() -> Error {
    unreachable("too many calls for this key wait for Redis already")
}

pub(super) fn no_owner() -> Error {
    unreachable("no node of the Redis Cluster has the slot of this key: is the Cluster complete?")
}

pub(super) fn no_node(cluster: &str, error: Option<RedisError>) -> Error {
    let message =
        format!("no node tells the slots of {cluster}: is it a Cluster, and does it run?");
    unreachable_by(message, error)
}

pub(super) fn too_few_replicas(found: i64, wanted: usize, limit: Duration) -> Error {
    unreachable(format!(
        "{found} replicas of Redis, not {wanted}, have acknowledged the lock within {limit:?}: \
             it was given back"
    ))
}

pub(super) fn primary_moved() -> Error {
    unreachable("another Redis has become the primary")
}

pub(super) fn unknown_service(service: &str) -> Error {
    unreachable(format!(
        "no sentinel that answers knows a primary of the name `{service}`"
    ))
}

pub(super) fn no_sentinel(service: &str, error: Option<RedisError>) -> Error {
    let message = format!("no sentinel says where the primary of `{service}` is: do they run?");
    unreachable_by(message, error)
}

pub(super) fn no_answer(limit: Duration) -> Error {
    unreachable(format!("Redis did not answer within {limit:?}"))
}

pub(super) fn connection_broke(error: RedisError) -> Error {
    let message = "the connection to Redis broke before the answer came";
    Error::with_source(ErrorKind::Unreachable, message, error)
}

/// For a connection of which the client library reports the end and no reason.
pub(super) fn connection_ended() -> Error {
    connection_broke(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
}

/// For a call without effect that a later call for the same key has overtaken.
pub(super) fn script_forgotten() -> Error {
    unreachable("the scripts of Redis were flushed in between: the call was not carried out")
}

pub(super) fn slot_is_moving() -> Error {
    unreachable(SLOT_IS_MOVING)
}

pub(super) fn cluster_is_down() -> Error {
    unreachable(CLUSTER_IS_DOWN)
}

pub(super) fn unexpected_reply() -> Error {
    unreachable("Redis answered something that no script of this crate returns")
}
