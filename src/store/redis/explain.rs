//! Redis's errors in the words of this crate.
//!
//! A message says what is wrong and what to do. It never quotes what the server said, because a server may quote a
//! key, and keys may be personal data; the server's own words are in the error's source.

use std::time::Duration;

use redis::{ErrorKind as Kind, RedisError, Value};

use crate::{Error, ErrorKind};

const NO_PERMISSION: &str = "the Redis user may not do this: it needs the commands and the names that the docs of `RedisStore` list";

/// The codes at the start of a server's errors that are worth an explanation, and what they mean.
const CODES: [(&str, ErrorKind, &str); 17] = [
    (
        "WRONGTYPE",
        ErrorKind::Foreign,
        "Redis holds a value of another type where the lock, its queue or its token counter would be: \
         somebody else uses these names, choose another prefix",
    ),
    (
        "TDLFOREIGN",
        ErrorKind::Foreign,
        "Redis holds a value that this crate did not write where the lock or its token counter would be: \
         somebody else uses these names, choose another prefix",
    ),
    (
        "OOM",
        ErrorKind::Unreachable,
        "Redis is full (used memory above `maxmemory`) and takes no new locks: give it more memory",
    ),
    (
        "READONLY",
        ErrorKind::Unreachable,
        "this Redis is a read-only replica: locks need the primary",
    ),
    (
        "LOADING",
        ErrorKind::Unreachable,
        "Redis is still loading its data: try again when it is done",
    ),
    ("NOPERM", ErrorKind::Unreachable, NO_PERMISSION),
    (
        "WRONGPASS",
        ErrorKind::Unreachable,
        "Redis refused the user name or password of the URL",
    ),
    (
        "NOAUTH",
        ErrorKind::Unreachable,
        "Redis wants a password, and the URL has none",
    ),
    (
        "BUSY",
        ErrorKind::Unreachable,
        "Redis is busy with a script that somebody else runs for too long",
    ),
    (
        "MISCONF",
        ErrorKind::Unreachable,
        "Redis cannot save to disk and so takes no writes: look at its log",
    ),
    (
        "NOREPLICAS",
        ErrorKind::Unreachable,
        "Redis has fewer replicas than `min-replicas-to-write` and so takes no writes",
    ),
    (
        "MASTERDOWN",
        ErrorKind::Unreachable,
        "this Redis is a replica without its primary: locks need the primary",
    ),
    (
        "MOVED",
        ErrorKind::Unreachable,
        "this Redis is a node of a Cluster, and the key lives on another one",
    ),
    (
        "TRYAGAIN",
        ErrorKind::Unreachable,
        "the slot of this key is on its way to another node of the Redis Cluster",
    ),
    (
        "CLUSTERDOWN",
        ErrorKind::Unreachable,
        "the Redis Cluster is down",
    ),
    (
        "NOSCRIPT",
        ErrorKind::Unreachable,
        "Redis forgot a script again right after it was given",
    ),
    (
        "ERR max number of clients reached",
        ErrorKind::Unreachable,
        "Redis has no connection to spare (`maxclients`)",
    ),
];

/// What a server answered instead of doing it.
pub(super) fn refused(error: RedisError) -> Error {
    let said = words(&error);
    if let Some((_, kind, message)) = CODES.iter().find(|(code, ..)| means(&said, code)) {
        return Error::with_source(*kind, *message, error);
    }
    if said.contains("user executing the script can't") || said.contains("ACL failure") {
        // Newer servers name what may not be touched, and so the key: no source.
        return Error::new(ErrorKind::Unreachable, NO_PERMISSION);
    }
    if said.contains("not an integer") || said.contains("would overflow") {
        let message =
            "Redis holds something else where a token counter would be: choose another prefix";
        return Error::with_source(ErrorKind::Foreign, message, error);
    }
    if said.contains("unknown command") {
        // The server quotes the arguments here, and so the key: no source.
        return Error::new(
            ErrorKind::Unreachable,
            "this Redis does not know a command that locks need: it must be 6.2 or later, with EVALSHA not renamed",
        );
    }
    Error::with_source(ErrorKind::Unreachable, "Redis refused the command", error)
}

