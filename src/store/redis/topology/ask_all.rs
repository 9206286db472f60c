//! Asks several servers the same question at once, so that a server that hangs does not delay the
//! others.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{RedisError, RedisResult};
use tokio::time::sleep;

/// The answers of the servers.
pub(super) struct Asked<T> {
    pub(super) answers: Vec<T>,
    /// The error of the last server that did not answer.
    pub(super) last_error: Option<RedisError>,
}

/// Waits until a majority has answered. After a quarter of `limit`, a single answer is enough.
pub(super) async fn ask_all<T>(
    questions: impl IntoIterator<Item = impl Future<Output = RedisResult<T>>>,
    limit: Duration,
) -> Asked<T> {
    let mut asked: FuturesUnordered<_> = questions.into_iter().collect();
    let majority = asked.len() / 2 + 1;
    let mut one_is_enough = pin!(sleep(limit / 4));
    let (mut answers, mut last_error) = (Vec::new(), None);
    while answers.len() < majority && (answers.is_empty() || !one_is_enough.is_elapsed()) {
        tokio::select! {
            answer = asked.next() => match answer {
                Some(Ok(answer)) => answers.push(answer),
                Some(Err(error)) => last_error = Some(error),
                None => break,
            },
            () = &mut one_is_enough, if !one_is_enough.is_elapsed() => {}
        }
    }
    Asked {
        answers,
        last_error,
    }
}
