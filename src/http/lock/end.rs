//! The end of a turn: whether the response goes out, and when.
//!
//! | the response | goes out | if the lease |
//! |---|---|---|
//! | an error of the inner service, or [`Fenced`] | now; after the release with `reject_if_held` | may be lost |
//! | any other | now | is not known to be lost |
//! | with `confirm_before_response` | after the store has answered | is confirmed |
//! | with `reject_if_held`, and the turn ends | after the release was answered, or after 2 s | is not known to be lost |
//!
//! A response that must not go out is replaced by 409. With `hold_until_body_ends`, the body holds
//! the turn, and ends with an error on a loss.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use http::Response;
use http_body::Body;
use tokio::time::timeout;

use super::{Fenced, settings::Settings};
use crate::{
    Error, ErrorKind, LockGuard,
    http::gate::{Guards, HeldTurn},
    locks::Wait,
};

/// The longest time for which a response waits for the release of its key.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// How a turn ends after its handler.
#[derive(Clone, Copy)]
pub(super) struct End {
    trust: Trust,
    /// Whether the body holds the turn.
    goes_on: bool,
    /// Whether the response waits for the release of the key.
    awaits_release: bool,
}

/// Under which answer of the store a response may go out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Always,
    UnlessLost,
    IfConfirmed,
}

impl End {
    /// Decides how the turn ends after its handler has returned `outcome`.
    pub(super) fn after<B: Body, E>(outcome: &Result<Response<B>, E>, settings: &Settings) -> Self {
        let trust = match outcome {
            // The inner service's error passes through unchanged.
            Err(_) => Trust::Always,
            Ok(response) if response.extensions().get::<Fenced>().is_some() => Trust::Always,
            Ok(_) if settings.confirm => Trust::IfConfirmed,
            Ok(_) => Trust::UnlessLost,
        };
        let ends = |response: &Response<B>| response.body().is_end_stream();
        Self {
            trust,
            goes_on: settings.hold_body && !outcome.as_ref().map_or(true, ends),
            awaits_release: settings.wait == Wait::NotAtAll,
        }
    }

    /// Ends the turn, and returns it if the body holds it on. Fails if the response must not go
    /// out.
    pub(super) async fn end(self, turn: HeldTurn) -> Result<Option<HeldTurn>, Error> {
        if self.trust != Trust::Always && turn.is_lost() {
            return Err(lost_in_handler());
        }
        let guards = turn.into_guards();
        let frees = !self.goes_on && guards.iter().all(LockGuard::is_only_one);
        let guards = if self.trust == Trust::IfConfirmed || (self.awaits_release && frees) {
            ask(guards, self.trust, frees).await?
        } else {
            guards
        };
        // The body of a response that may go out after a loss is not cut off either.
        let watched = self.trust != Trust::Always;
        Ok(self.goes_on.then(|| HeldTurn::new(guards, watched)))
    }
}

/// The error of a request whose lease was lost after its handler had begun.
pub(super) fn lost_in_handler() -> Error {
    Error::new(ErrorKind::Lost, "the lease was lost while the handler ran")
}

/// Releases the turn, or confirms a turn that goes on, and returns the latter.
async fn ask(guards: Guards, trust: Trust, frees: bool) -> Result<Guards, Error> {
    let (answer, guards) = if frees {
        let released = timeout(RELEASE_LIMIT, release(guards)).await;
        (released, Guards::new())
    } else {
        let confirming = try_join_all(guards.iter().map(LockGuard::confirm));
        let answer = timeout(RELEASE_LIMIT, confirming).await;
        (answer.map(|answer| answer.map(drop)), guards)
    };
    let is_lost = |error: &Error| error.kind() == ErrorKind::Lost;
    match (trust, answer) {
        (_, Ok(Ok(()))) | (Trust::Always, _) => Ok(guards),
        (Trust::UnlessLost, Ok(Err(error))) if is_lost(&error) => Err(error),
        (Trust::UnlessLost, _) => Ok(guards),
        (Trust::IfConfirmed, Ok(Err(error))) => Err(Error::caused_by(
            ErrorKind::Lost,
            "the lease could not be confirmed before the response",
            error,
        )),
        (Trust::IfConfirmed, Err(_)) => Err(Error::new(
            ErrorKind::Lost,
            format!("the store did not confirm the lease within {RELEASE_LIMIT:?}"),
        )),
    }
}

/// Releases all turns together, and returns the error of the first that failed.
async fn release(mut guards: Guards) -> Result<(), Error> {
    match guards.pop() {
        Some(only) if guards.is_empty() => only.release().await,
        last => {
            let releases = guards.into_iter().chain(last).map(LockGuard::release);
            join_all(releases).await.into_iter().collect()
        }
    }
}
