//! A round trip on every lane: to connect, and to check that the servers accept writes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::Value;

use super::{
    super::{Shared, explain, script::PING, topology::Probe},
    Operation, Writer,
    reply::read,
};
use crate::{
    Error,
    store::{Outcome, StoreFuture},
};

impl Shared {
    /// Makes a round trip on every lane, the same way as the calls for a key.
    ///
    /// # Cancel safety
    ///
    /// The check has no effect on the servers.
    pub(in super::super) fn ping(self: &Arc<Self>) -> StoreFuture<Result<(), Error>> {
        let shared = self.clone();
        Box::pin(async move {
            let check = |probe: &Probe, outcome| match read(outcome, Ok).into_result() {
                Ok(_) => Ok(()),
                Err(error) => Err(explain::not_ready(&probe.server, error)),
            };
            shared.ask_every_lane(check).await
        })
    }

    /// Connects every lane that has no connection. Whatever its server replies, it was reached.
    pub(in super::super) async fn connect(&self) -> Result<(), Error> {
        self.ask_every_lane(|_, outcome| outcome.into_result().map(drop))
            .await
    }

    async fn ask_every_lane(
        &self,
        check: impl Fn(&Probe, Outcome<Value>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let probes = self.topology.probes(self.deadline()).await?;
        // In a Cluster, the nodes have been asked for the slots by now.
        let deadline = self.deadline();
        let asking = probes.iter().map(async |probe| {
            let Probe { bucket, .. } = *probe;
            let ping = Operation::Ping { bucket }.into();
            check(probe, self.topology.call(ping, deadline).await)
        });
        try_join_all(asking).await.map(drop)
    }
}

impl Writer<'_> {
    pub(super) fn ping(&mut self, bucket: usize) {
        self.start(&PING, 1);
        let names = self.dialect.names;
        self.arg(|to| {
            names.start(bucket, to);
            to.extend_from_slice(b"ping");
        });
    }
}
