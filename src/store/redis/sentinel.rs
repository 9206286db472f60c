//! Asking the sentinels where the primary is.
//!
//! All of them are asked at once. They can disagree, because a fail-over is decided by one of them and told to the rest:
//! the answer of the latest configuration is taken.
//!
//! Not by the client library's own `Sentinel`: it asks one after another, and takes the first answer.

use std::{collections::HashMap, fmt, time::Duration};

use redis::{AsyncConnectionConfig, Client, RedisResult, cmd};

use super::{explain, survey::survey};
use crate::Error;

#[derive(Debug)]
pub(super) struct Sentinels {
    clients: Vec<Client>,
    service: String,
}

/// What a sentinel says.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    /// Rises with every fail-over.
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    pub(super) fn new(clients: Vec<Client>, service: String) -> Self {
        Self { clients, service }
    }

    /// Where the primary is.
    pub(super) async fn ask(&self, limit: Duration) -> Result<(String, u16), Error> {
        let asked = self.clients.iter().map(|sentinel| self.ask_one(sentinel));
        let (answers, failure) = survey(asked, limit).await;
        let nobody_answers = answers.is_empty();
        match answers.into_iter().flatten().max() {
            Some(latest) => Ok((latest.host, latest.port)),
            None if nobody_answers => Err(explain::no_sentinel(&self.service, failure)),
            None => Err(explain::unknown_service(&self.service)),
        }
    }

    /// `None` if it knows no service of this name.
    async fn ask_one(&self, sentinel: &Client) -> RedisResult<Option<Answer>> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = sentinel
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut ask = cmd("SENTINEL");
        ask.arg("MASTER").arg(&self.service);
        let fields: RedisResult<HashMap<String, String>> = ask.query_async(&mut connection).await;
        match fields {
            Ok(fields) => Ok(Answer::read(&fields)),
            Err(error) if explain::says(&error, "No such master") => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Answer {
    fn read(fields: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            epoch: fields.get("config-epoch")?.parse().ok()?,
            host: fields.get("ip")?.clone(),
            port: fields.get("port")?.parse().ok()?,
        })
    }
}

/// All there is to tell two of them apart: the name, and who says where it is.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self
            .clients
            .iter()
            .map(|client| client.get_connection_info().addr());
        let mut addresses: Vec<_> = addresses.map(ToString::to_string).collect();
        addresses.sort();
        write!(f, "{} behind {}", self.service, addresses.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_configuration_wins() {
        let answer = |epoch, port| Answer {
            epoch,
            host: "h".to_owned(),
            port,
        };
        let answers = [answer(9, 3), answer(10, 1), answer(9, 2)];
        assert_eq!(answers.into_iter().max(), Some(answer(10, 1)));
    }
}
