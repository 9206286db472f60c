//! One node of a Cluster, as the upstream of its lanes.
//!
//! A node that restarts without its data and keeps its slots has forgotten all leases. Every new
//! connection reads the node's `run_id`. If it is not that of the connection before, or not known,
//! the leases in the node's slots are confirmed, as if the slots had moved.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;

use super::{
    super::{Upstream, server::Server, uptime::Uptime},
    slot_map::SlotMap,
};
use crate::Error;

/// The upstream of the lanes to one node.
#[derive(Debug)]
pub(super) struct Node {
    server: Server,
    slot_map: Arc<SlotMap>,
    uptime: Uptime,
    was_connected: AtomicBool,
}

impl Node {
    pub(super) fn new(server: Server, slot_map: Arc<SlotMap>) -> Self {
        Self {
            server,
            slot_map,
            uptime: Uptime::default(),
            was_connected: AtomicBool::new(false),
        }
    }
}

impl Upstream for Node {
    fn name(&self) -> &Arc<str> {
        &self.server.address
    }

    fn find(&self, _: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        Box::pin(ready(Ok(self.server.clone())))
    }

    fn connected(&self, address: &Arc<str>, info: Option<&str>) {
        let run_before = self.uptime.server_id();
        self.uptime.read(info);
        let is_same_run = run_before.is_some() && run_before == self.uptime.server_id();
        let was_connected = self.was_connected.swap(true, Ordering::AcqRel);
        if was_connected && !is_same_run {
            self.slot_map.restarted(address);
        }
    }

    fn is_current(&self, _: &Arc<str>) -> bool {
        true
    }

    fn can_fail_over(&self) -> bool {
        false
    }

    fn stays_connected(&self) -> bool {
        true
    }

    /// True, because another node can have had the slot while this connection lasted, and only a
    /// connect raises the floor to the clock.
    fn floor_by_clock(&self) -> bool {
        true
    }
}
