//! One server, always under the same address.

use std::{future::ready, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redis::ConnectionInfo;

use super::{
    LaneSettings, Topology, Upstream,
    server::{Server, open},
    uptime::Uptime,
};
use crate::Error;

/// The upstream of all lanes of a store on one server.
#[derive(Debug)]
pub(crate) struct Single {
    info: ConnectionInfo,
    name: Arc<str>,
    uptime: Uptime,
}

impl Single {
    /// Checks the URL, and makes the lanes.
    pub(super) fn topology(info: ConnectionInfo, lanes: &LaneSettings) -> Result<Topology, Error> {
        // The client is dropped: this only refuses a URL that the client library cannot use.
        open(info.clone())?;
        let upstream = Arc::new(Self {
            name: info.addr().to_string().into(),
            info,
            uptime: Uptime::default(),
        });
        let lanes = lanes.lanes_to(upstream.clone());
        Ok(Topology::Single { upstream, lanes })
    }

    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    pub(super) fn uptime(&self) -> &Uptime {
        &self.uptime
    }

    pub(super) fn server(&self) -> Server {
        Server::at(self.info.clone())
    }
}

impl Upstream for Single {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn find(&self, _: Duration) -> BoxFuture<'_, Result<Server, Error>> {
        Box::pin(ready(Ok(self.server())))
    }

    fn connected(&self, _: &Arc<str>, info: Option<&str>) {
        self.uptime.read(info);
    }
}
