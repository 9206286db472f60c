//! Asking several servers the same, all at once: one that hangs must not delay the others.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{RedisError, RedisResult};
use tokio::time::sleep;

/// What the majority says; or fewer of them, if that is all that answer in a part of the time. And if nobody does, why.
pub(super) async fn survey<T>(
    questions: impl IntoIterator<Item = impl Future<Output = RedisResult<T>>>,
    limit: Duration,
) -> (Vec<T>, Option<RedisError>) {
    let mut asked: FuturesUnordered<_> = questions.into_iter().collect();
    let majority = asked.len() / 2 + 1;
    let mut enough = pin!(sleep(limit / 4));
    let (mut answers, mut failure) = (Vec::new(), None);
    while answers.len() < majority && (answers.is_empty() || !enough.is_elapsed()) {
        tokio::select! {
            said = asked.next() => match said {
                Some(Ok(answer)) => answers.push(answer),
                Some(Err(error)) => failure = Some(error),
                None => break,
            },
            () = &mut enough, if !enough.is_elapsed() => {}
        }
    }
    (answers, failure)
}
