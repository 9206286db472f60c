//! The interface of a store under test.

use tower_distributed_lock::store::Store;

pub(crate) use crate::support::{eventually, words::*};

/// The label of every store that has one.
#[cfg(feature = "redis")]
pub(crate) const LABEL: &str = "host-7";

pub(crate) trait Subject {
    async fn start() -> Self;
    fn store(&self) -> &dyn Store;
    /// The label that the store shows with its leases.
    fn label(&self) -> Option<&str> {
        None
    }
    /// Whether nothing is left in the store, token counters aside.
    async fn is_empty(&self) -> bool;
    /// Whether the store has one node, which every call reaches.
    fn has_one_node(&self) -> bool {
        true
    }
    /// Closes the connections for calls between the store and its servers, if there are any.
    async fn break_connections(&self);
    /// Interrupts the subscriptions to hints. Returns false if the store has none that could be
    /// interrupted.
    async fn interrupt_hints(&self) -> bool;
    /// Has the servers refuse writes, or accept them again. Returns false if the store has no
    /// servers.
    async fn refuse_writes(&self, refused: bool) -> bool;
}
