//! A Redis Cluster: every bucket of keys has its node, every node its lanes.
//!
//! 1. A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing. Then the call is made again, there or
//!    elsewhere, until its time is up.
//! 2. So a call can take a way round, and no lane keeps its order. Instead the calls for one key are made one at a time
//!    (see `key_order`). Renewals are not among them: a renewal never creates a lease, so one that comes late does nothing.
//! 3. What was sent to a node that does not answer can take effect there only while that node has the bucket. When
//!    another has it by now, nothing of that counts: the first one answers MOVED, or, cut off, acts on data that
//!    it will forget.
//! 4. The slot map may be stale. It is asked for again after every failure and every MOVED.
//! 5. A node without slots is forgotten, once no call is on its way there.
//!
//! Not by the client library's own Cluster connection: that repeats calls of unknown outcome on other nodes by itself,
//! and keeps no order.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult};
use tokio::{
    sync::{Mutex as FairMutex, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    explain,
    fence::Floors,
    lane::{Lane, Way},
    names::Names,
    outcome::{Outcome, Redirect},
    owed::Owed,
    primary::{Primary, Server, moved, open},
    slots::{Slots, address},
    survey::survey,
};
use crate::{Error, sync::Mutex};

/// Between two tries at a slot that is on its way to another node, or at a Cluster that is down; and between two times
/// that the nodes are asked who has what.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Cluster {
    /// The nodes that were named at first, with how to log in at all of them.
    seeds: Vec<ConnectionInfo>,
    name: Arc<str>,
    lanes: usize,
    limit: Duration,
    floors: Arc<Floors>,
    names: Names,
    owed: Owed,
    nodes: Mutex<HashMap<Arc<str>, Arc<Node>>>,
    slots: watch::Sender<Slots>,
    is_stale: AtomicBool,
    /// Held by whoever asks; and when that was last.
    refreshing: FairMutex<Option<Instant>>,
    next_for_hints: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    lanes: Vec<Arc<Lane>>,
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<ConnectionInfo>,
        lanes: usize,
        limit: Duration,
        floors: Arc<Floors>,
        prefix: Names,
        owed: Owed,
    ) -> Self {
        let mut names: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
        names.sort();
        Self {
            name: format!("a Cluster of {}", names.join(", ")).into(),
            seeds,
            lanes,
            limit,
            floors,
            names: prefix,
            owed,
            nodes: Mutex::new(HashMap::new()),
            slots: watch::Sender::new(Slots::default()),
            is_stale: AtomicBool::new(true),
            refreshing: FairMutex::new(None),
            next_for_hints: AtomicUsize::new(0),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Connects to every node that has a bucket.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.refresh(Instant::now() + self.limit).await?;
        let nodes = self.slots.borrow().nodes();
        let nodes: Vec<_> = nodes.iter().map(|address| self.node(address)).collect();
        let lanes = nodes.iter().flat_map(|node| &node.lanes);
        try_join_all(lanes.map(|lane| lane.connect())).await?;
        Ok(())
    }

    /// Where a bucket's calls go, if the slot map is known to be fresh.
    pub(super) fn lane_at_once(&self, bucket: usize) -> Option<Arc<Lane>> {
        if self.is_stale.load(Ordering::Acquire) {
            return None;
        }
        let owner = self.slots.borrow().owner(bucket).cloned()?;
        Some(self.lane_at(&owner, bucket))
    }

    /// Where a bucket's calls go, as far as is known.
    async fn lane(&self, bucket: usize, deadline: Instant) -> Result<Arc<Lane>, Error> {
        if self.is_stale.load(Ordering::Acquire) {
            self.refresh(deadline).await?;
        }
        let owner = self.slots.borrow().owner(bucket).cloned();
        match owner {
            Some(owner) => Ok(self.lane_at(&owner, bucket)),
            None => {
                self.doubt();
                Err(explain::no_owner())
            }
        }
    }

    /// What is known of the slots may be out of date.
    pub(super) fn doubt(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Makes a call wherever its bucket is.
    ///
    /// `start` starts the call on a lane.
    pub(super) async fn call<Called>(
        &self,
        bucket: usize,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, Way) -> Called,
    ) -> Outcome
    where
        Called: Future<Output = Outcome>,
    {
        let mut elsewhere: Option<(Arc<Lane>, Way)> = None;
        let mut may_have = false;
        loop {
            let (lane, way) = match elsewhere.take() {
                Some(there) => there,
                None => match self.lane(bucket, deadline).await {
                    Ok(lane) => (lane, Way::default()),
                    Err(error) => return Outcome::failed(error, may_have),
                },
            };
            let redirect = match start(&lane, way).await {
                Outcome::Answered(mut answered) => {
                    answered.repeated |= may_have;
                    return Outcome::Answered(answered);
                }
                Outcome::Redirected {
                    redirect,
                    may_have_taken_effect,
                } => {
                    may_have |= may_have_taken_effect;
                    redirect
                }
                Outcome::Refused(error) => {
                    self.doubt();
                    // Not this time; but an earlier sending may have had an effect.
                    return Outcome::failed(error, may_have);
                }
                failed @ Outcome::MayHaveTakenEffect(_) => {
                    self.doubt();
                    return failed;
                }
            };
            match &redirect {
                Redirect::Moved(to) => {
                    elsewhere = Some((self.lane_at(to, bucket), Way::default()));
                    self.doubt();
                    // At once: those who hold leases there wait for this. Where it fails, the next call asks.
                    let _ = self.refresh(deadline).await;
                }
                Redirect::Ask(to) => {
                    elsewhere = Some((self.lane_at(to, bucket), Way::asking()));
                }
                // The call with one key takes turns with the whole one, at the same node.
                Redirect::TryAgain if !way.has_one_key() => {
                    elsewhere = Some((lane, way.with_one_key()));
                }
                Redirect::TryAgain => sleep(PAUSE).await,
                Redirect::Down => {
                    self.doubt();
                    sleep(PAUSE).await;
                }
                Redirect::Unrouted => {}
            }
            if Instant::now() >= deadline {
                return Outcome::failed(redirect.error(), may_have);
            }
        }
    }

    /// The lanes to all nodes that are known.
    pub(super) fn lanes(&self) -> Vec<Arc<Lane>> {
        let nodes = self.nodes.lock();
        nodes.values().flat_map(|node| node.lanes.clone()).collect()
    }

    /// Forgets the nodes that have no slots. A call that is on its way to one keeps its lane until it is over.
    fn forget_nodes(&self) {
        let with_slots = self.slots.borrow().nodes();
        let mut nodes = self.nodes.lock();
        nodes.retain(|address, _| with_slots.contains(address));
    }

    fn lane_at(&self, address: &Arc<str>, bucket: usize) -> Arc<Lane> {
        let node = self.node(address);
        node.lanes[bucket % node.lanes.len()].clone()
    }

    fn node(&self, address: &Arc<str>) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let primary = Arc::new(Primary::node(self.info(address)));
            let lane = |_| {
                let (floors, names) = (self.floors.clone(), self.names.clone());
                let lane = Lane::new(
                    primary.clone(),
                    floors,
                    self.limit,
                    names,
                    self.owed.clone(),
                );
                Arc::new(lane)
            };
            Arc::new(Node {
                lanes: (0..self.lanes).map(lane).collect(),
            })
        });
        node.clone()
    }

    fn info(&self, address: &str) -> ConnectionInfo {
        let seed = self.seeds[0].clone();
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        let to = moved(seed.addr(), host.to_owned(), port.parse().unwrap_or(6379));
        seed.set_addr(to)
    }

    /// Every node that is known.
    fn known(&self) -> Vec<ConnectionInfo> {
        let mut known = self.seeds.clone();
        let seeds: Vec<_> = known.iter().map(|seed| seed.addr().to_string()).collect();
        let nodes = self.slots.borrow().nodes();
        let others = nodes
            .iter()
            .filter(|node| !seeds.iter().any(|seed| **seed == ***node));
        known.extend(others.map(|node| self.info(node)));
        known
    }

    /// Asks the nodes who has what. The latest epoch counts: a node that was cut off may not know of it.
    async fn refresh(&self, deadline: Instant) -> Result<(), Error> {
        let refreshing = async {
            let mut last = self.refreshing.lock().await;
            if !self.is_stale.load(Ordering::Acquire) {
                return Ok(()); // another call has asked meanwhile
            }
            // While a node is gone, every call to it would have all the others asked. Not left out but put off: somebody
            // may wait for this news.
            if let Some(last) = *last {
                sleep_until(last + PAUSE).await;
            }
            self.is_stale.store(false, Ordering::Release);
            let known = self.known();
            let (answers, failure) = survey(known.iter().map(ask), self.limit).await;
            *last = Some(Instant::now());
            let Some(latest) = answers.into_iter().max_by_key(|slots| slots.epoch) else {
                self.doubt();
                return Err(explain::no_node(&self.name, failure));
            };
            self.slots.send_if_modified(|slots| {
                let before = slots.version;
                *slots = latest.after(slots);
                slots.version != before
            });
            self.forget_nodes();
            Ok(())
        };
        match timeout_at(deadline, refreshing).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.doubt();
                Err(explain::cannot_connect_in_time(&self.name, self.limit))
            }
        }
    }

    /// A node to listen at: what is published anywhere arrives at all of them. Each time another one. And as of when.
    pub(super) async fn any(&self) -> Result<(Server, u64), Error> {
        if self.is_stale.load(Ordering::Acquire) {
            self.refresh(Instant::now() + self.limit).await?;
        }
        let (nodes, version) = {
            let slots = self.slots.borrow();
            (slots.nodes(), slots.version)
        };
        let turn = self.next_for_hints.fetch_add(1, Ordering::Relaxed);
        let node = turn.checked_rem(nodes.len()).and_then(|at| nodes.get(at));
        let node = node.ok_or_else(explain::no_owner)?;
        Ok((Server::at(self.info(node)), version))
    }

    /// Resolves when a bucket has another node than it had at this version of the slot map, with the new version.
    pub(super) async fn changed_since(&self, version: u64) -> u64 {
        let mut slots = self.slots.subscribe();
        let changed = slots.wait_for(|slots| slots.version != version).await;
        match changed.map(|slots| slots.version) {
            Ok(version) => version,
            Err(_) => std::future::pending().await,
        }
    }

    /// Resolves when a node has no slots any more: a subscription there may hear nothing.
    pub(super) async fn without_slots(&self, address: &Arc<str>) {
        let mut slots = self.slots.subscribe();
        let gone = slots.wait_for(|slots| slots.version > 0 && !slots.nodes().contains(address));
        if gone.await.is_err() {
            std::future::pending().await
        }
    }
}

