//! A Redis Cluster: every bucket of keys has a node, every node has lanes.
//!
//! ```text
//! key ── hash ──> bucket (4,096) ── CRC-16 of "b<bucket>" ──> slot (16,384) ── slot map ──> node ── bucket % lanes ──> lane
//! ```
//!
//! 1. A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has not run the call. The call is
//!    made again, at the same node or at another one, until its deadline.
//! 2. A call of unknown outcome is not made again. Nothing is promised about the order of two
//!    calls: a redirected one may come later.
//! 3. A call that a node has not answered can take effect there only while that node has the
//!    bucket. Once another node has the bucket, the effect does not count: the first node answers
//!    MOVED, or is cut off and will forget its writes.
//! 4. The slot map may be stale. The nodes are asked for the slot map again after every failure and
//!    every MOVED.
//! 5. A node that restarts may have lost its data. The lanes to a node stay connected, so that a
//!    restart is noticed at once, and then the leases in the node's slots are confirmed, or
//!    reported as lost ([`Upstream::connected`]).
//! 6. A node without slots is forgotten. A call on its way to such a node keeps the lane alive
//!    until the call ends.
//!
//! The client library's own Cluster connection is not used here, because it repeats calls of
//! unknown outcome on other nodes.
//!
//! # Redirects
//!
//! | a node answers | meaning | the call |
//! |---|---|---|
//! | MOVED | another node has the slot | is made there, and the slot map is asked for |
//! | ASK | the slot is moving, and the key may be there already | is made there once, after ASKING |
//! | TRYAGAIN | the slot is moving, and the keys of the call are on both nodes | is made again with one key, then after a pause |
//! | CLUSTERDOWN | a fail-over is under way | is made again after a pause, with a new slot map |

mod redirect;
mod slot_map;
mod slots;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use redis::Value;
use tokio::time::{Instant, sleep};

use self::{redirect::Redirect, slot_map::PAUSE};
pub(crate) use self::{redirect::is_redirect, slot_map::SlotMap};
use super::{Change, HintSource, LaneSettings, Lanes, Probe, Server, Upstream};
use crate::{
    Error,
    store::{
        Outcome,
        redis::{
            explain,
            lane::{Lane, Pending},
            names::BUCKETS,
            operations::Call,
        },
    },
    sync::Mutex,
};

/// The nodes of a Cluster, and the lanes to them.
#[derive(Debug)]
pub(crate) struct Cluster {
    slot_map: Arc<SlotMap>,
    settings: LaneSettings,
    /// The lanes to each node that has received a call, by address.
    nodes: Mutex<HashMap<Arc<str>, Arc<Lanes>>>,
    /// Rises with every subscription, so that subscriptions spread over the nodes.
    subscriptions: AtomicUsize,
}

/// A call that is under way.
struct UnderWay {
    node: Arc<str>,
    /// The call, in the form in which it was sent.
    sent: Call,
    outcome: Pending,
}

impl Cluster {
    /// Checks the URLs. The lanes are made when calls need them.
    pub(super) fn new(seeds: Vec<Server>, settings: LaneSettings) -> Result<Self, Error> {
        if seeds.is_empty() {
            let message = "a store in a Cluster needs the URL of at least one node";
            return Err(explain::invalid(message));
        }
        if seeds.iter().any(|seed| seed.database() != 0) {
            return Err(explain::invalid(
                "a Cluster has only database 0: remove the database from the URLs",
            ));
        }
        Ok(Self {
            slot_map: Arc::new(SlotMap::new(seeds, settings.limit)),
            settings,
            nodes: Mutex::new(HashMap::new()),
            subscriptions: AtomicUsize::new(0),
        })
    }

    pub(super) fn name(&self) -> &Arc<str> {
        self.slot_map.name()
    }

