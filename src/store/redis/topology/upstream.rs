//! A server, as its lanes see it, and the primary of a store.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{Server, uptime::Uptime};
use crate::Error;

/// The server of a lane, which may be another one after a fail-over.
pub(crate) trait Upstream: Debug + Send + Sync {
    /// The server's name in errors.
    fn name(&self) -> &Arc<str>;

    /// Finds the server to connect to. The caller limits the time; `limit` bounds the wait for a
    /// single server that hangs.
    fn find(&self, limit: Duration) -> BoxFuture<'_, Result<Server, Error>>;

    /// Reports that a new connection works. `info` is the server's reply to INFO, unless the server
    /// denied INFO.
    fn connected(&self, address: &Arc<str>, info: Option<&str>);

    /// Whether calls may still be sent to this server. A lane asks before every sending.
    fn is_current(&self, address: &Arc<str>) -> bool;

    /// Whether another server can become the primary under the same name. If so, a server must
    /// confirm the role of a primary (ROLE), and calls that a demoted server refuses are sent
    /// to its successor.
    fn can_fail_over(&self) -> bool;

    /// Whether a lane replaces a broken connection at once, even if nothing is to be sent: the next
    /// handshake shows whether the server has restarted. Elsewhere, the subscription shows
    /// that.
    fn stays_connected(&self) -> bool;

    /// Whether tokens follow the server's clock: necessary where a server can answer without the
    /// counters of its predecessor.
    fn floor_by_clock(&self) -> bool;
}

/// The upstream of all lanes of a store: one server, or the primary behind Sentinel.
pub(crate) trait Primary: Upstream {
    /// The number of the database.
    fn database(&self) -> i64;

    /// How long the server has certainly kept its data.
    fn uptime(&self) -> &Uptime;

    /// Finds the server to subscribe at.
    fn find_for_hints(&self, limit: Duration) -> BoxFuture<'_, Result<Server, Error>>;

    /// Reports that a subscription at this server works.
    fn subscribed(&self, address: &Arc<str>);

    /// Resolves when hints do not arrive at this server any more.
    fn left<'a>(&'a self, address: &'a Arc<str>) -> BoxFuture<'a, ()>;
}
