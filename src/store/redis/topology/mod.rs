//! The servers of a store: one server, the primary behind Sentinel, or a Cluster.
//!
//! [`Topology`] is the only place where a Cluster differs from a primary. The store asks the
//! topology to make a call at the server of a key, for a server at which hints arrive, and for
//! changes of either. A lane sees only its own server, as an [`Upstream`], of which a new kind of
//! primary is a variant.
//!
//! | | lane of a key | connections for calls | after a fail-over | token floor |
//! |---|---|---|---|---|
//! | one server | fixed | one for each lane | the same address | counters of the server |
//! | Sentinel | fixed | one for each lane | every lane and every subscription moves, see `sentinel` | follows the server's clock |
//! | [`Cluster`] | by the slot map | one for each lane and node | the slot map is asked for again, see `cluster` | follows the node's clock |
//!
//! Whenever leases may be on another server than before, every instance renews its leases, because
//! the instance receives [`Hint::Reconnected`](crate::store::Hint::Reconnected) or
//! [`Hint::Moved`](crate::store::Hint::Moved).

mod ask_all;
mod certificates;
mod cluster;
mod sentinel;
mod server;
mod servers;
mod upstream;
mod uptime;

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, Either};
use redis::Value;
use tokio::time::Instant;

use self::cluster::Cluster;
pub(super) use self::{
    cluster::is_redirect,
    server::{Server, check_role},
    servers::{Access, Servers},
    upstream::Upstream,
};
use super::{
    connection::Strays,
    floors::Floors,
    lane::{Lane, Pending},
    names::Names,
    operations::Call,
    persistence::Persistence,
};
use crate::{
    Error,
    store::{MovedKeys, Outcome, home::Home},
};

/// The servers of a store, and the lanes to them.
#[derive(Debug)]
pub(super) enum Topology {
    Primary {
        primary: Arc<Upstream>,
        lanes: Lanes,
    },
    Cluster(Arc<Cluster>),
}

/// The lanes to one server.
#[derive(Debug)]
pub(super) struct Lanes(Vec<Arc<Lane>>);

/// The settings that all lanes of a store have in common.
#[derive(Debug, Clone)]
pub(super) struct LaneSettings {
    /// The number of lanes to each server.
    pub(super) count: usize,
    pub(super) limit: Duration,
    pub(super) floors: Arc<Floors>,
    pub(super) names: Names,
    pub(super) strays: Arc<Strays>,
    pub(super) persistence: Persistence,
    pub(super) home: Home,
}

/// The outcome of a call: on a lane, or in a Cluster, where redirects are followed.
pub(super) type Called = Either<Pending, BoxFuture<'static, Outcome<Value>>>;

/// A server at which all hints arrive.
#[derive(Debug)]
pub(super) struct HintSource {
    pub(super) server: Server,
    /// The version of the slot map. Zero outside of a Cluster.
    version: u64,
}

/// A bucket whose calls show whether a lane works.
#[derive(Debug)]
pub(super) struct Probe {
    /// The name of the lane's server.
    pub(super) server: Arc<str>,
    pub(super) bucket: usize,
}

/// A change that concerns a subscription.
#[derive(Debug)]
pub(super) enum Change {
    /// Hints do not arrive at this server any more, so the subscription must move.
    OtherSource,
    /// Some keys are on other servers than before. Hints still arrive at this server.
    KeysMoved(MovedKeys),
}

impl Topology {
    fn of_primary(primary: Upstream, settings: &LaneSettings) -> Self {
        let primary = Arc::new(primary);
        let lanes = settings.lanes_to(primary.clone());
        Self::Primary { primary, lanes }
    }

