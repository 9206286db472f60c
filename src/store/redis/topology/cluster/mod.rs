//! A Redis Cluster: every bucket of keys has a node, every node has lanes.
//!
//! 1. A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing. The call is made again, at the same node or at
//!    another one, until its time is up.
//! 2. So a call can be redirected, and no lane keeps the order of such calls. Instead, the calls for one key are made one at a time
//!    (see `key_order`). Renewals are not among them: a renewal never creates a lease, so a late one has no effect.
//! 3. A call that was sent to a node without an answer can take effect there only while that node has the bucket. Once another node has the
//!    bucket, the effect does not count: the first node answers MOVED, or is cut off and will forget its writes.
//! 4. The slot map may be stale. The nodes are asked for it again after every failure and every MOVED.
//! 5. A node without slots is forgotten. A call that is under way to such a node keeps its lane until it ends.
//!
//! The client library's own Cluster connection repeats calls of unknown outcome on other nodes and keeps no order, so it is not used
//! here.

mod node;
mod slot_map;
mod slots;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::try_join_all;
use redis::ConnectionInfo;
use tokio::time::{Instant, sleep};

use self::{
    node::Node,
    slot_map::{PAUSE, SlotMap},
};
use super::{CallForm, Change, HintSource, LaneSettings, Lanes, Topology};
use crate::{
    Error,
    store::redis::{
        explain,
        lane::Lane,
        outcome::{Outcome, Redirect},
    },
    sync::Mutex,
};

#[derive(Debug)]
pub(crate) struct Cluster {
    slot_map: SlotMap,
    settings: LaneSettings,
    /// The lanes to each node that a call was sent to.
    nodes: Mutex<HashMap<Arc<str>, Arc<Lanes>>>,
    /// Rises with every subscription, so that each one is at another node.
    subscriptions: AtomicUsize,
}

/// Where a call is sent next, and how.
struct Target {
    lane: Arc<Lane>,
    form: CallForm,
}

impl Cluster {
    pub(super) fn topology(
        seeds: Vec<ConnectionInfo>,
        settings: LaneSettings,
    ) -> Result<Topology, Error> {
        if seeds.is_empty() {
            let message = "a store in a Cluster needs the URL of at least one node";
            return Err(explain::invalid(message));
        }
        if seeds.iter().any(|seed| seed.redis_settings().db() != 0) {
            return Err(explain::invalid("a Cluster has no database but 0"));
        }
        Ok(Topology::Cluster(Box::new(Self::new(seeds, settings))))
    }

    fn new(seeds: Vec<ConnectionInfo>, settings: LaneSettings) -> Self {
        Self {
            slot_map: SlotMap::new(seeds, settings.limit),
            settings,
            nodes: Mutex::new(HashMap::new()),
            subscriptions: AtomicUsize::new(0),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        self.slot_map.name()
    }

    /// Connects to every node that has a bucket.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        let limit = self.settings.limit;
        self.refresh(Instant::now() + limit).await?;
        let nodes = self.slot_map.nodes();
        let lanes: Vec<_> = nodes.iter().map(|node| self.lanes_to(node)).collect();
        try_join_all(lanes.iter().map(|lanes| lanes.connect())).await?;
        Ok(())
    }

    /// The lane of a bucket, unless the slot map is stale.
    pub(super) fn lane_of(&self, bucket: usize) -> Option<Arc<Lane>> {
        if self.slot_map.is_stale() {
            return None;
        }
        let owner = self.slot_map.owner(bucket)?;
        Some(self.lane_to(&owner, bucket))
    }

    /// The lane of a bucket, by a fresh slot map.
    async fn find_lane(&self, bucket: usize, deadline: Instant) -> Result<Arc<Lane>, Error> {
        self.refresh(deadline).await?;
        let Some(owner) = self.slot_map.owner(bucket) else {
            self.mark_stale();
            return Err(explain::no_owner());
        };
        Ok(self.lane_to(&owner, bucket))
    }

    pub(super) fn mark_stale(&self) {
        self.slot_map.mark_stale();
    }

    /// Asks the nodes for the slot map, if it is stale.
    async fn refresh(&self, deadline: Instant) -> Result<(), Error> {
        if self.slot_map.is_stale() {
            self.slot_map.refresh(deadline).await?;
            self.forget_nodes();
        }
        Ok(())
    }