async fn ask(node: &ConnectionInfo) -> RedisResult<Slots> {
    let host = match node.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.as_str(),
        _ => "127.0.0.1",
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let client = open(node.clone()).map_err(|error| std::io::Error::other(error.to_string()))?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    Slots::ask(&mut connection, host).await
}

impl Redirect {
    /// From what a node, asked under an address, says instead of doing it.
    pub(super) fn read(code: &str, detail: &str, asked: &str) -> Option<Self> {
        let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let to = || {
            let (name, port) = detail.split_whitespace().nth(1)?.rsplit_once(':')?;
            Some(address(name, port, host))
        };
        match code {
            "MOVED" => to().map(Self::Moved),
            "ASK" => to().map(Self::Ask),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" => Some(Self::Down),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn a_node_without_slots_is_forgotten() {
        let seed = "redis://127.0.0.1:1".into_connection_info().unwrap();
        let limit = Duration::from_secs(1);
        let names = Names::new("tdl", None);
        let cluster = Cluster::new(
            vec![seed],
            1,
            limit,
            Arc::new(Floors::new()),
            names,
            Owed::default(),
        );
        let on_its_way = cluster.lane_at(&"127.0.0.1:2".into(), 0);
        assert_eq!(cluster.lanes().len(), 1);
        cluster.forget_nodes();
        assert!(cluster.lanes().is_empty());
        drop(on_its_way);
    }
}
