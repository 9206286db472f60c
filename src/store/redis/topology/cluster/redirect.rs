//! Why a node of a Cluster has not run a call. The table in `cluster` says what follows.

use std::sync::Arc;

use redis::Value;

use super::slots::address;
use crate::{Error, store::redis::explain};

/// Why a node has not run a call.
#[derive(Debug)]
pub(super) enum Redirect {
    /// Another node has the slot.
    Moved(Arc<str>),
    /// The slot is moving to another node, which may have the key already.
    Ask(Arc<str>),
    /// The slot is moving to another node, which has some of the call's keys.
    TryAgain,
    /// A fail-over is under way, or no node has the slot.
    Down,
}

impl Redirect {
    /// Reads a redirect from a reply of the node at `from`. `None` for any other reply.
    pub(super) fn read(reply: &Value, from: &str) -> Option<Self> {
        let Value::ServerError(error) = reply else {
            return None;
        };
        let to = || {
            let to = error.details()?.split_whitespace().nth(1)?;
            let (name, port) = to.rsplit_once(':')?;
            let (asked, _) = from.rsplit_once(':')?;
            Some(address(name, port, asked))
        };
        match error.code() {
            "MOVED" => to().map(Self::Moved),
            "ASK" => to().map(Self::Ask),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" => Some(Self::Down),
            _ => None,
        }
    }

    /// The error of a call that could not follow the redirect in time.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => explain::slot_is_moving(),
            Self::Down => explain::cluster_is_down(),
        }
    }
}

/// Whether a node has not run a call, and says where or when to make it again.
pub(crate) fn is_redirect(reply: &Value) -> bool {
    match reply {
        Value::ServerError(error) => {
            matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN")
        }
        _ => false,
    }
}