    /// Makes a call at the node of its bucket, and follows redirects. `start` starts the call on a lane.
    pub(super) async fn call<Called>(
        &self,
        bucket: usize,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, CallForm) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        let mut redirected: Option<Target> = None;
        let mut may_have_taken_effect = false;
        loop {
            let target = match redirected.take() {
                Some(target) => target,
                None => match self.find_lane(bucket, deadline).await {
                    Ok(lane) => Target::plain(lane),
                    Err(error) => return Outcome::failed(error, may_have_taken_effect),
                },
            };
            let redirect = match start(&target.lane, target.form).await {
                Outcome::Answered(mut answered) => {
                    answered.repeated |= may_have_taken_effect;
                    return Outcome::Answered(answered);
                }
                Outcome::Redirected {
                    redirect,
                    may_have_taken_effect: earlier,
                } => {
                    may_have_taken_effect |= earlier;
                    redirect
                }
                Outcome::Refused(error) => {
                    self.mark_stale();
                    // This sending had no effect, but an earlier one may have had.
                    return Outcome::failed(error, may_have_taken_effect);
                }
                failed @ Outcome::MayHaveTakenEffect(_) => {
                    self.mark_stale();
                    return failed;
                }
            };
            redirected = self.follow(&redirect, target, bucket, deadline).await;
            if Instant::now() >= deadline {
                return Outcome::failed(redirect.error(), may_have_taken_effect);
            }
        }
    }

    /// Where a redirect leads. `None`: to the bucket's node by the slot map, after a pause where one is due.
    async fn follow(
        &self,
        redirect: &Redirect,
        from: Target,
        bucket: usize,
        deadline: Instant,
    ) -> Option<Target> {
        match redirect {
            Redirect::Moved(to) => {
                let target = Target::plain(self.lane_to(to, bucket));
                self.mark_stale();
                // At once, because the holders of leases in the moved slots wait for this. If this fails, the next call asks again.
                let _ = self.refresh(deadline).await;
                Some(target)
            }
            Redirect::Ask(to) => Some(Target {
                lane: self.lane_to(to, bucket),
                form: CallForm::asking(),
            }),
            // The form with one key alternates with the whole call, at the same node.
            Redirect::TryAgain if !from.form.has_one_key() => Some(Target {
                lane: from.lane,
                form: from.form.with_one_key(),
            }),
            Redirect::TryAgain => {
                sleep(PAUSE).await;
                None
            }
            Redirect::Down => {
                self.mark_stale();
                sleep(PAUSE).await;
                None
            }
            Redirect::Unrouted => None,
        }
    }

    /// Resumes calls that were started outside of a runtime.
    pub(super) fn resume(&self) {
        self.nodes.lock().values().for_each(|lanes| lanes.resume());
    }

    fn lane_to(&self, address: &Arc<str>, bucket: usize) -> Arc<Lane> {
        self.lanes_to(address).of(bucket).clone()
    }

    fn lanes_to(&self, address: &Arc<str>) -> Arc<Lanes> {
        let mut nodes = self.nodes.lock();
        let lanes = nodes.entry(address.clone()).or_insert_with(|| {
            let node = Node::new(self.slot_map.server(address));
            Arc::new(self.settings.lanes_to(Arc::new(node)))
        });
        lanes.clone()
    }

    /// Forgets the nodes that have no slots (invariant 5).
    fn forget_nodes(&self) {
        let with_slots = self.slot_map.nodes();
        let mut nodes = self.nodes.lock();
        nodes.retain(|address, _| with_slots.contains(address));
    }

    /// A node to subscribe at, each time another one: a hint that is published at any node arrives at all of them.
    pub(super) async fn hint_source(&self) -> Result<HintSource, Error> {
        self.refresh(Instant::now() + self.settings.limit).await?;
        // Before the nodes: a change in between is then reported, not missed.
        let version = self.slot_map.version();
        let nodes = self.slot_map.nodes();
        let number = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        let at = number.checked_rem(nodes.len());
        let node = at.and_then(|at| nodes.get(at));
        let node = node.ok_or_else(explain::no_owner)?;
        Ok(HintSource {
            server: self.slot_map.server(node),
            version,
        })
    }

    /// Resolves when a bucket has another node than in the version of the slot map that `source` knows.
    pub(super) async fn changed(&self, source: &mut HintSource) -> Change {
        let changed = self.slot_map.changed_since(source.version).await;
        source.version = changed.version;
        if self.slot_map.nodes().contains(&source.server.address) {
            Change::KeysMoved(changed.keys)
        } else {
            // A node that has left the Cluster receives no hints.
            Change::OtherSource
        }
    }
}

impl Target {
    fn plain(lane: Arc<Lane>) -> Self {
        Self {
            lane,
            form: CallForm::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::IntoConnectionInfo;

    use super::*;
    use crate::store::redis::{floors::Floors, names::Names, owed::Owed};

    #[test]
    fn a_node_without_slots_is_forgotten() {
        let seed = "redis://127.0.0.1:1".into_connection_info().unwrap();
        let settings = LaneSettings {
            count: 1,
            limit: Duration::from_secs(1),
            floors: Arc::new(Floors::new()),
            names: Names::new("tdl", None),
            owed: Owed::default(),
        };
        let cluster = Cluster::new(vec![seed], settings);
        let under_way = cluster.lane_to(&"127.0.0.1:2".into(), 0);
        assert_eq!(cluster.nodes.lock().len(), 1);
        cluster.forget_nodes();
        assert!(cluster.nodes.lock().is_empty());
        drop(under_way);
    }
}
