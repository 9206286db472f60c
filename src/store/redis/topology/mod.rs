//! Which servers there are: one server, the primary behind Sentinel, or a Cluster.
//!
//! [`Topology`] is the only place where the three differ. The store asks the topology for the lane of a key, for a server that hints
//! arrive at, and for changes of either. A lane sees its own server only, as an [`Upstream`].
//!
//! Another topology is one file here, with an `Upstream` for its lanes, one arm in [`Servers`] (the URLs of the user) and one in
//! each `match` of `Topology`.
//!
//! | | lane of a key | connections for calls | after a fail-over | token floor |
//! |---|---|---|---|---|
//! | [`Single`] | fixed | one for each lane | the same address | counters of the server |
//! | [`Sentinel`] | fixed | one for each lane | every lane and every subscription moves, see `sentinel` | follows the server's clock |
//! | [`Cluster`] | by the slot map | one for each lane and node | the slot map is asked for again, see `cluster` | follows the node's clock |
//!
//! Whenever leases may be on another server than before, every instance receives
//! [`Hint::Reconnected`](crate::store::Hint::Reconnected) or [`Hint::Moved`](crate::store::Hint::Moved), and renews them.

mod ask_all;
mod call_form;
mod cluster;
mod lanes;
mod sentinel;
mod server;
mod servers;
mod single;
mod uptime;

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redis::ServerError;
use tokio::time::Instant;

pub(super) use self::{
    call_form::CallForm,
    lanes::LaneSettings,
    server::{Server, check_role},
    servers::Servers,
};
use self::{cluster::Cluster, lanes::Lanes, sentinel::Sentinel, single::Single};
use super::{
    lane::Lane,
    names::bucket,
    outcome::{Outcome, Redirect},
};
use crate::{Error, LockKey, store::MovedKeys};

#[derive(Debug)]
pub(super) enum Topology {
    Single {
        upstream: Arc<Single>,
        lanes: Lanes,
    },
    Sentinel {
        upstream: Arc<Sentinel>,
        lanes: Lanes,
    },
    Cluster(Cluster),
}

/// The server of a lane, which may be another one after a fail-over.
pub(super) trait Upstream: std::fmt::Debug + Send + Sync {
    /// The server's name in errors.
    fn name(&self) -> &Arc<str>;

    /// Finds the server to connect to. The caller limits the time; `limit` bounds the wait for a single server that hangs.
    fn find(&self, limit: Duration) -> BoxFuture<'_, Result<Server, Error>>;

    /// Called when a new connection works. `info` is the server's reply to INFO, unless the server denied it.
    fn connected(&self, address: &Arc<str>, info: Option<&str>);

    /// Whether calls may still be sent to this server. Asked before every send.
    fn is_current(&self, _address: &Arc<str>) -> bool {
        true
    }

    /// Whether another server can become the primary under the same name. Then a server must say that it is the primary (ROLE), and
    /// calls that a demoted server refuses are sent to its successor.
    fn can_fail_over(&self) -> bool {
        false
    }

    /// Whether tokens follow the server's clock: necessary where a server can answer without the counters of its predecessor.
    fn floor_by_clock(&self) -> bool {
        false
    }

    /// Where an error of the server sends the call.
    fn redirect(&self, _error: &ServerError) -> Option<Redirect> {
        None
    }
}

/// A server that all hints arrive at.
#[derive(Debug)]
pub(super) struct HintSource {
    pub(super) server: Server,
    /// The version of the slot map. Zero outside of a Cluster.
    version: u64,
}

/// A change that concerns those who receive hints.
#[derive(Debug)]
pub(super) enum Change {
    /// Hints do not arrive at this server any more.
    OtherSource,
    /// Some keys are on other servers than before. Hints still arrive at this one.
    KeysMoved(MovedKeys),
}