    /// The node of a bucket, unless the slot map is stale.
    fn owner(&self, bucket: usize) -> Option<Arc<str>> {
        let is_fresh = !self.slot_map.is_stale();
        is_fresh.then(|| self.slot_map.owner(bucket)).flatten()
    }

    /// Finds the node of a bucket in a fresh slot map.
    async fn find_owner(&self, bucket: usize, deadline: Instant) -> Result<Arc<str>, Error> {
        self.refresh(deadline).await?;
        let owner = self.slot_map.owner(bucket);
        owner.ok_or_else(|| {
            self.mark_stale();
            explain::no_owner()
        })
    }

    pub(super) fn mark_stale(&self) {
        self.slot_map.mark_stale();
    }

    /// Asks the nodes for the slot map, if the map is stale.
    async fn refresh(&self, deadline: Instant) -> Result<(), Error> {
        if self.slot_map.is_stale() {
            self.slot_map.refresh(deadline).await?;
            self.forget_nodes();
        }
        Ok(())
    }

    /// Makes a call at the node of its bucket, and follows redirects. The call is started when the
    /// method returns, unless the slot map is stale.
    pub(super) fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Instant,
    ) -> impl Future<Output = Outcome<Value>> + Send {
        let bucket = call.bucket();
        let first = self.owner(bucket);
        let mut under_way = first.map(|node| self.start(node, call.clone(), deadline));
        async move {
            loop {
                let UnderWay {
                    node,
                    sent,
                    outcome,
                } = match under_way.take() {
                    Some(under_way) => under_way,
                    None => match self.find_owner(bucket, deadline).await {
                        Ok(node) => self.start(node, call.clone(), deadline),
                        Err(error) => return Outcome::Refused(error),
                    },
                };
                let value = match outcome.await {
                    Outcome::Answered(value) => value,
                    failed => {
                        self.mark_stale();
                        return failed;
                    }
                };
                let Some(redirect) = Redirect::read(&value, &node) else {
                    return Outcome::Answered(value);
                };
                let next = self.follow(&redirect, (node, sent), &call, deadline).await;
                if Instant::now() >= deadline {
                    return Outcome::Refused(redirect.error());
                }
                under_way = next.map(|(node, call)| self.start(node, call, deadline));
            }
        }
    }

    /// Starts a call at a node.
    fn start(&self, node: Arc<str>, call: Call, deadline: Instant) -> UnderWay {
        let lane = self.lane_to(&node, call.bucket());
        UnderWay {
            node,
            sent: call.clone(),
            outcome: lane.call(call, deadline),
        }
    }

    /// Follows a redirect, after a pause where one is due. Returns the next node and the form of
    /// the call. `None`: the call is made at the bucket's node in the slot map.
    async fn follow(
        &self,
        redirect: &Redirect,
        (node, mut sent): (Arc<str>, Call),
        call: &Call,
        deadline: Instant,
    ) -> Option<(Arc<str>, Call)> {
        match redirect {
            Redirect::Moved(to) => {
                self.mark_stale();
                // The map is refreshed at once, because the change of the map tells the holders of
                // leases in the moved slots. If the refresh fails, the next call
                // asks again.
                let _ = self.refresh(deadline).await;
                Some((to.clone(), call.clone()))
            }
            Redirect::Ask(to) => {
                let mut call = call.clone();
                call.is_asking = true;
                Some((to.clone(), call))
            }
            // At the same node, the form with one key comes first. If that fails too, the plain
            // form follows after a pause.
            Redirect::TryAgain if !sent.has_one_key => {
                sent.has_one_key = true;
                Some((node, sent))
            }
            Redirect::TryAgain => {
                sleep(PAUSE).await;
                None
            }
            Redirect::Down => {
                self.mark_stale();
                sleep(PAUSE).await;
                None
            }
        }
    }

    /// Returns one probe for each lane to each node. Fails if a bucket has no node.
    pub(super) async fn probes(&self, deadline: Instant) -> Result<Vec<Probe>, Error> {
        let owners = self.owners(deadline).await?;
        let mut seen = HashSet::new();
        let probes = owners
            .into_iter()
            .enumerate()
            .filter_map(|(bucket, server)| {
                let is_new = seen.insert((server.clone(), bucket % self.settings.count));
                is_new.then_some(Probe { server, bucket })
            });
        Ok(probes.collect())
    }

    /// Returns the addresses of all nodes that have a bucket, in ascending order. Fails if a bucket
    /// has no node.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Arc<str>>, Error> {
        self.owners(deadline).await?;
        Ok(self.slot_map.nodes())
    }

    /// The nodes of all buckets. During a fail-over, a bucket may have none, and its keys would be
    /// missing.
    async fn owners(&self, deadline: Instant) -> Result<Vec<Arc<str>>, Error> {
        self.refresh(deadline).await?;
        let owners = (0..BUCKETS).map(|bucket| self.slot_map.owner(bucket));
        owners.collect::<Option<_>>().ok_or_else(|| {
            self.mark_stale();
            explain::no_owner()
        })
    }

    /// Moves the lanes that are driven elsewhere to the store's home.
    pub(super) fn move_home(&self) {
        let nodes = self.nodes.lock();
        nodes.values().for_each(|lanes| lanes.move_home());
    }

    pub(super) fn lane_to(&self, address: &Arc<str>, bucket: usize) -> Arc<Lane> {
        self.lanes_to(address).of(bucket).clone()
    }

    /// The lanes to a node, which are made on first use.
    fn lanes_to(&self, address: &Arc<str>) -> Arc<Lanes> {
        let mut nodes = self.nodes.lock();
        let lanes = nodes.entry(address.clone()).or_insert_with(|| {
            let upstream = Upstream::node(self.slot_map.server(address), self.slot_map.clone());
            Arc::new(self.settings.lanes_to(Arc::new(upstream)))
        });
        lanes.clone()
    }

    /// Forgets the nodes that have no slots (invariant 6).
    fn forget_nodes(&self) {
        let with_slots = self.slot_map.nodes();
        let mut nodes = self.nodes.lock();
        nodes.retain(|address, _| with_slots.contains(address));
    }

    /// Chooses a node to subscribe at, another one each time. A hint that is published at any node
    /// arrives at all nodes.
    pub(super) async fn hint_source(&self) -> Result<HintSource, Error> {
        self.refresh(Instant::now() + self.settings.limit).await?;
        // The version is read before the nodes, so that a change in between is reported, not
        // missed.
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

    /// Resolves when a bucket has another node than in the version of the slot map that `source`
    /// knows.
    pub(super) async fn changed(&self, source: &mut HintSource) -> Change {
        let changed = self.slot_map.changed_since(source.version).await;
        source.version = changed.version;
        if self.slot_map.nodes().contains(&source.server.address) {
            Change::KeysMoved(changed.keys)
        } else {
            // A node without slots may have left the Cluster, and would then receive no hints.
            Change::OtherSource
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::IntoConnectionInfo;

    use super::*;
    use crate::store::{
        home::Home,
        redis::{floors::Floors, names::Names, persistence::Persistence},
    };

    #[test]
    fn a_node_without_slots_is_forgotten() {
        let seed = "redis://127.0.0.1:1".into_connection_info().unwrap();
        let settings = LaneSettings {
            count: 1,
            limit: Duration::from_secs(1),
            floors: Arc::new(Floors::new()),
            names: Names::new("tdl", None),
            strays: Arc::default(),
            persistence: Persistence::default(),
            home: Home::default(),
        };
        let cluster = Cluster::new(vec![Server::at(seed, None)], settings).unwrap();
        let under_way = cluster.lane_to(&"127.0.0.1:2".into(), 0);
        assert_eq!(cluster.nodes.lock().len(), 1);
        cluster.forget_nodes();
        assert!(cluster.nodes.lock().is_empty());
        drop(under_way);
    }
}
