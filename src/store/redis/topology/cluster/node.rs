//! One node of a Cluster, as the upstream of its lanes.
//!
//! A node that restarts without its data and keeps its slots has forgotten all leases. Every new
//! connection reads the node's `run_id`. If it is not that of the connection before, or not known,
//! the leases in the node's slots are confirmed, as if the slots had moved.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::slot_map::SlotMap;

/// A node, as the upstream of its lanes.
#[derive(Debug)]
pub(crate) struct Node {
    slot_map: Arc<SlotMap>,
    was_connected: AtomicBool,
}

impl Node {
    pub(super) fn new(slot_map: Arc<SlotMap>) -> Self {
        Self {
            slot_map,
            was_connected: AtomicBool::new(false),
        }
    }

    /// Reports a new connection. `is_same_run`: the node has not restarted since the one before.
    pub(crate) fn connected(&self, address: &Arc<str>, is_same_run: bool) {
        let was_connected = self.was_connected.swap(true, Ordering::AcqRel);
        if was_connected && !is_same_run {
            self.slot_map.restarted(address);
        }
    }
}
