//! The servers of a store: one server, the primary behind Sentinel, or a Cluster.
//!
//! [`Topology`] is the only place where the three differ. The store asks the topology for the lane of a key, for a server at which hints
//! arrive, and for changes of either. A lane sees only its own server, as an [`Upstream`].
//!
//! A new topology needs one file here, with an `Upstream` for its lanes, one arm in [`Servers`] (the URLs of the user) and one in
//! each `match` of `Topology`.
//!
//! | | lane of a key | connections for calls | after a fail-over | token floor |
//! |---|---|---|---|---|
//! | [`Single`] | fixed | one for each lane | the same address | counters of the server |
//! | [`Sentinel`] | fixed | one for each lane | every lane and every subscription moves, see `sentinel` | follows the server's clock |
//! | [`Cluster`] | by the slot map | one for each lane and node | the slot map is asked for again, see `cluster` | follows the node's clock |
//!
//! Whenever leases may be on another server than before, every instance renews its leases, because the instance receives
//! [`Hint::Reconnected`](crate::store::Hint::Reconnected) or [`Hint::Moved`](crate::store::Hint::Moved).

mod ask_all;
mod call_form;
mod certificates;
mod cluster;
mod credentials;
mod sentinel;
mod server;
mod servers;
mod single;
mod upstream;
mod uptime;

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use tokio::time::Instant;

pub use self::credentials::Credentials;
pub(super) use self::{
    call_form::CallForm,
    certificates::{Certificates, ClientCertificate},
    credentials::Provider,
    server::{Server, check_role},
    servers::{Access, Servers},
    upstream::Upstream,
};
use self::{cluster::Cluster, sentinel::Sentinel, single::Single};
use super::{
    floors::Floors,
    lane::Lane,
    names::{Names, bucket},
    outcome::Outcome,
    owed::Owed,
    persistence::Persistence,
};
use crate::{
    Error, LockKey,
    store::{MovedKeys, home::Home},
};

/// The servers of a store, and the lanes to them.
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
    Cluster(Box<Cluster>),
}

/// The lanes to one server.
#[derive(Debug)]
pub(super) struct Lanes(Vec<Arc<Lane>>);

/// The settings that all lanes of a store have in common.
#[derive(Debug)]
pub(super) struct LaneSettings {
    /// The number of lanes to each server.
    pub(super) count: usize,
    pub(super) limit: Duration,
    pub(super) floors: Arc<Floors>,
    pub(super) names: Names,
    pub(super) owed: Owed,
    pub(super) persistence: Persistence,
    pub(super) home: Home,
}

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
    /// The name of the servers in errors.
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

    /// The upstream of all lanes. `None` in a Cluster, where a key can change its lane, so that no lane keeps the order of calls.
    pub(super) fn only_upstream(&self) -> Option<Arc<dyn Upstream>> {
        match self {
            Self::Single { upstream, .. } => Some(upstream.clone()),
            Self::Sentinel { upstream, .. } => Some(upstream.clone()),
            Self::Cluster(_) => None,
        }
    }

    /// How long the server has certainly kept its data. Zero in a Cluster, where any node may have lost its data.
    pub(super) fn uptime(&self) -> Duration {
        match self {
            Self::Single { upstream, .. } => upstream.uptime().get(),
            Self::Sentinel { upstream, .. } => upstream.uptime().get(),
            Self::Cluster(_) => Duration::ZERO,
        }
    }

    /// The `run_id` of the server of the latest connection. `None` in a Cluster, which has many servers.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        match self {
            Self::Single { upstream, .. } => upstream.uptime().server_id(),
            Self::Sentinel { upstream, .. } => upstream.uptime().server_id(),
            Self::Cluster(_) => None,
        }
    }

    /// Connects every lane that has no connection. Fails if one lane cannot connect.
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

    /// Makes one call at the server of its key, and follows redirects. `start` starts the call on a lane, in the given form, once for
    /// each redirect.
    ///
    /// # Cancel safety
    ///
    /// A call that was started goes on if the future is dropped. Redirects are not followed any more.
    pub(super) async fn call<Called>(
        &self,
        key: &LockKey,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, CallForm) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        self.call_at(bucket(key), deadline, start).await
    }

    /// Makes one call at the server of a bucket, as [`call`](Self::call) does.
    pub(super) async fn call_at<Called>(
        &self,
        bucket: usize,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, CallForm) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => {
                start(lanes.of(bucket), CallForm::default()).await
            }
            Self::Cluster(cluster) => cluster.call(bucket, deadline, start).await,
        }
    }

    /// Returns one probe for each lane.
    pub(super) async fn probes(&self, deadline: Instant) -> Result<Vec<Probe>, Error> {
        let probe = |bucket| Probe {
            server: self.name().clone(),
            bucket,
        };
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => {
                Ok((0..lanes.0.len()).map(probe).collect())
            }
            Self::Cluster(cluster) => cluster.probes(deadline).await,
        }
    }

    /// Returns the addresses of the nodes that together have all keys, in ascending order. Outside of a Cluster, there is one node,
    /// with an empty address.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Arc<str>>, Error> {
        match self {
            Self::Single { .. } | Self::Sentinel { .. } => Ok(vec!["".into()]),
            Self::Cluster(cluster) => cluster.nodes(deadline).await,
        }
    }

    /// A lane to one of the [`nodes`](Self::nodes).
    pub(super) fn lane_to(&self, node: &Arc<str>) -> Arc<Lane> {
        match self {
            Self::Single { lanes, .. } | Self::Sentinel { lanes, .. } => lanes.of(0).clone(),
            Self::Cluster(cluster) => cluster.lane_to(node, 0),
        }
    }

    /// Reports that a call or a subscription has failed: another server may have the key now.
    pub(super) fn mark_stale(&self) {
        match self {
            // The connections of the lanes notice a fail-over by themselves.
            Self::Single { .. } | Self::Sentinel { .. } => {}
            Self::Cluster(cluster) => cluster.mark_stale(),
        }
    }

    /// Resumes calls that wait for a runtime.
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

    /// Reports that a subscription at this server works.
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

impl Lanes {
    /// The lane of a bucket, which never changes.
    fn of(&self, bucket: usize) -> &Arc<Lane> {
        &self.0[bucket % self.0.len()]
    }

    async fn connect(&self) -> Result<(), Error> {
        let connecting = self.0.iter().map(|lane| lane.connect());
        try_join_all(connecting).await.map(drop)
    }

    /// Resumes calls that wait for a runtime.
    fn resume(&self) {
        self.0.iter().for_each(|lane| lane.resume());
    }
}

impl LaneSettings {
    /// Makes the lanes to one server, or to one primary and its successors.
    fn lanes_to(&self, upstream: Arc<dyn Upstream>) -> Lanes {
        let lane = |_| {
            let lane = Lane::new(upstream.clone(), self);
            Arc::new(lane)
        };
        Lanes((0..self.count).map(lane).collect())
    }
}
