//! The server of a lane: one server, the primary behind Sentinel, or a node of a Cluster.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Server, cluster::SlotMap, sentinel::Sentinel, uptime::Uptime};
use crate::Error;

/// The server of a lane, which may be another one after a fail-over.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The server's name in errors.
    pub(crate) name: Arc<str>,
    /// The server. Behind Sentinel: the login at every server of the service.
    server: Server,
    /// How long the server has certainly kept its data.
    pub(super) uptime: Uptime,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// One server, always under the same address.
    Single,
    Sentinel(Sentinel),
    Node {
        slot_map: Arc<SlotMap>,
        was_connected: AtomicBool,
    },
}

impl Upstream {
    /// Checks the URL.
    pub(super) fn single(server: Server) -> Result<Self, Error> {
        // The client is dropped: this only refuses a URL that the client library cannot use.
        server.client(None)?;
        Ok(Self::new(server.address.clone(), server, Kind::Single))
    }

    /// Checks the URLs.
    pub(super) fn behind_sentinel(login: Server, sentinels: &[Server]) -> Result<Self, Error> {
        let sentinel = Sentinel::new(&login, sentinels)?;
        Ok(Self::new(
            sentinel.name(sentinels),
            login,
            Kind::Sentinel(sentinel),
        ))
    }

    pub(super) fn node(server: Server, slot_map: Arc<SlotMap>) -> Self {
        let was_connected = AtomicBool::new(false);
        let node = Kind::Node {
            slot_map,
            was_connected,
        };
        Self::new(server.address.clone(), server, node)
    }

    fn new(name: Arc<str>, server: Server, kind: Kind) -> Self {
        Self {
            name,
            server,
            uptime: Uptime::default(),
            kind,
        }
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        self.server.database()
    }

    /// Finds the server to connect to. The caller limits the time; `limit` bounds the wait for a
    /// single server that hangs.
    pub(crate) async fn find(&self, limit: Duration) -> Result<Server, Error> {
        match &self.kind {
            Kind::Single | Kind::Node { .. } => Ok(self.server.clone()),
            Kind::Sentinel(sentinel) => sentinel.find_primary(&self.server, limit).await,
        }
    }

    /// Finds the server to subscribe at.
    pub(super) async fn find_for_hints(&self, limit: Duration) -> Result<Server, Error> {
        let server = self.find(limit).await?;
        if self.can_fail_over() {
            server.ask_role().await?;
        }
        Ok(server)
    }

    /// Reports that a new connection works. `info` is the server's reply to INFO, unless the server
    /// denied INFO.
    ///
    /// A node of a Cluster that restarts without its data and keeps its slots has forgotten all
    /// leases. If its `run_id` is not that of the connection before, or not known, the leases in
    /// its slots are confirmed, as if the slots had moved.
    pub(crate) fn connected(&self, address: &Arc<str>, info: Option<&str>) {
        let is_same_run = self.uptime.read(info);
        match &self.kind {
            Kind::Single => {}
            Kind::Sentinel(sentinel) => sentinel.set_current(address),
            Kind::Node {
                slot_map,
                was_connected,
            } => {
                if was_connected.swap(true, Ordering::AcqRel) && !is_same_run {
                    slot_map.restarted(address);
                }
            }
        }
    }

    /// Reports that a subscription at this server works.
    pub(super) fn subscribed(&self, address: &Arc<str>) {
        if let Kind::Sentinel(sentinel) = &self.kind {
            sentinel.set_current(address);
        }
    }

    /// Resolves when hints do not arrive at this server any more.
    pub(super) async fn left(&self, address: &Arc<str>) {
        match &self.kind {
            Kind::Single | Kind::Node { .. } => pending().await,
            Kind::Sentinel(sentinel) => sentinel.left(address).await,
        }
    }

    /// Whether calls may still be sent to this server. A lane asks before every sending.
    pub(crate) fn is_current(&self, address: &Arc<str>) -> bool {
        match &self.kind {
            Kind::Single | Kind::Node { .. } => true,
            Kind::Sentinel(sentinel) => sentinel.is_current(address),
        }
    }

    /// Whether another server can become the primary under the same name. If so, a server must
    /// confirm the role of a primary (ROLE), and calls that a demoted server refuses are sent
    /// to its successor.
    pub(crate) fn can_fail_over(&self) -> bool {
        matches!(self.kind, Kind::Sentinel(_))
    }

    /// Whether a lane replaces a broken connection at once, even if nothing is to be sent: the next
    /// handshake shows whether the server has restarted. Elsewhere, the subscription shows
    /// that.
    pub(crate) fn stays_connected(&self) -> bool {
        matches!(self.kind, Kind::Node { .. })
    }

    /// Whether the keys are spread over slots, so that no script has keys of two buckets.
    pub(crate) fn has_slots(&self) -> bool {
        matches!(self.kind, Kind::Node { .. })
    }

    /// Whether tokens follow the server's clock: necessary where a server can answer without the
    /// counters of its predecessor. In a Cluster, another node can have had the slot while a
    /// connection lasted, and only a connect raises the floor to the clock.
    pub(crate) fn floor_by_clock(&self) -> bool {
        !matches!(self.kind, Kind::Single)
    }
}
