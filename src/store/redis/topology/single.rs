//! One server, always under the same address.

use std::{future::ready, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{LaneSettings, Topology, Upstream, server::Server, uptime::Uptime};
use crate::Error;

/// The upstream of all lanes of a store on one server.
#[derive(Debug)]
pub(crate) struct Single {
    server: Server,
    uptime: Uptime,
}

impl Single {
    /// Checks the URL, and makes the lanes.
    pub(super) fn topology(server: Server, lanes: &LaneSettings) -> Result<Topology, Error> {
        // The client is dropped: this only refuses a URL that the client library cannot use.
        server.client(None)?;
        let upstream = Arc::new(Self {
            server,
            uptime: Uptime::default(),
        });
        let lanes = lanes.lanes_to(upstream.clone());
        Ok(Topology::Single { upstream, lanes })
    }

    pub(super) fn database(&self) -> i64 {
        self.server.database()
    }

    pub(super) fn uptime(&self) -> &Uptime {
        &self.uptime
    }

    pub(super) fn server(&self) -> Server {
        self.server.clone()
    }
}

impl Upstream for Single {
    fn name(&self) -> &Arc<str> {
        &self.server.address
    }

    fn find(&self, _: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        Box::pin(ready(Ok(self.server())))
    }

    fn connected(&self, _: &Arc<str>, info: Option<&str>) {
        self.uptime.read(info);
    }
}
