//! Which lane a key's calls go to.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::{
    cluster::Cluster,
    connection::Peer,
    explain,
    lane::{Failure, Lane, Replies},
    names::bucket,
    primary::{Primary, Server, ask_role, check_role},
    script::Call,
};
use crate::{Error, LockKey};

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

    /// Makes one call, once other connections have been closed (see [`Lane::call_without`]).
    pub(super) async fn call(
        &self,
        key: &LockKey,
        call: Call,
        others: &[Peer],
    ) -> Result<Replies, Failure> {
        let bucket = bucket(key.as_str());
        match self {
            Self::One(_, lanes) => {
                lanes[bucket % lanes.len()]
                    .call_without(others, &[call])
                    .await
            }
            Self::Cluster(cluster) => cluster.call(bucket, &call, others).await,
        }
    }

    /// The same for calls that are known to fail without an effect where they do not belong.
    pub(super) async fn again(
        &self,
        key: &LockKey,
        call: &Call,
    ) -> Option<Result<Replies, Failure>> {
        match self {
            Self::One(..) => None,
            Self::Cluster(cluster) => Some(cluster.call(bucket(key.as_str()), call, &[]).await),
        }
    }

    /// Which of so many keys go to the same lane. Those that go nowhere at the moment are told why.
    pub(super) async fn group<'a>(
        &self,
        keys: impl Iterator<Item = &'a LockKey>,
        deadline: Instant,
    ) -> (Vec<(Arc<Lane>, Vec<usize>)>, Vec<(usize, Error)>) {
        let (mut groups, mut lost): (Vec<(Arc<Lane>, Vec<usize>)>, _) = (Vec::new(), Vec::new());
        for (index, key) in keys.enumerate() {
            let bucket = bucket(key.as_str());
            let lane = match self {
                Self::One(_, lanes) => lanes[bucket % lanes.len()].clone(),
                Self::Cluster(cluster) => match cluster.lane(bucket, deadline).await {
                    Ok(lane) => lane,
                    Err(error) => {
                        lost.push((index, error));
                        continue;
                    }
                },
            };
            match groups
                .iter_mut()
                .find(|(other, _)| Arc::ptr_eq(other, &lane))
            {
                Some((_, indices)) => indices.push(index),
                None => groups.push((lane, vec![index])),
            }
        }
        (groups, lost)
    }

    /// A group's lane did not answer.
    pub(super) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
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

    /// Resolves when leases may be elsewhere than they were.
    pub(super) async fn moved_from(&self, server: &Server, version: u64) {
        match self {
            Self::Primary(primary) => primary.moved_from(&server.address).await,
            Self::Cluster(cluster) => cluster.changed_since(version).await,
        }
    }

    /// It could not be listened to.
    pub(super) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }
}
