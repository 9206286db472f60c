//! Leases on a majority of independent stores (Redlock), over nothing but the [`Store`] trait.
//!
//! What keeps two attempts from holding a key at once:
//!
//! 1. A lease is granted by a majority of nodes that remember as far back as the longest lease, or by all nodes
//!    (`ballot`). Two majorities have a node in common, and that node grants once at a time.
//! 2. Time counts from before the first node was asked, and a lease of which too little is left by then is not
//!    granted.
//! 3. An attempt that is not granted is undone on every node, also on those that answer late. What undoes and what grants
//!    never use the same name on a node (`attempts`).
//! 4. A renewal counts nodes that hold the lease now. Before its deadline a lease may take part in further nodes;
//!    after it, or after its release, never (`renew`).
//! 5. Tokens: a turn begins when a majority counts up to the end of its block. Whoever asks a majority later meets
//!    one of these counters, and takes the highest that it meets.
//!
//! What keeps a node that is away from holding up the others, or from being owed without bound:
//!
//! 6. A node that was silent is not waited for again, unless nothing can be said without it (`health`).
//! 7. An acquire that a node has not answered in time is dropped, and its name is not used again: the node cleans up
//!    after it, or has nothing to clean up if it was never reached. A node where an attempt has nothing is sent no
//!    release (`attempts`).
//! 8. Nothing in the background outlives the [node timeout](QuorumStoreBuilder::node_timeout), other than what the nodes owe.

mod acquire;
mod attempts;
mod ballot;
mod builder;
mod fence;
mod heal;
mod health;
mod hints;
mod operators;
mod question;
mod release;
mod renew;
mod round;
#[cfg(test)]
mod tests;
mod vote;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::time::Instant;

pub use builder::QuorumStoreBuilder;

use self::{attempts::Attempts, ballot::majority, health::Health};
use super::{
    Acquire, Acquired, Hints, Inspection, Instance, Release, Released, Renew, RenewAnswers, Store,
    StoreFuture, sealed::Sealed,
};
use crate::{Error, LockKey, time::later};

/// A [`Store`] on a majority of others, which goes on while a majority of them lives: 3 or 5 servers that have
/// nothing in common but their clients.
///
/// ```
/// # #[cfg(not(feature = "test-util"))]
/// # fn main() {}
/// # #[cfg(feature = "test-util")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::{Fault, FaultyStore, QuorumStore}};
///
/// let nodes = [FaultyStore::new(), FaultyStore::new(), FaultyStore::new()];
/// let locks = Locks::builder(QuorumStore::new(nodes.clone())?).build()?;
/// nodes[0].set_fault(Some(Fault::Unreachable));
/// let guard = locks.lock("orders/42").await?;
/// # Ok(())
/// # }
/// ```
///
/// For Redis, [`Locks::quorum`](crate::Locks::quorum) does it all.
///
/// # What it costs
///
/// One round trip to all nodes at once takes a key. The turn begins as soon as a majority has granted and its token
/// counters agree. They do while all nodes are well; after a node was missing, after a vote that was split and after
/// a new connection they do not, and a **second round trip** lifts a majority of them to the end of the block.
/// [`fencing(false)`](QuorumStoreBuilder::fencing) saves it, and then tokens need not rise.
///
/// A node that hangs costs its [timeout](QuorumStoreBuilder::node_timeout) once, and only where its answer matters: a
/// lock is granted, renewed and refused as soon as a majority says so. An idempotent key waits for all nodes, because
/// any of them may have the record. A node that did not answer is not waited for again until it has answered a call,
/// unless the other nodes are too few. All calls still go to such a node, so that it takes part again as soon as it can.
///
/// # What it promises, and what it does not
///
/// - **Independence** is the user's to provide. Two nodes that are one server (two databases, two names of one host) are
///   refused, as far as the servers tell who they are: Redis does, by the `run_id` of INFO.
/// - **Exclusion** while a majority of nodes still has the lease. A lease that only two of three nodes granted ends with
///   either of them, until a renewal brings it to the third. A node that restarts is
///   noticed by its [uptime](Store::uptime): for as long as the longest lease lasts it is *young*, and only a
///   majority of nodes that are not, or all nodes together, grant a key. A node that forgets in another way
///   (FLUSHALL, an eviction, a clock that jumps, a fail-over behind the same address) is not noticed. So let nodes be
///   plain servers without replicas.
/// - **Availability** while a majority lives: of five, two may be down. Then everything fails with *no quorum*, which
///   is not *held*. While a node is young, it counts as down, unless all others are up.
/// - **Fairness** is the best effort. Who waits has a place in the queue of every node, and the queue of the first node that
///   answers is the order in which attempts are served. An attempt that finds a majority of nodes free may come before.
/// - **Records** ([`Ending::Record`](super::Ending::Record)) are kept by a majority at least. One record on any node
///   that answers is enough for a key not to be granted, and whoever finds one that other nodes miss gives it to
///   them. Unlike leases, records last longer than any node is *young*: with a majority restarted empty, one after
///   another, they are gone for all keys that nobody asked for in between. Nodes that keep records need to write to
///   disk.
///
/// All instances of a fleet need the same nodes in the same order, and the same [lease](crate::LocksBuilder::lease). If some have a
/// longer one, tell the others with [`longest_lease`](QuorumStoreBuilder::longest_lease).
#[derive(Clone)]
pub struct QuorumStore(Arc<Shared>);

