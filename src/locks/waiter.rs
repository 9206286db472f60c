//! A request's place in line.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Instant;

use super::{
    LockGuard,
    contention::{Contender, FirstQuestion},
    inner::Inner,
    line::{Answer, Granted, Miss, Wish},
};
use crate::{Error, ErrorKind, LockKey};

/// Resolves when it is this request's turn, or when there is no point in waiting any longer.
///
/// Dropping it gives the place up, and the turn too if that has come in the meantime.
pub(crate) struct Waiter {
    inner: Arc<Inner>,
    key: LockKey,
    id: u64,
    answer: Answer,
    /// If this request was the first, it puts the first question to the store.
    question: Option<FirstQuestion>,
    told: bool,
}

impl Waiter {
    pub(crate) fn join(inner: &Arc<Inner>, key: &LockKey, wish: Wish) -> Result<Self, Error> {
        let joined = inner.lines.join(key, wish, Instant::now())?;
        let question = joined.contention.map(|contention| {
            FirstQuestion::new(Contender::new(inner.clone(), key.clone(), contention))
        });
        inner.carry_out(joined.effects);
        Ok(Self {
            inner: inner.clone(),
            key: key.clone(),
            id: joined.waiter,
            answer: joined.answer,
            question,
            told: false,
        })
    }
}

impl Future for Waiter {
    type Output = Result<LockGuard, Miss>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(question) = &mut self.question {
            question.poll(cx);
        }
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.told = true;
        Poll::Ready(match answer {
            Ok(Ok(granted)) => Ok(LockGuard::new(self.inner.clone(), granted)),
            Ok(Err(miss)) => Err(miss),
            Err(_) => Err(Miss::Failed(Error::new(
                ErrorKind::Unreachable,
                "the line was abandoned: the runtime that served it has shut down",
            ))),
        })
    }
}

/// What a waiter that goes away was told, if anything.
pub(crate) fn last_word(answer: &mut Answer) -> Option<Result<Granted, Miss>> {
    // Closed first: from here on a turn that is being handed over goes back to the one who hands it.
    answer.close();
    answer.try_recv().ok()
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        match last_word(&mut self.answer) {
            Some(Ok(granted)) => self.inner.end_turn(&granted, None),
            Some(Err(_)) => {}
            None => {
                let effects = self.inner.lines.leave(&self.key, self.id);
                self.inner.carry_out(effects);
            }
        }
    }
}
