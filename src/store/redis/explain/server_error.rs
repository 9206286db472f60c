//! The errors that a server answers with, and their meanings.
//!
//! An error begins with a code, such as `OOM command not allowed when used memory > 'maxmemory'.`
//! The code decides on the [`ErrorKind`] and on the message.
//!
//! | the server answers | kind | because |
//! |---|---|---|
//! | `OOM …`, `LOADING …`, `BUSY …`, `MISCONF …` | `Unreachable` | the server takes no writes at the moment |
//! | `READONLY …`, `MASTERDOWN …` | `Unreachable` | the server is a replica |
//! | `NOPERM …`, `WRONGPASS …`, `NOAUTH …` | `Unreachable` | the login has too few rights |
//! | `WRONGTYPE …`, `TDLFOREIGN …` | `Foreign` | the name has data of another program |
//! | `TDLLOCKS …`, `TDLPERMITS …` | `Foreign` | the key is used for locks and for permits |
//! | `ERR Protocol error …` | `InvalidConfig` | an argument is too long, which can only be a record |

use redis::{ErrorKind as Kind, RedisError, Value};

use crate::{Error, ErrorKind};

const NO_PERMISSION: &str = "the ACL of the Redis user denies a command or a name: grant those that the docs of `RedisStore` list";

/// The codes at the start of a server's error, and the kind and the message of ours.
macro_rules! codes {
    ($($code:literal $kind:ident: $message:expr;)*) => {
        const CODES: &[(&str, ErrorKind, &str)] = &[$(($code, ErrorKind::$kind, $message)),*];
    };
}

codes! {
    "WRONGTYPE" Foreign:
        "Redis holds a value of another type where the lock, its queue or its token counter \
         would be: another program uses these names, choose another prefix";
    "TDLFOREIGN" Foreign:
        "Redis holds a value that this crate did not write where the lock or its token counter \
         would be: another program uses these names, choose another prefix";
    "TDLLOCKS" Foreign:
        "the key is locked: use another key for permits";
    "TDLPERMITS" Foreign:
        "permits of this key are held: use another key for locks";
    "OOM" Unreachable:
        "Redis is full (used memory above `maxmemory`) and takes no new locks: give it more memory";
    "READONLY" Unreachable:
        "this Redis is a read-only replica: locks need the primary";
    "LOADING" Unreachable:
        "Redis is still loading its data: try again when it is done";
    "NOPERM" Unreachable:
        NO_PERMISSION;
    "WRONGPASS" Unreachable:
        super::WRONG_PASSWORD;
    "NOAUTH" Unreachable:
        "Redis wants a password: the URL has none, and no provider of credentials is set";
    "BUSY" Unreachable:
        "Redis is busy with a script that has run for too long: end it with SCRIPT KILL";
    "MISCONF" Unreachable:
        "Redis cannot save to disk and so takes no writes: look at its log";
    "NOREPLICAS" Unreachable:
        "Redis has fewer replicas than `min-replicas-to-write` and so takes no writes: are the \
         replicas running?";
    "MASTERDOWN" Unreachable:
        "this Redis is a replica without its primary: locks need the primary";
    "MOVED" Unreachable:
        "this Redis is a node of a Cluster, and another node has the key: use \
         `RedisStore::cluster`";
    "ERR This instance has cluster support disabled" Unreachable:
        "this Redis is not a node of a Cluster: use `RedisStore::builder`";
    "TRYAGAIN" Unreachable:
        super::SLOT_IS_MOVING;
    "CLUSTERDOWN" Unreachable:
        super::CLUSTER_IS_DOWN;
    "NOSCRIPT" Unreachable:
        "Redis lost a script right after the script was loaded: does a program run SCRIPT FLUSH?";
    "ERR max number of clients reached" Unreachable:
        "Redis accepts no more connections: raise `maxclients`";
    "ERR Protocol error" InvalidConfig:
        super::RECORD_TOO_LARGE;
}

/// The error for a command that the server refused.
pub(crate) fn refused(error: RedisError) -> Error {
    let said = code_and_detail(&error);
    if let Some((_, kind, message)) = CODES.iter().find(|(code, ..)| has_code(&said, code)) {
        return Error::with_source(*kind, *message, error);
    }
    if said.contains("user executing the script can't") || said.contains("ACL failure") {
        // No source, because newer servers quote the key here.
        return Error::new(ErrorKind::Unreachable, NO_PERMISSION);
    }
    if said.contains("not an integer") || said.contains("would overflow") {
        let message = "Redis holds a value that is no number where a token counter would be: another program uses this name, choose another prefix";
        return Error::with_source(ErrorKind::Foreign, message, error);
    }
    if said.contains("unknown command") {
        // No source, because the server quotes the arguments here, and so the key.
        return Error::new(
            ErrorKind::Unreachable,
            "this Redis does not know a command that locks need: use Redis 6.2 or later, and do not rename EVALSHA",
        );
    }
    let code = error.code().unwrap_or("an error");
    let message = format!("Redis refused the command with {code}");
    Error::with_source(ErrorKind::Unreachable, message, error)
}

/// The error for a refusal that does not last, as opposed to a denied or an unknown command.
pub(crate) fn temporary(reply: &Value) -> Option<Error> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let lasts = matches!(error.code(), "NOPERM" | "ERR");
    (!lasts).then(|| refused(error.clone().into()))
}

/// The error for a refusal that only a server without the role of a primary answers.
pub(crate) fn demoted(reply: &Value) -> Option<Error> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let error = RedisError::from(error.clone());
    let said = code_and_detail(&error);
    let is_demoted = ["READONLY", "MASTERDOWN"]
        .iter()
        .any(|code| has_code(&said, code));
    is_demoted.then(|| refused(error))
}

/// Whether the error is an answer of the server, and not the lack of an answer.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), Kind::Server(_) | Kind::Extension)
}

/// Whether the text of a server's error contains `text`.
pub(crate) fn mentions(error: &RedisError, text: &str) -> bool {
    code_and_detail(error).contains(text)
}

/// The code and the text of a server's error, in one line.
fn code_and_detail(error: &RedisError) -> String {
    let [code, detail] = [error.code(), error.detail()].map(Option::unwrap_or_default);
    format!("{code} {detail}")
}

/// Whether an error has this code. Up to 6.2, the code of an error within a script follows the
/// position in the script, after `ERR`.
fn has_code(said: &str, code: &str) -> bool {
    let within = [format!(": {code} "), format!(": -{code} ")];
    said.starts_with(code) || within.iter().any(|code| said.contains(code))
}
