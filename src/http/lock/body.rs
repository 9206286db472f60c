//! The body of a response, which may hold a turn until the body has ended.
//!
//! | the body | holds the turn | on a loss |
//! |---|---|---|
//! | of the inner service | only with `hold_until_body_ends` | ends with an error |
//! | of a refusal | no | – |

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::held::HeldTurn;
use crate::{Error, ErrorKind};

/// The body of a [`DistributedLock`](super::DistributedLock)'s response: the inner service's, or a refusal.
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
