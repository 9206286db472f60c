//! The request body that the inner service gets after the body was read.

use bytes::Bytes;

use crate::http::gate;

/// Makes a request body from bytes that were read: [`SameBody`] or [`AnyBody`].
pub trait Rebuild<B>: sealed::Rebuild<B> + Send + Sync + 'static {}

impl<B, M: sealed::Rebuild<B> + Send + Sync + 'static> Rebuild<B> for M {}

mod sealed {
    use bytes::Bytes;

    pub trait Rebuild<B> {
        /// The body that the inner service gets.
        type Body;

        /// A body that was read.
        fn whole(bytes: Bytes) -> Self::Body;

        /// A body that was not read.
        fn unread(body: B) -> Self::Body;
    }
}

/// The inner service takes the same type of body, which must implement `From<Bytes>`, as axum's
/// does.
#[derive(Debug, Clone, Copy)]
pub struct SameBody;

/// The inner service takes a [`gate::Body`]. The body can be of any type, such as hyper's
/// `Incoming` or tonic's.
#[derive(Debug, Clone, Copy)]
pub struct AnyBody;

impl<B: From<Bytes>> sealed::Rebuild<B> for SameBody {
    type Body = B;

    fn whole(bytes: Bytes) -> B {
        bytes.into()
    }

    fn unread(body: B) -> B {
        body
    }
}

impl<B> sealed::Rebuild<B> for AnyBody {
    type Body = gate::Body<B>;

    fn whole(bytes: Bytes) -> gate::Body<B> {
        gate::Body::whole(bytes)
    }

    fn unread(body: B) -> gate::Body<B> {
        gate::Body::inner(body)
    }
}
