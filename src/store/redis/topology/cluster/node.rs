//! One node of a Cluster, as the upstream of its lanes.

use std::{future::ready, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redis::ServerError;

use super::{
    super::{Upstream, server::Server},
    slots::address,
};
use crate::{Error, store::redis::outcome::Redirect};

/// The upstream of the lanes to one node.
#[derive(Debug)]
pub(super) struct Node(Server);

impl Node {
    pub(super) fn new(server: Server) -> Self {
        Self(server)
    }
}

impl Upstream for Node {
    fn name(&self) -> &Arc<str> {
        &self.0.address
    }

    fn find(&self, _: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        Box::pin(ready(Ok(self.0.clone())))
    }

    fn connected(&self, _: &Arc<str>, _: Option<&str>) {}

    /// True, because another node can have had the slot while this connection lasted, and only a connect raises the floor to the clock.
    fn floor_by_clock(&self) -> bool {
        true
    }

    fn redirect(&self, error: &ServerError) -> Option<Redirect> {
        let to = || {
            let to = error.details()?.split_whitespace().nth(1)?;
            let (name, port) = to.rsplit_once(':')?;
            Some(address(name, port, self.0.host()))
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
