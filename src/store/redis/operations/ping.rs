//! The check that the servers answer and accept writes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::RedisWrite;
use tokio::time::Instant;

use super::{
    super::{Shared, explain, script::PING, topology::Probe},
    Operation, Writer,
    reply::read,
};
use crate::{Error, store::StoreFuture};

impl Shared {
    /// Makes a round trip on every lane, the same way as the calls for a key.
    ///
    /// # Cancel safety
    ///
    /// The check has no effect on the servers.
    pub(in super::super) fn ping(self: &Arc<Self>) -> StoreFuture<Result<(), Error>> {
        let shared = self.clone();
        Box::pin(async move {
            let deadline = shared.deadline();
            let probes = shared.topology.probes(deadline).await?;
            let pings = probes.iter().map(|probe| shared.ping_at(probe, deadline));
            try_join_all(pings).await.map(drop)
        })
    }

    async fn ping_at(&self, probe: &Probe, deadline: Instant) -> Result<(), Error> {
        let call = Operation::Ping {
            bucket: probe.bucket,
        };
        let outcome = self.topology.call(call.into(), deadline).await;
        match read(outcome, Ok).into_result() {
            Ok(_) => Ok(()),
            Err(error) => Err(explain::not_ready(&probe.server, error)),
        }
    }
}

impl Writer<'_> {
    pub(super) fn ping(&mut self, bucket: usize) {
        self.start(&PING, 1);
        let mut name = self.command.bufmut_for_next_arg(0);
        self.dialect.names.ping(bucket, &mut name);
    }
}
