//! The server of a lane, as the lane sees it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redis::ServerError;

use super::Server;
use crate::{Error, store::redis::outcome::Redirect};

/// The server of a lane, which may be another one after a fail-over.
pub(crate) trait Upstream: Debug + Send + Sync {
    /// The server's name in errors.
    fn name(&self) -> &Arc<str>;

    /// Finds the server to connect to. The caller limits the time; `limit` bounds the wait for a single server that hangs.
    fn find(&self, limit: Duration) -> BoxFuture<'_, Result<Server, Error>>;

    /// Reports that a new connection works. `info` is the server's reply to INFO, unless the server denied INFO.
    fn connected(&self, address: &Arc<str>, info: Option<&str>);

    /// Whether calls may still be sent to this server. A lane asks before every sending.
    fn is_current(&self, _address: &Arc<str>) -> bool {
        true
    }

    /// Whether another server can become the primary under the same name. If so, a server must confirm the role of a primary (ROLE),
    /// and calls that a demoted server refuses are sent to its successor.
    fn can_fail_over(&self) -> bool {
        false
    }

    /// Whether a lane replaces a broken connection at once, even if nothing is to be sent: the next handshake shows whether the server
    /// has restarted. Elsewhere, the subscription shows that.
    fn stays_connected(&self) -> bool {
        false
    }

    /// Whether tokens follow the server's clock: necessary where a server can answer without the counters of its predecessor.
    fn floor_by_clock(&self) -> bool {
        false
    }

    /// Reads a redirect from an error of the server. `None` for any other error.
    fn redirect(&self, _error: &ServerError) -> Option<Redirect> {
        None
    }
}