fn words(error: &RedisError) -> String {
    let [code, detail] = [error.code(), error.detail()].map(Option::unwrap_or_default);
    format!("{code} {detail}")
}

/// Up to 6.2, an error within a script has the script's position before it, and `ERR` before that.
fn means(said: &str, code: &str) -> bool {
    let within = [format!(": {code} "), format!(": -{code} ")];
    said.starts_with(code) || within.iter().any(|code| said.contains(code))
}

pub(super) fn says(error: &RedisError, words_of_it: &str) -> bool {
    words(error).contains(words_of_it)
}

/// What a server answers that is no primary any more, if this is that.
pub(super) fn demoted(reply: &Value) -> Option<Error> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let error = RedisError::from(error.clone());
    let said = words(&error);
    let is_demoted = ["READONLY", "MASTERDOWN"]
        .iter()
        .any(|code| means(&said, code));
    is_demoted.then(|| refused(error))
}

/// Whether the server itself said this, as opposed to: it could not be heard.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), Kind::Server(_) | Kind::Extension)
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
    Error::new(
        ErrorKind::Unreachable,
        format!("no connection to Redis at {address} within {limit:?}"),
    )
}

pub(super) fn not_a_primary(address: &str) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "Redis at {address} is no primary, although the sentinels say so: a fail-over is under way"
        ),
    )
}

pub(super) fn too_many_before() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "too many calls for this key, or for one of its bucket, wait for Redis already",
    )
}

pub(super) fn no_owner() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "no node of the Redis Cluster has the slot of this key: is the Cluster complete?",
    )
}

pub(super) fn no_node(cluster: &str, error: Option<RedisError>) -> Error {
    let message =
        format!("no node says who has what in {cluster}: is it a Cluster, and does it run?");
    match error {
        Some(error) => Error::with_source(ErrorKind::Unreachable, message, error),
        None => Error::new(ErrorKind::Unreachable, message),
    }
}

pub(super) fn too_few_replicas(found: i64, wanted: usize, limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "{found} replicas of Redis, not {wanted}, have acknowledged the lock within {limit:?}: \
             it was given back"
        ),
    )
}

pub(super) fn primary_moved() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "another Redis has become the primary",
    )
}

pub(super) fn unknown_service(service: &str) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("no sentinel that answers knows a primary of the name `{service}`"),
    )
}

pub(super) fn no_sentinel(service: &str, error: Option<RedisError>) -> Error {
    let message = format!("no sentinel says where the primary of `{service}` is: do they run?");
    match error {
        Some(error) => Error::with_source(ErrorKind::Unreachable, message, error),
        None => Error::new(ErrorKind::Unreachable, message),
    }
}

pub(super) fn no_answer(limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("Redis did not answer within {limit:?}"),
    )
}

pub(super) fn connection_broke(error: RedisError) -> Error {
    let message = "the connection to Redis broke before the answer came";
    Error::with_source(ErrorKind::Unreachable, message, error)
}

/// Where the client library says only that the connection has ended.
pub(super) fn connection_ended() -> Error {
    connection_broke(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
}

/// A call that had no effect, and that a later call for the same key has overtaken.
pub(super) fn script_forgotten() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the scripts of Redis were flushed in between: the call was not carried out",
    )
}

pub(super) fn slot_is_moving() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the slot of this key is on its way to another node of the Redis Cluster",
    )
}

pub(super) fn cluster_is_down() -> Error {
    Error::new(ErrorKind::Unreachable, "the Redis Cluster is down")
}

/// A refusal that does not last, as opposed to a denied or an unknown command.
pub(super) fn not_now(reply: &Value) -> Option<Error> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let lasts = matches!(error.code(), "NOPERM" | "ERR");
    (!lasts).then(|| refused(error.clone().into()))
}

pub(super) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "Redis answered something that no script of this crate returns",
    )
}
