//! The check that the servers answer and accept writes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::{
    Shared,
    calls::Operation,
    explain,
    lane::{Failure, Lane, Start},
    topology::{CallForm, Probe},
};
use crate::{Error, store::StoreFuture};

impl Shared {
    /// Makes a round trip on every lane, the same way as the calls for a key.
    ///
    /// # Cancel safety
    ///
    /// The check has no effect on the servers.
    pub(super) fn ping(self: &Arc<Self>) -> StoreFuture<Result<(), Error>> {
        let shared = self.clone();
        Box::pin(async move {
            let deadline = shared.deadline();
            let probes = shared.topology.probes(deadline).await?;
            let pings = probes.iter().map(|probe| shared.ping_at(probe, deadline));
            try_join_all(pings).await.map(drop)
        })
    }

    async fn ping_at(&self, probe: &Probe, deadline: Instant) -> Result<(), Error> {
        let bucket = probe.bucket;
        let start = |lane: &Arc<Lane>, form: CallForm| {
            lane.call(Start {
                call: form.of(Operation::Ping { bucket }.into()),
                before: form.before(),
                failure: Failure::Forget,
                deadline,
            })
        };
        let outcome = self.topology.call_at(bucket, deadline, start).await;
        match outcome.value() {
            Ok(_) => Ok(()),
            Err(error) => Err(explain::not_ready(&probe.server, error)),
        }
    }
}
