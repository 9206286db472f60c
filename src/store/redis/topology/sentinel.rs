//! The primary of a service that Redis Sentinel watches over.
//!
//! 1. Every new connection asks the sentinels for the primary, all of them at once. Sentinels can
//!    disagree, because one of them decides on a fail-over and tells the rest: the answer with the
//!    latest configuration counts.
//! 2. A server is used only if the server itself confirms the role of a primary (ROLE).
//! 3. The server of the latest connection that worked is the *current* server. A connection to any
//!    other server counts as broken from then on, even while that server still answers: a primary
//!    that was frozen past its fail-over goes on for seconds as if nothing had happened. The first
//!    lane, or subscription, that finds the new primary therefore moves all the others.
//!
//! The client library's own `Sentinel` is not used here, because it asks one sentinel after another
//! and takes the first answer.
//!
//! ```text
//! lane 1: the connection breaks ──▶ SENTINEL MASTER to all sentinels ──▶ 10.0.0.2, epoch 7 (one says 10.0.0.1, epoch 6)
//!         ──▶ connect to 10.0.0.2, ROLE: master ──▶ `current` is 10.0.0.2
//! lane 2: still connected to 10.0.0.1 ──▶ not current: given up ──▶ connects to 10.0.0.2
//! subscription: `left` resolves ──▶ subscribes at 10.0.0.2 ──▶ Hint::Reconnected ──▶ all leases are confirmed
//! ```

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use redis::{Client, RedisResult, cmd};
use tokio::sync::watch;

use super::{
    ask_all::ask_all,
    server::{Server, without_timeouts},
};
use crate::{Error, store::redis::explain};

/// The sentinels of a service.
#[derive(Debug)]
pub(super) struct Sentinel {
    sentinels: Vec<Client>,
    service: String,
    /// The address of the current server (invariant 3).
    current: watch::Sender<Option<Arc<str>>>,
}

/// The primary, according to one sentinel. Ordered by the age of the configuration.
///
/// The order of the fields is the order of the comparison: the epoch counts first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    /// Rises with every fail-over.
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinel {
    /// Checks the URLs. The host of the login is the name of the service.
    pub(super) fn new(login: &Server, sentinels: &[Server]) -> Result<Self, Error> {
        // The client is dropped: this only refuses a URL that the client library cannot use.
        login.client(None)?;
        let Some(service) = login.host_name().map(str::to_owned) else {
            let message = "a service behind Sentinel has a name, not the path of a socket: use `mymaster` or `redis://mymaster`";
            return Err(explain::invalid(message));
        };
        if sentinels.is_empty() {
            return Err(explain::invalid(
                "a store behind Sentinel needs the URL of at least one sentinel",
            ));
        }
        let clients = sentinels.iter().map(|sentinel| sentinel.client(None));
        Ok(Self {
            sentinels: clients.collect::<Result<_, _>>()?,
            service,
            current: watch::Sender::new(None),
        })
    }

    /// The name of the service. Services of the same name differ in their sentinels.
    pub(super) fn name(&self, sentinels: &[Server]) -> Arc<str> {
        let mut addresses: Vec<_> = sentinels.iter().map(|at| &*at.address).collect();
        addresses.sort();
        format!("{} behind {}", self.service, addresses.join(", ")).into()
    }

    /// Asks the sentinels for the primary.
    pub(super) async fn find_primary(
        &self,
        login: &Server,
        limit: Duration,
    ) -> Result<Server, Error> {
        let questions = self.sentinels.iter().map(|sentinel| self.ask(sentinel));
        let asked = ask_all(questions, limit).await;
        let none_answers = asked.answers.is_empty();
        match asked.answers.into_iter().flatten().max() {
            Some(primary) => Ok(login.moved_to(primary.host, primary.port)),
            None if none_answers => Err(explain::no_sentinel(&self.service, asked.last_error)),
            None => Err(explain::unknown_service(&self.service)),
        }
    }

    /// Asks one sentinel. `None` if the sentinel knows no service of this name.
    async fn ask(&self, sentinel: &Client) -> RedisResult<Option<Named>> {
        let mut connection = sentinel
            .get_multiplexed_async_connection_with_config(&without_timeouts())
            .await?;
        let mut ask = cmd("SENTINEL");
        ask.arg("MASTER").arg(&self.service);
        let fields: RedisResult<HashMap<String, String>> = ask.query_async(&mut connection).await;
        match fields {
            Ok(fields) => Ok(Named::read(&fields)),
            Err(error) if explain::mentions(&error, "No such master") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a server the current one (invariant 3).
    pub(super) fn set_current(&self, address: &Arc<str>) {
        self.current.send_if_modified(|current| {
            let is_another = current.as_ref() != Some(address);
            *current = Some(address.clone());
            is_another
        });
    }

    pub(super) fn is_current(&self, address: &Arc<str>) -> bool {
        self.current.borrow().as_ref() == Some(address)
    }

    /// Resolves when another server is the current one.
    pub(super) async fn left(&self, address: &Arc<str>) {
        let mut current = self.current.subscribe();
        let is_another =
            |current: &Option<Arc<str>>| current.as_ref().is_some_and(|at| at != address);
        if current.wait_for(is_another).await.is_err() {
            pending().await
        }
    }
}

impl Named {
    /// Reads the reply to SENTINEL MASTER.
    fn read(fields: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            epoch: fields.get("config-epoch")?.parse().ok()?,
            host: fields.get("ip")?.clone(),
            port: fields.get("port")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_configuration_wins() {
        let primary = |epoch, port| Named {
            epoch,
            host: "h".to_owned(),
            port,
        };
        let answers = [primary(9, 3), primary(10, 1), primary(9, 2)];
        assert_eq!(answers.into_iter().max(), Some(primary(10, 1)));
    }
}
