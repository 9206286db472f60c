//! The response that goes out after a turn: whether, when, and with which body.
//!
//! | the response | goes out | if the lease |
//! |---|---|---|
//! | an error of the inner service, or [`Fenced`] | now; after the release with `reject_if_held` | may be lost |
//! | any other | now | is not known to be lost |
//! | with `confirm_before_response` | after the store has answered | is confirmed |
//! | with `reject_if_held`, and the turn ends | after the release was answered, or after 2 s | is not known to be lost |
//!
//! A response that must not go out is replaced by 409. With `hold_until_body_ends`, the body holds the turn, and ends with an error on a
//! loss.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tokio::time::timeout;

use super::{
    Fenced,
    held::{Guards, HeldTurn},
    settings::Settings,
};
use crate::{Error, ErrorKind, LockGuard};

/// The longest time for which a response waits for the release of its key.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// A question to the store: for a turn, or whether the turn is still held. The output is the turn, if the request goes on with one.
pub(super) type Asking = Pin<Box<dyn Future<Output = Result<Option<Guards>, Error>> + Send>>;

/// The end of a turn after its handler, whose output is a `T`.
pub(super) enum End<T> {
    /// The output goes out now. The guards let the turn go on with the body.
    Respond(T, Guards),
    /// The turn was lost: the output is not to be trusted.
    Lost,
    /// The output goes out once the store has answered.
    Ask(Asking, T),
}

/// Decides how the turn ends after its handler has returned `outcome`.
pub(super) fn end<B, E>(
    turn: HeldTurn,
    outcome: Result<Response<B>, E>,
    settings: &Settings,
) -> End<Result<Response<B>, E>>
where
    B: Body<Data = Bytes>,
{
    let trust = match &outcome {
        // The inner service's error passes through unchanged.
        Err(_) => Trust::Always,
        Ok(response) if is_fenced(response) => Trust::Always,
        Ok(_) if settings.confirm => Trust::IfConfirmed,
        Ok(_) => Trust::UnlessLost,
    };
    if trust != Trust::Always && turn.is_lost() {
        return End::Lost;
    }
    let guards = turn.into_guards();
    let goes_on = matches!(&outcome, Ok(response) if holds_on(response, settings));
    let frees = guards.are_only_ones() && !goes_on;
    if trust == Trust::IfConfirmed || (settings.wait.is_none() && frees) {
        return End::Ask(Box::pin(ask(guards, trust, frees)), outcome);
    }
    End::Respond(outcome, guards)
}

/// The response as it goes out. The body holds the turn if the turn goes on.
pub(super) fn respond<B, E>(
    outcome: Result<Response<B>, E>,
    guards: Option<Guards>,
    settings: &Settings,
) -> Result<Response<LockBody<B>>, E>
where
    B: Body<Data = Bytes>,
{
    let response = outcome?;
    let guards = guards.filter(|_| holds_on(&response, settings));
    let watched = !is_fenced(&response);
    Ok(response.map(|body| match guards {
        Some(guards) => LockBody::held(body, HeldTurn::new(guards, watched)),
        None => LockBody::free(body),
    }))
}

fn holds_on(response: &Response<impl Body>, settings: &Settings) -> bool {
    settings.hold_body && !response.body().is_end_stream()
}

fn is_fenced<B>(response: &Response<B>) -> bool {
    response.extensions().get::<Fenced>().is_some()
}

/// Under which answer of the store a response may go out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Always,
    UnlessLost,
    IfConfirmed,
}

/// Releases the turn, or confirms a turn that goes on, and returns the latter.
async fn ask(guards: Guards, trust: Trust, frees: bool) -> Result<Option<Guards>, Error> {
    let (answer, guards) = match frees {
        true => (timeout(RELEASE_LIMIT, release(guards)).await, None),
        false => {
            let confirming = try_join_all(guards.as_slice().iter().map(LockGuard::confirm));
            let answer = timeout(RELEASE_LIMIT, confirming).await;
            (answer.map(|answer| answer.map(drop)), Some(guards))
        }
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
async fn release(guards: Guards) -> Result<(), Error> {
    match guards {
        Guards::One(guard) => guard.release().await,
        Guards::Several(guards) => {
            let answers = join_all(guards.into_iter().map(LockGuard::release)).await;
            answers.into_iter().collect()
        }
    }
}

/// The body of the response of a [`DistributedLock`](super::DistributedLock) or a [`ReadBody`](crate::read_body::ReadBody): the inner
/// service's, or a refusal.
#[pin_project]
pub struct LockBody<B>(#[pin] Kind<B>);

#[pin_project(project = KindProj)]
enum Kind<B> {
    Inner {
        #[pin]
        body: B,
        /// Declared below the body: the body is dropped first.
        turn: Option<HeldTurn>,
    },
    Whole(Option<Bytes>),
}

impl<B> LockBody<B> {
    /// The inner service's body, which holds nothing.
    pub(crate) fn free(body: B) -> Self {
        Self(Kind::Inner { body, turn: None })
    }

    /// The inner service's body, which holds a turn.
    pub(super) fn held(body: B, turn: HeldTurn) -> Self {
        let turn = Some(turn);
        Self(Kind::Inner { body, turn })
    }

    /// The layer's own body, of a refusal.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }
}

impl<B> Body for LockBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut this = self.project().0;
        let (mut body, turn) = match this.as_mut().project() {
            KindProj::Inner { body, turn } => (body, turn),
            KindProj::Whole(bytes) => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
        };
        if let Some(Poll::Ready(loss)) = turn.as_mut().map(|turn| turn.poll_lost(cx)) {
            // The body is dropped: the work behind it must not go on beside the next holder.
            this.set(Kind::Whole(None));
            let message = format!("the lease was lost while the body was sent: {loss}");
            return Poll::Ready(Some(Err(Error::new(ErrorKind::Lost, message).into())));
        }
        let frame = ready!(body.as_mut().poll_frame(cx));
        // A server that knows the length need not ask for the frame after the last.
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *turn = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Whole(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl<B> Default for LockBody<B> {
    fn default() -> Self {
        Self(Kind::Whole(None))
    }
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = matches!(&self.0, Kind::Inner { turn: Some(_), .. });
        f.debug_struct("LockBody")
            .field("holds_turn", &holds)
            .finish_non_exhaustive()
    }
}
