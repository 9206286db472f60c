//! The request body that the inner service gets after the body was read.

use bytes::Bytes;

use crate::http::gate;

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

/// The inner service takes the same type of body, which must implement `From<Bytes>`, as axum's
/// does.
#[derive(Debug, Clone, Copy)]
pub struct SameBody;

/// The inner service takes a [`gate::Body`]. The body can be of any type, such as hyper's
/// `Incoming` or tonic's.
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
    type Body = gate::Body<B>;

    fn whole(bytes: Bytes) -> gate::Body<B> {
        gate::Body::whole(bytes)
    }

    fn unread(body: B) -> gate::Body<B> {
        gate::Body::inner(body)
    }
}
