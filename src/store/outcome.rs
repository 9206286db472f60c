//! How a call to a store can end, and where the answer to a release goes.

use std::{fmt, sync::Arc};

use super::{Owner, Released};
use crate::{Error, ErrorKind, LockKey, sync::oneshot};

/// How a call ended, as far as the caller can know.
///
/// | outcome | the call has taken effect | an owner that it named |
/// |---|---|---|
/// | [`Answered`](Self::Answered) | once, before the answer | is known by the answer |
/// | [`Refused`](Self::Refused) | never | is as before the call |
/// | [`Unknown`](Self::Unknown) | before, later, or never | has to be ended |
#[derive(Debug, Clone)]
pub enum Outcome<T> {
    /// The call took effect, once, before this answer.
    Answered(T),
    /// The call has no effect, and never will: it was not sent, or was refused.
    Refused(Error),
    /// The call may have taken effect, or may still do so.
    Unknown(Error),
}

impl<T> Outcome<T> {
    /// The answer, or the reason why there is none.
    pub fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Answered(answer) => Ok(answer),
            Self::Refused(error) | Self::Unknown(error) => Err(error),
        }
    }
}

/// Where the outcome of a release goes. Dropping it without an outcome tells
/// [`Outcome::Unknown`].
///
/// A promise instead of a future: whoever hears the reply tells the outcome, and a release costs
/// neither a channel nor a task.
pub struct Answer(Option<To>);

enum To {
    Caller(oneshot::Sender<Outcome<Released>>),
    Endings {
        endings: Arc<dyn Endings>,
        key: LockKey,
        owner: Owner,
    },
}

/// Keeps the owners whose releases are under way.
pub(crate) trait Endings: Send + Sync {
    /// Takes the outcome of a release.
    fn released(self: Arc<Self>, key: &LockKey, owner: Owner, outcome: Outcome<Released>);
}

impl Answer {
    /// An answer for a caller that waits.
    pub fn channel() -> (
        Self,
        impl Future<Output = Outcome<Released>> + Send + 'static,
    ) {
        let (sender, outcome) = oneshot::channel();
        let outcome = async move { outcome.await.unwrap_or_else(|_| no_answer()) };
        (Self(Some(To::Caller(sender))), outcome)
    }

    /// An answer that settles the ending of an owner.
    pub(crate) fn to(endings: Arc<dyn Endings>, key: LockKey, owner: Owner) -> Self {
        Self(Some(To::Endings {
            endings,
            key,
            owner,
        }))
    }

    /// Tells the outcome. The store holds none of its locks.
    pub fn give(mut self, outcome: Outcome<Released>) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome<Released>) {
        match self.0.take() {
            Some(To::Caller(sender)) => drop(sender.send(outcome)),
            Some(To::Endings {
                endings,
                key,
                owner,
            }) => endings.released(&key, owner, outcome),
            None => {}
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.tell(no_answer());
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

fn no_answer() -> Outcome<Released> {
    Outcome::Unknown(Error::new(
        ErrorKind::Unreachable,
        "the release was given up before the store had answered",
    ))
}
