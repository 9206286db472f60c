//! A request's place in line.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    LockGuard,
    contender::{Contender, FirstQuestion},
    inner::Inner,
    line::{NoTurn, Place, WaitRequest},
};
use crate::{Error, ErrorKind, LockKey};

/// Resolves when it is this request's turn, or when there is no point in waiting any longer.
///
/// Dropping it gives the place up, and the turn too if that has come in the meantime.
pub(crate) struct Waiter {
    inner: Arc<Inner>,
    key: LockKey,
    place: Place,
    /// If this request was the first, it puts the first question to the store.
    question: Option<FirstQuestion>,
    told: bool,
}

impl Waiter {
    pub(crate) fn join(
        inner: &Arc<Inner>,
        key: &LockKey,
        request: WaitRequest,
    ) -> Result<Self, NoTurn> {
        let joined = inner.lines.join(key, request)?;
        let question = joined
            .contention
            .map(|contention| FirstQuestion::new(Contender::new(inner.clone(), contention)));
        Ok(Self {
            inner: inner.clone(),
            key: key.clone(),
            place: joined.place,
            question,
            told: false,
        })
    }
}

impl Future for Waiter {
    type Output = Result<LockGuard, NoTurn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(question) = &mut self.question {
            question.poll(cx);
        }
        let answer = ready!(Pin::new(&mut self.place.answer).poll(cx));
        self.told = true;
        Poll::Ready(match answer {
            Ok(Ok(granted)) => Ok(LockGuard::new(self.inner.clone(), granted)),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(NoTurn::Failed(Error::new(
                ErrorKind::Unreachable,
                "the line was abandoned: the runtime that served it has shut down",
            ))),
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        // Closed first: from here on a turn that is being handed over goes back to the line.
        self.place.answer.close();
        match self.place.answer.try_recv() {
            Ok(Ok(granted)) => drop(self.inner.end_turn(&granted, false)),
            Ok(Err(_)) => {}
            Err(_) => {
                let id = self.place.id;
                self.inner.with_line(&self.key, |line, _| line.leave(id));
            }
        }
    }
}
