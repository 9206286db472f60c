//! The request body that the inner service gets after the body was read.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

/// Makes a request body from bytes that were read: [`SameBody`] or [`AnyBody`].
pub trait Rebuild<B>: sealed::Sealed + Send + Sync + 'static {
    /// The body that the inner service gets.
    type Body;

    /// A body that was read.
    fn whole(bytes: Bytes) -> Self::Body;

    /// A body that was not read.
    fn unread(body: B) -> Self::Body;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::SameBody {}
    impl Sealed for super::AnyBody {}
}

/// The inner service takes the same type of body, which must implement `From<Bytes>`, as axum's does.
#[derive(Debug, Clone, Copy)]
pub struct SameBody;

/// The inner service takes a [`RequestBody`]. The body can be of any type, such as hyper's `Incoming` or tonic's.
#[derive(Debug, Clone, Copy)]
pub struct AnyBody;

impl<B: From<Bytes>> Rebuild<B> for SameBody {
    type Body = B;

    fn whole(bytes: Bytes) -> B {
        bytes.into()
    }

    fn unread(body: B) -> B {
        body
    }
}

impl<B> Rebuild<B> for AnyBody {
    type Body = RequestBody<B>;

    fn whole(bytes: Bytes) -> RequestBody<B> {
        RequestBody(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    fn unread(body: B) -> RequestBody<B> {
        RequestBody(Kind::Unread(body))
    }
}

/// A request body that was read, or was left unread. See [`AnyBody`].
///
/// A body that was read is one frame with a known length. A body that was not read (a request that the layer does not
/// handle) passes unchanged.
#[derive(Debug)]
#[pin_project]
pub struct RequestBody<B>(#[pin] Kind<B>);

#[derive(Debug)]
#[pin_project(project = KindProj)]
enum Kind<B> {
    Whole(Option<Bytes>),
    Unread(#[pin] B),
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().0.project() {
            KindProj::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            KindProj::Unread(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Unread(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Unread(body) => body.size_hint(),
        }
    }
}