    /// The name of the servers in errors.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Primary { primary, .. } => &primary.name,
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Primary { primary, .. } => primary.database(),
            Self::Cluster(_) => 0,
        }
    }

    /// How long the server has certainly kept its data. Zero in a Cluster, where any node may have
    /// lost its data.
    pub(super) fn uptime(&self) -> Duration {
        match self {
            Self::Primary { primary, .. } => primary.uptime.get(),
            Self::Cluster(_) => Duration::ZERO,
        }
    }

    /// The `run_id` of the server of the latest connection. `None` in a Cluster, which has many
    /// servers.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        match self {
            Self::Primary { primary, .. } => primary.uptime.server_id(),
            Self::Cluster(_) => None,
        }
    }

    /// Makes a call at the server of its bucket. The call is started when the method returns;
    /// unless in a Cluster whose slot map is stale.
    ///
    /// # Cancel safety
    ///
    /// A call that was sent goes on if the future is dropped. Redirects are not followed any more.
    pub(super) fn call(&self, call: Call, deadline: Instant) -> Called {
        match self {
            Self::Primary { lanes, .. } => {
                Either::Left(lanes.of(call.bucket()).call(call, deadline))
            }
            Self::Cluster(cluster) => Either::Right(Box::pin(cluster.clone().call(call, deadline))),
        }
    }

    /// Returns one probe for each lane.
    pub(super) async fn probes(&self, deadline: Instant) -> Result<Vec<Probe>, Error> {
        let probe = |bucket| Probe {
            server: self.name().clone(),
            bucket,
        };
        match self {
            Self::Primary { lanes, .. } => Ok((0..lanes.0.len()).map(probe).collect()),
            Self::Cluster(cluster) => cluster.probes(deadline).await,
        }
    }

    /// Returns the addresses of the nodes that together have all keys, in ascending order. Outside
    /// of a Cluster, there is one node, with an empty address.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Arc<str>>, Error> {
        match self {
            Self::Primary { .. } => Ok(vec!["".into()]),
            Self::Cluster(cluster) => cluster.nodes(deadline).await,
        }
    }

    /// A lane to one of the [`nodes`](Self::nodes).
    pub(super) fn lane_to(&self, node: &Arc<str>) -> Arc<Lane> {
        match self {
            Self::Primary { lanes, .. } => lanes.of(0).clone(),
            Self::Cluster(cluster) => cluster.lane_to(node, 0),
        }
    }

    /// Reports that a call or a subscription has failed: another server may have the key now.
    pub(super) fn mark_stale(&self) {
        // The connections of a primary's lanes notice a fail-over by themselves.
        if let Self::Cluster(cluster) = self {
            cluster.mark_stale();
        }
    }

    /// Moves the lanes that are driven elsewhere to the store's home.
    pub(super) fn move_home(&self) {
        match self {
            Self::Primary { lanes, .. } => lanes.move_home(),
            Self::Cluster(cluster) => cluster.move_home(),
        }
    }

    /// Finds a server to subscribe at.
    pub(super) async fn hint_source(&self, limit: Duration) -> Result<HintSource, Error> {
        match self {
            Self::Primary { primary, .. } => {
                let server = primary.find_for_hints(limit).await?;
                Ok(HintSource { server, version: 0 })
            }
            Self::Cluster(cluster) => cluster.hint_source().await,
        }
    }

    /// Reports that a subscription at this server works.
    pub(super) fn subscribed(&self, source: &HintSource) {
        if let Self::Primary { primary, .. } = self {
            primary.subscribed(&source.server.address);
        }
    }

    /// Resolves at the next change.
    ///
    /// # Cancel safety
    ///
    /// A change that was not returned is returned by the next call.
    pub(super) async fn changed(&self, source: &mut HintSource) -> Change {
        match self {
            Self::Primary { primary, .. } => {
                primary.left(&source.server.address).await;
                Change::OtherSource
            }
            Self::Cluster(cluster) => cluster.changed(source).await,
        }
    }
}

impl Lanes {
    /// The lane of a bucket, which never changes.
    pub(super) fn of(&self, bucket: usize) -> &Arc<Lane> {
        &self.0[bucket % self.0.len()]
    }

    fn move_home(&self) {
        self.0.iter().for_each(|lane| lane.move_home());
    }
}

impl LaneSettings {
    /// Makes the lanes to one server, or to one primary and its successors.
    fn lanes_to(&self, upstream: Arc<Upstream>) -> Lanes {
        let lane = |_| {
            let lane = Lane::new(upstream.clone(), self);
            Arc::new(lane)
        };
        Lanes((0..self.count).map(lane).collect())
    }
}
