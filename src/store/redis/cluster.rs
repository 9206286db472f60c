//! A Redis Cluster: every bucket of keys has its node, every node its lanes.
//!
//! 1. A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing. Then the call is made again, there or
//!    elsewhere, until its time is up.
//! 2. So a call can take a way round, and no lane keeps its order. Instead the calls for one bucket are made one at a time
//!    (see `turns`), in the order in which they were started.
//! 3. What was sent to a node that does not answer can take effect there only while that node has the bucket. When
//!    another has it by now, nothing of that counts: the first one answers MOVED, or, cut off, acts on data that
//!    it will forget.
//! 4. Where a bucket's node is known from may be out of date. It is asked for again after every failure and every MOVED.
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
    connection::Peer,
    explain,
    fence::Floors,
    lane::{Failure, Lane, Redirect, Replies},
    primary::{Primary, Server, moved, open},
    script::Call,
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
    ) -> Self {
        let mut names: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
        names.sort();
        Self {
            name: format!("a Cluster of {}", names.join(", ")).into(),
            seeds,
            lanes,
            limit,
            floors,
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

    /// Where a bucket's calls go, as far as is known.
    pub(super) async fn lane(&self, bucket: usize, deadline: Instant) -> Result<Arc<Lane>, Error> {
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

    /// Makes a call wherever its bucket is, once other connections have been closed there.
    pub(super) async fn call(
        &self,
        bucket: usize,
        call: &Call,
        others: &[Peer],
    ) -> Result<Replies, Failure> {
        let deadline = Instant::now() + self.limit;
        let mut elsewhere: Option<(Arc<Lane>, bool)> = None;
        // The call with one key, which takes turns with the whole one while a slot is on its way.
        let mut alone: Option<Call> = None;
        let mut repeated = false;
        loop {
            let (lane, asking) = match elsewhere.take() {
                Some(there) => there,
                None => {
                    let lane = self.lane(bucket, deadline).await;
                    (lane.map_err(Failure::NotSent)?, false)
                }
            };
            let now = alone.as_ref().unwrap_or(call);
            let outcome = lane.call_redirected(now, others, asking, deadline).await;
            let mut replies = outcome.map_err(|failure| {
                self.doubt();
                match failure {
                    // Not this time; but the time before may have had an effect.
                    Failure::NotSent(error) if repeated => Failure::Unknown(error),
                    failure => failure,
                }
            })?;
            repeated |= replies.repeated;
            replies.repeated = repeated;
            let Some(redirect) = &replies.redirect else {
                return Ok(replies);
            };
            match redirect {
                Redirect::Moved(to) => {
                    elsewhere = Some((self.lane_at(to, bucket), false));
                    self.doubt();
                    // At once: it is news for those who hold leases there. Where it fails, the next call asks.
                    let _ = self.refresh(deadline).await;
                }
                Redirect::Ask(to) => elsewhere = Some((self.lane_at(to, bucket), true)),
                Redirect::TryAgain => {
                    alone = if alone.is_none() { call.alone() } else { None };
                    if alone.is_some() {
                        elsewhere = Some((lane, asking));
                    } else {
                        sleep(PAUSE).await;
                    }
                }
                Redirect::Down => {
                    self.doubt();
                    sleep(PAUSE).await;
                }
            }
            if Instant::now() >= deadline {
                return Ok(replies);
            }
        }
    }

    fn lane_at(&self, address: &Arc<str>, bucket: usize) -> Arc<Lane> {
        let node = self.node(address);
        node.lanes[bucket % node.lanes.len()].clone()
    }

    fn node(&self, address: &Arc<str>) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let primary = Arc::new(Primary::node(self.info(address)));
            let lane = |_| Lane::new(primary.clone(), self.floors.clone(), self.limit).into();
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
                return Ok(()); // somebody else has asked meanwhile
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
            self.slots.send_modify(|slots| *slots = latest.after(slots));
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

    /// Resolves when a bucket has another node than it had then: whoever holds a lease there wants to know.
    pub(super) async fn changed_since(&self, version: u64) {
        let mut slots = self.slots.subscribe();
        if slots
            .wait_for(|slots| slots.version != version)
            .await
            .is_err()
        {
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
