//! Which lane a key's calls go to.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

use super::{
    cluster::Cluster,
    explain,
    lane::{Lane, Way},
    names::bucket,
    outcome::Outcome,
    primary::{Primary, Server, ask_role, check_role},
};
use crate::{Error, LockKey, store::Hint};

#[derive(Debug)]
pub(super) enum Routes {
    /// A key always uses the same lane.
    One(Arc<Primary>, Vec<Arc<Lane>>),
    Cluster(Arc<Cluster>),
}

impl Routes {
    /// For how long the store is sure to have kept its memory. A Cluster does not say: any of its nodes may have lost it.
    pub(super) fn uptime(&self) -> Duration {
        match self {
            Self::One(primary, _) => primary.uptime().get(),
            Self::Cluster(_) => Duration::ZERO,
        }
    }

    /// The run of the server that was connected to last. A Cluster has many.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        match self {
            Self::One(primary, _) => primary.uptime().server_id(),
            Self::Cluster(_) => None,
        }
    }

    pub(super) async fn connect(&self) -> Result<(), Error> {
        match self {
            Self::One(_, lanes) => try_join_all(lanes.iter().map(|lane| lane.connect()))
                .await
                .map(drop),
            Self::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Makes one call wherever its key is. `start` starts the call on a lane.
    pub(super) async fn call<Called>(
        &self,
        key: &LockKey,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, Way) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        let bucket = bucket(key);
        match self {
            Self::One(_, lanes) => start(&lanes[bucket % lanes.len()], Way::default()).await,
            Self::Cluster(cluster) => cluster.call(bucket, deadline, start).await,
        }
    }

    /// The lane of a key, if that is known without asking.
    pub(super) fn lane_at_once(&self, key: &LockKey) -> Option<Arc<Lane>> {
        let bucket = bucket(key);
        match self {
            Self::One(_, lanes) => Some(lanes[bucket % lanes.len()].clone()),
            Self::Cluster(cluster) => cluster.lane_at_once(bucket),
        }
    }

    /// A call has failed.
    pub(super) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }

    /// Goes on with what was started outside of a runtime.
    pub(super) fn go_on(&self) {
        match self {
            Self::One(_, lanes) => lanes.iter().for_each(|lane| lane.go_on()),
            Self::Cluster(cluster) => cluster.lanes().iter().for_each(|lane| lane.go_on()),
        }
    }

    /// What errors call the place.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::One(primary, _) => primary.name(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }
}

/// Where hints are listened for.
#[derive(Debug, Clone)]
pub(super) enum Station {
    Primary(Arc<Primary>),
    Cluster(Arc<Cluster>),
}

impl Station {
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Primary(primary) => primary.name(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// Where to listen, and as of when.
    pub(super) async fn find(&self, limit: Duration) -> Result<(Server, u64), Error> {
        match self {
            Self::Primary(primary) => {
                let server = primary.find(limit).await?;
                if primary.moves() {
                    // Not on the subscription's own connection, which may only subscribe.
                    let role = ask_role(&server.for_hints()?).await;
                    let role =
                        role.map_err(|error| explain::cannot_connect(&server.address, error))?;
                    check_role(&server.address, role)?;
                }
                Ok((server, 0))
            }
            Self::Cluster(cluster) => cluster.any().await,
        }
    }

    /// A subscription works.
    pub(super) fn found(&self, server: &Server) {
        if let Self::Primary(primary) = self {
            primary.found(&server.address);
        }
    }

    /// Resolves when hints do not arrive at this server any more.
    pub(super) async fn moved_from(&self, server: &Server) {
        match self {
            Self::Primary(primary) => primary.moved_from(&server.address).await,
            Self::Cluster(cluster) => cluster.without_slots(&server.address).await,
        }
    }

    /// Tells whenever leases are on other nodes than they were. A subscription need not move with them: what is published anywhere
    /// in a Cluster arrives at all nodes.
    pub(super) async fn tell_of_moved_slots(
        &self,
        mut version: u64,
        hints: &UnboundedSender<Hint>,
    ) -> Error {
        let Self::Cluster(cluster) = self else {
            return std::future::pending().await;
        };
        loop {
            version = cluster.changed_since(version).await;
            let _ = hints.send(Hint::Reconnected);
        }
    }

    /// It could not be listened to.
    pub(super) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }
}
