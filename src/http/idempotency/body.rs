//! The body of a response: frames that were read before the response went out, and the rest.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

/// The body of the response of an [`Idempotency`](super::Idempotency) or a [`SingleFlight`](crate::single_flight::SingleFlight): a kept one,
/// or the inner service's.
#[pin_project]
pub struct IdempotentBody<B> {
    /// The frames that were read already, in order.
    read: VecDeque<Frame<Bytes>>,
    #[pin]
    rest: Rest<B>,
}

/// The part of the body after the frames that were read.
#[pin_project(project = RestProj)]
pub(super) enum Rest<B> {
    Nothing,
    Inner(#[pin] B),
    Boxed(Pin<Box<B>>),
    Error(Option<Box<dyn StdError + Send + Sync>>),
}

impl<B> IdempotentBody<B> {
    /// A body of these bytes, without trailers.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::with_trailers(bytes, None)
    }

    pub(crate) fn with_trailers(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        let data = (!bytes.is_empty()).then(|| Frame::data(bytes));
        let frames = data.into_iter().chain(trailers.map(Frame::trailers));
        Self::read(frames, Rest::Nothing)
    }

    /// The inner service's body, of which nothing was read.
    pub(crate) fn inner(body: B) -> Self {
        Self::read(None, Rest::Inner(body))
    }

    /// Some frames that were read, and the rest.
    pub(super) fn read(read: impl IntoIterator<Item = Frame<Bytes>>, rest: Rest<B>) -> Self {
        Self {
            read: read.into_iter().collect(),
            rest,
        }
    }
}

impl<B> Body for IdempotentBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        if let Some(frame) = this.read.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match this.rest.project() {
            RestProj::Nothing => Poll::Ready(None),
            RestProj::Inner(rest) => rest.poll_frame(cx).map_err(Into::into),
            RestProj::Boxed(rest) => rest.as_mut().poll_frame(cx).map_err(Into::into),
            RestProj::Error(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        let rest_is_empty = match &self.rest {
            Rest::Nothing | Rest::Error(None) => true,
            Rest::Inner(rest) => rest.is_end_stream(),
            Rest::Boxed(rest) => rest.is_end_stream(),
            Rest::Error(Some(_)) => false,
        };
        self.read.is_empty() && rest_is_empty
    }

    /// Not exact while an error or trailers are to come: a server would send `Content-Length`, and neither of them.
    fn size_hint(&self) -> SizeHint {
        let read = self.read.iter().filter_map(Frame::data_ref);
        let read: u64 = read.map(|data| data.len() as u64).sum();
        let rest = match &self.rest {
            Rest::Inner(rest) => rest.size_hint(),
            Rest::Boxed(rest) => rest.size_hint(),
            Rest::Nothing | Rest::Error(None) => SizeHint::with_exact(0),
            Rest::Error(Some(_)) => SizeHint::default(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        let ends_with_data = !self.read.iter().any(Frame::is_trailers);
        if let Some(upper) = rest.upper().filter(|_| ends_with_data) {
            hint.set_upper(read + upper);
        }
        hint
    }
}

impl<B> fmt::Debug for IdempotentBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentBody").finish_non_exhaustive()
    }
}