struct Shared {
    nodes: Vec<Arc<dyn Store>>,
    node_timeout: Duration,
    fencing: bool,
    /// In ms. A node that is up for less may have forgotten a lease.
    longest_lease: AtomicU64,
    attempts: Attempts,
    health: Arc<Health>,
    /// Held by the task that heals in the background.
    healing: tokio::sync::Mutex<()>,
    space: Arc<str>,
}

impl QuorumStore {
    /// A quorum of these nodes, with all defaults.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an even number of nodes, less than three, or
    /// one that is there twice. Whether two nodes are one server is known only after they answered: then every
    /// [`acquire`](Store::acquire) fails with that error.
    pub fn new(nodes: impl IntoIterator<Item = impl Store>) -> Result<Self, Error> {
        Self::builder(nodes).build()
    }

    /// A quorum of these nodes, to be configured.
    pub fn builder(nodes: impl IntoIterator<Item = impl Store>) -> QuorumStoreBuilder {
        QuorumStoreBuilder::new(nodes)
    }

    /// Fails if what was tried on each of the nodes did not work on a majority, or if two nodes are one server.
    #[cfg(feature = "redis")]
    pub(crate) fn need_majority(
        &self,
        outcomes: impl IntoIterator<Item = Result<(), Error>>,
    ) -> Result<(), Error> {
        self.0.need_majority(outcomes)?;
        self.0.check_servers()
    }
}

impl Shared {
    fn note_lease(&self, lease: Duration) {
        self.longest_lease
            .fetch_max(millis(lease), Ordering::Relaxed);
    }

    /// Whether a node remembers every lease that may still be valid. Asked after its answer.
    fn is_mature(&self, node: usize) -> bool {
        let longest = Duration::from_millis(self.longest_lease.load(Ordering::Relaxed));
        self.nodes[node].uptime() >= longest
    }

    /// Until when a lease that was asked for at a time is valid, if what is left of it is worth having: a tenth.
    fn valid_until(&self, asked: Instant, lease: Duration) -> Option<Instant> {
        // For clocks that run at different speeds, and for their granularity; as `Locks` counts.
        let drift = lease / 100 + Duration::from_millis(2);
        let valid = lease.saturating_sub(drift);
        let left = valid.saturating_sub(asked.elapsed());
        (left >= lease / 10).then(|| later(asked, valid))
    }
}

/// Rounded up: no lease is longer.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Sealed for QuorumStore {}

impl Store for QuorumStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        self.0.start_acquire(request)
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.0.start_renewal(requests)
    }

    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        self.0.start_release(request)
    }

    fn owed(&self) -> usize {
        self.0.nodes.iter().map(|node| node.owed()).sum()
    }

    fn settled(&self) -> StoreFuture<()> {
        let settled = join_all(self.0.nodes.iter().map(|node| node.settled()));
        Box::pin(settled.map(drop))
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.0.raise_fence(&key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.0.inspect(&key)
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        self.0.force_release(&key)
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    /// For how long a majority has forgotten nothing.
    fn uptime(&self) -> Duration {
        let mut uptimes: Vec<Duration> = self.0.nodes.iter().map(|node| node.uptime()).collect();
        uptimes.sort_unstable_by(|a, b| b.cmp(a));
        uptimes[majority(uptimes.len()) - 1]
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.watch(instance)
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStore")
            .field("nodes", &self.0.nodes)
            .field("node_timeout", &self.0.node_timeout)
            .field("fencing", &self.0.fencing)
            .finish_non_exhaustive()
    }
}
