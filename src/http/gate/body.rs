//! The body of a request or a response: what was read of it, and the rest.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project::pin_project;

use super::{BoxError, HeldTurn};
use crate::{Error, ErrorKind};

/// The body of a layer's response: the inner service's, a kept one, or that of a refusal. Also the
/// body of a request that was [read](crate::read_body), where a layer cannot make the original
/// type.
///
/// A body that was read is one frame with a known length, and trailers if there were any.
#[pin_project]
pub struct Body<B> {
    data: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
    #[pin]
    rest: Rest<B>,
    /// The turn of a response whose body holds it. Declared below the rest, which is dropped
    /// first.
    ///
    /// Boxed, because most bodies hold none, and are moved often.
    turn: Option<Box<HeldTurn>>,
}

/// The part of the body after the frames that were read.
#[pin_project(project = RestProj)]
pub(crate) enum Rest<B> {
    Inner(#[pin] B),
    Boxed(Pin<Box<B>>),
    /// Nothing, or an error.
    Ended(Option<BoxError>),
}

impl<B> Body<B> {
    /// A body of these bytes, without trailers.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::read(bytes, None, Rest::Ended(None))
    }

    /// A body of which nothing was read.
    pub(crate) fn inner(body: B) -> Self {
        Self::read(Bytes::new(), None, Rest::Inner(body))
    }

    /// What was read of a body, and the rest.
    pub(crate) fn read(data: Bytes, trailers: Option<HeaderMap>, rest: Rest<B>) -> Self {
        Self {
            data: (!data.is_empty()).then_some(data),
            trailers: trailers.map(Box::new),
            rest,
            turn: None,
        }
    }

    /// Holds a turn until the body has ended.
    pub(crate) fn holding(self, turn: HeldTurn) -> Self {
        let turn = Some(Box::new(turn));
        Self { turn, ..self }
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Some(Poll::Ready(loss)) = this.turn.as_mut().map(|turn| turn.poll_lost(cx)) {
            // The body is dropped: the work behind it must not go on beside the next holder.
            this.rest.set(Rest::Ended(None));
            *this.turn = None;
            let message = format!("the lease was lost while the body was sent: {loss}");
            return Poll::Ready(Some(Err(Error::new(ErrorKind::Lost, message).into())));
        }
        let read = this.data.take().map(Frame::data);
        let read = read.or_else(|| this.trailers.take().map(|it| Frame::trailers(*it)));
        if read.is_some() {
            return Poll::Ready(read.map(Ok));
        }
        let frame = match this.rest.as_mut().project() {
            RestProj::Inner(rest) => ready!(rest.poll_frame(cx)).map(|it| it.map_err(Into::into)),
            RestProj::Boxed(rest) => {
                ready!(rest.as_mut().poll_frame(cx)).map(|it| it.map_err(Into::into))
            }
            RestProj::Ended(error) => error.take().map(Err),
        };
        // A server that knows the length need not ask for the frame after the last.
        if !matches!(frame, Some(Ok(_))) || this.rest.is_end_stream() {
            *this.turn = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    /// Not exact while an error or trailers are to come: a server would send `Content-Length`, and
    /// neither of them.
    fn size_hint(&self) -> SizeHint {
        let read = self.data.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        if let (Some(upper), None) = (rest.upper(), &self.trailers) {
            hint.set_upper(read + upper);
        }
        hint
    }
}

impl<B: http_body::Body> Rest<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner(rest) => rest.is_end_stream(),
            Self::Boxed(rest) => rest.is_end_stream(),
            Self::Ended(error) => error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Inner(rest) => rest.size_hint(),
            Self::Boxed(rest) => rest.size_hint(),
            Self::Ended(None) => SizeHint::with_exact(0),
            Self::Ended(Some(_)) => SizeHint::default(),
        }
    }
}

impl<B> Default for Body<B> {
    fn default() -> Self {
        Self::whole(Bytes::new())
    }
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("holds_turn", &self.turn.is_some())
            .finish_non_exhaustive()
    }
}
