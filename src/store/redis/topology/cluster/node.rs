//! One node of a Cluster, as the upstream of its lanes.
//!
//! A node that restarts without its data and keeps its slots has forgotten all leases. Every new connection reads the node's `run_id`. If it is
//! not that of the connection before, or not known, the leases in the node's slots are confirmed, as if the slots had moved.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use redis::ServerError;

use super::{
    super::{Upstream, server::Server, uptime::Uptime},
    slot_map::SlotMap,
    slots::address,
};
use crate::{Error, store::redis::outcome::Redirect};

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

    fn stays_connected(&self) -> bool {
        true
    }

    /// True, because another node can have had the slot while this connection lasted, and only a connect raises the floor to the clock.
    fn floor_by_clock(&self) -> bool {
        true
    }

    fn redirect(&self, error: &ServerError) -> Option<Redirect> {
        let to = || {
            let to = error.details()?.split_whitespace().nth(1)?;
            let (name, port) = to.rsplit_once(':')?;
            Some(address(name, port, self.server.host()))
        };
        match error.code() {
            "MOVED" => to().map(Redirect::Moved),
            "ASK" => to().map(Redirect::Ask),
            "TRYAGAIN" => Some(Redirect::TryAgain),
            "CLUSTERDOWN" => Some(Redirect::Down),
            _ => None,
        }
    }
}