impl Topology {
    /// The name in errors.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Single { upstream, .. } => upstream.name(),
            Self::Sentinel { upstream, .. } => upstream.name(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Single { upstream, .. } => upstream.database(),
            Self::Sentinel { upstream, .. } => upstream.database(),
            Self::Cluster(_) => 0,
        }
    }

    /// The upstream of all lanes. `None` in a Cluster, where a key can change its lane, so that no lane keeps the order of its calls.
    pub(super) fn only_upstream(&self) -> Option<Arc<dyn Upstream>> {
        match self {
            Self::Single { upstream, .. } => Some(upstream.clone()),
            Self::Sentinel { upstream, .. } => Some(upstream.clone()),
            Self::Cluster(_) => None,
        }
    }

    /// For how long the server is sure to have kept its memory. Zero in a Cluster: any of its nodes may have lost it.
    pub(super) fn uptime(&self) -> Duration {
        match self {
            Self::Single { upstream, .. } => upstream.uptime().get(),
            Self::Sentinel { upstream, .. } => upstream.uptime().get(),
            Self::Cluster(_) => Duration::ZERO,
        }
    }

    /// The `run_id` of the server that was connected to last. `None` in a Cluster, which has many.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        match self {
            Self::Single { upstream, .. } => upstream.uptime().server_id(),
            Self::Sentinel { upstream, .. } => upstream.uptime().server_id(),
            Self::Cluster(_) => None,
        }
    }

    /// Connects every lane.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => lanes.connect().await,
            Self::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// The lane of a key. `None` only in a Cluster, while the slot map is stale.
    pub(super) fn lane_of(&self, key: &LockKey) -> Option<Arc<Lane>> {
        let bucket = bucket(key);
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => {
                Some(lanes.of(bucket).clone())
            }
            Self::Cluster(cluster) => cluster.lane_of(bucket),
        }
    }

    /// Makes one call at the server of its key, and follows redirects. `start` starts the call on a lane, in the given form.
    pub(super) async fn call<Called>(
        &self,
        key: &LockKey,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, CallForm) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        let bucket = bucket(key);
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => {
                start(lanes.of(bucket), CallForm::default()).await
            }
            Self::Cluster(cluster) => cluster.call(bucket, deadline, start).await,
        }
    }

    /// Called when a call or a subscription has failed: the server may not be the right one any more.
    pub(super) fn mark_stale(&self) {
        match self {
            // The lanes find out by themselves.
            Self::Single { .. } | Self::Sentinel { .. } => {}
            Self::Cluster(cluster) => cluster.mark_stale(),
        }
    }

    /// Resumes calls that were started outside of a runtime.
    pub(super) fn resume(&self) {
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => lanes.resume(),
            Self::Cluster(cluster) => cluster.resume(),
        }
    }

    /// Finds a server to subscribe at.
    pub(super) async fn hint_source(&self, limit: Duration) -> Result<HintSource, Error> {
        match self {
            Self::Single { upstream, .. } => Ok(HintSource::at(upstream.server())),
            Self::Sentinel { upstream, .. } => {
                let server = upstream.find_primary(limit).await?;
                server.ask_role().await?;
                Ok(HintSource::at(server))
            }
            Self::Cluster(cluster) => cluster.hint_source().await,
        }
    }

    /// Called when a subscription at this server works.
    pub(super) fn subscribed(&self, source: &HintSource) {
        if let Self::Sentinel { upstream, .. } = self {
            upstream.set_current(&source.server.address);
        }
    }

    /// Resolves at the next change.
    ///
    /// # Cancel safety
    ///
    /// A change that was not returned is returned by the next call.
    pub(super) async fn changed(&self, source: &mut HintSource) -> Change {
        match self {
            Self::Single { .. } => pending().await,
            Self::Sentinel { upstream, .. } => {
                upstream.left(&source.server.address).await;
                Change::OtherSource
            }
            Self::Cluster(cluster) => cluster.changed(source).await,
        }
    }
}

impl HintSource {
    fn at(server: Server) -> Self {
        Self { server, version: 0 }
    }
}
