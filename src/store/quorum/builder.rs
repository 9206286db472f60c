//! The settings of a quorum, and the check that refuses nodes that cannot form one.

use std::{sync::Arc, time::Duration};

use super::{
    QuorumStore, Shared,
    attempts::{Attempts, Names},
    health::Health,
    node::Node,
};
use crate::{
    Error, ErrorKind,
    defaults::quorum as defaults,
    store::{Store, home::Home},
    sync::Mutex,
};

/// No call succeeds within less.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
/// Far beyond any use, and small enough that multiples of the timeout do not overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Builds a [`QuorumStore`] with settings other than the defaults.
///
/// | setting | default |
/// |---|---|
/// | [`node_timeout`](Self::node_timeout) | 200 ms |
/// | [`longest_lease`](Self::longest_lease) | the longest lease that this process has asked for |
/// | [`fencing`](Self::fencing) | yes |
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), tower_distributed_lock::Error> {
/// use std::time::Duration;
/// use tower_distributed_lock::store::{MemoryStore, QuorumStore};
///
/// let nodes = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
/// let store = QuorumStore::builder(nodes)
///     .node_timeout(Duration::from_millis(100))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct QuorumStoreBuilder {
    nodes: Vec<Arc<dyn Store>>,
    node_timeout: Duration,
    longest_lease: Duration,
    fencing: bool,
}

impl QuorumStoreBuilder {
    pub(super) fn new(nodes: impl IntoIterator<Item = impl Store>) -> Self {
        let builder = Self {
            nodes: Vec::new(),
            node_timeout: defaults::NODE_TIMEOUT,
            longest_lease: Duration::ZERO,
            fencing: defaults::FENCING,
        };
        nodes.into_iter().fold(builder, Self::node)
    }

    /// Adds a node, which may be a different kind of store.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::store::{MemoryStore, QuorumStore};
    ///
    /// let store = QuorumStore::builder([MemoryStore::new(), MemoryStore::new()])
    ///     .node(MemoryStore::new()) // the third
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn node(mut self, node: impl Store) -> Self {
        self.nodes.push(Arc::new(node));
        self
    }

    /// Sets how long to wait for one node. The time should be well below the lease and well above a
    /// round trip: a node that takes longer counts as unreachable, and its late grants are
    /// returned.
    ///
    /// Default: 200 ms. The least is 1 ms, the most is one hour.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Sets the longest lease in the fleet, for the case that other instances use longer leases
    /// than this one. For that long after a restart, a node may have forgotten a lease.
    ///
    /// Default: the longest lease that this process has asked for so far.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::store::{MemoryStore, QuorumStore};
    ///
    /// // Another service on the same nodes has leases of two minutes.
    /// let store = QuorumStore::builder([MemoryStore::new(), MemoryStore::new(), MemoryStore::new()])
    ///     .longest_lease(Duration::from_secs(120))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// Sets whether tokens rise from turn to turn, which takes a second round trip before a turn
    /// whenever the nodes' counters differ. Without fencing, the token of a turn is the highest
    /// number that its own nodes gave, and two turns may have the same token.
    ///
    /// Default: yes.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::store::{MemoryStore, QuorumStore};
    ///
    /// // No resource of this service looks at tokens.
    /// let store = QuorumStore::builder([MemoryStore::new(), MemoryStore::new(), MemoryStore::new()])
    ///     .fencing(false)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.fencing = fencing;
        self
    }

    /// Checks the nodes and the settings, and creates the store.
    ///
    /// ```
    /// use tower_distributed_lock::{ErrorKind, store::{MemoryStore, QuorumStore}};
    ///
    /// let two = [MemoryStore::new(), MemoryStore::new()];
    /// let error = QuorumStore::builder(two).build().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an even number of nodes, fewer than three nodes, two nodes
    /// with the same keys (the same server, database and prefix), a timeout that lets no call
    /// succeed, or one of more than an hour.
    pub fn build(self) -> Result<QuorumStore, Error> {
        let mut spaces: Vec<Arc<str>> = self.nodes.iter().map(|node| node.space()).collect();
        spaces.sort_unstable();
        self.check(&spaces)?;
        let home = Home::default();
        let health = Arc::new(Health::new(self.nodes.len()));
        let names = Names::default();
        let node = |(at, node): (usize, &Arc<dyn Store>)| {
            let (health, names) = (health.clone(), names.clone());
            Node::new(at, node.clone(), health, names, home.clone())
        };
        Ok(QuorumStore(Arc::new(Shared {
            nodes: self.nodes.iter().enumerate().map(node).collect(),
            attempts: Attempts::new(self.nodes.len(), names),
            health,
            node_timeout: self.node_timeout,
            fencing: self.fencing,
            longest_lease: Mutex::new(self.longest_lease),
            space: format!("quorum:{}", spaces.join(",")).into(),
            home,
        })))
    }

    fn check(&self, spaces: &[Arc<str>]) -> Result<(), Error> {
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        let nodes = spaces.len();
        if nodes < 3 {
            return refuse(format!(
                "a quorum needs at least 3 nodes, not {nodes}: with fewer, no node could fail"
            ));
        }
        if nodes.is_multiple_of(2) {
            let odd = nodes - 1;
            return refuse(format!(
                "a quorum needs an odd number of nodes, not {nodes}: {odd} nodes tolerate as many failures"
            ));
        }
        // Sorted, so that equal ones follow each other.
        if let Some([twice, ..]) = spaces.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!(
                "a quorum needs independent nodes, and `{twice}` is there twice"
            ));
        }
        if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&self.node_timeout) {
            let timeout = self.node_timeout;
            return refuse(format!(
                "a node timeout of {timeout:?} cannot work: it is at least 1 ms and at most one hour"
            ));
        }
        Ok(())
    }
}
