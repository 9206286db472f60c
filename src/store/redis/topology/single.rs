//! One server, always under the same address.

use std::{
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;

use super::{Primary, Upstream, server::Server, uptime::Uptime};
use crate::Error;

/// The upstream of all lanes of a store on one server.
#[derive(Debug)]
pub(crate) struct Single {
    server: Server,
    uptime: Uptime,
}

impl Single {
    /// Checks the URL.
    pub(super) fn new(server: Server) -> Result<Self, Error> {
        // The client is dropped: this only refuses a URL that the client library cannot use.
        server.client(None)?;
        Ok(Self {
            server,
            uptime: Uptime::default(),
        })
    }
}

impl Upstream for Single {
    fn name(&self) -> &Arc<str> {
        &self.server.address
    }

    fn find(&self, _: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        Box::pin(ready(Ok(self.server.clone())))
    }

    fn connected(&self, _: &Arc<str>, info: Option<&str>) {
        self.uptime.read(info);
    }

    fn is_current(&self, _: &Arc<str>) -> bool {
        true
    }

    fn can_fail_over(&self) -> bool {
        false
    }

    fn stays_connected(&self) -> bool {
        false
    }

    fn floor_by_clock(&self) -> bool {
        false
    }
}

impl Primary for Single {
    fn database(&self) -> i64 {
        self.server.database()
    }

    fn uptime(&self) -> &Uptime {
        &self.uptime
    }

    fn find_for_hints(&self, limit: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        self.find(limit)
    }

    fn subscribed(&self, _: &Arc<str>) {}

    fn left<'a>(&'a self, _: &'a Arc<str>) -> BoxFuture<'a, ()> {
        Box::pin(pending())
    }
}
