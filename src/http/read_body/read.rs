//! Reading a request's body, up to a limit. Its data frames become one.
//!
//! | frames | copies |
//! |---|---|
//! | one, as for most small bodies | none |
//! | several, with a `Content-Length` | each byte once, into a buffer of the right size |
//! | several, of unknown length | each byte once or more, as the buffer grows |

use std::{error::Error as StdError, pin::pin};

use bytes::{Bytes, BytesMut};
use http_body::{Body, SizeHint};
use http_body_util::{BodyExt, LengthLimitError};

use crate::{
    http::gate::BoxError,
    rejection::{Reason, Rejection},
};

/// The whole body of a request.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Bytes, Rejection>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    // The body may declare its length.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut body = pin!(body);
    let mut read = Joined::new(&body.size_hint(), limit);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(error.into()))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - read.len() {
            return Err(too_large(limit));
        }
        read.push(data);
    }
    Ok(read.into_bytes())
}

fn too_large(limit: usize) -> Rejection {
    let detail = format!("the request's body has more than {limit} bytes");
    Rejection::new(Reason::BodyTooLarge, detail)
}

/// A body over a limit further out (`DefaultBodyLimit`, `RequestBodyLimitLayer`) stays a 413.
fn broken(error: BoxError) -> Rejection {
    let first: &(dyn StdError + 'static) = &*error;
    let mut causes = std::iter::successors(Some(first), |&error| error.source());
    let is_over_limit = causes.any(|error| error.is::<LengthLimitError>());
    let rejection = if is_over_limit {
        Rejection::new(Reason::BodyTooLarge, "the request's body is too large")
    } else {
        Rejection::new(Reason::BodyBroken, "the request's body broke off")
    };
    rejection.with_cause(error)
}

/// Joins data frames. A single frame is not copied. Several frames are copied once, if the body has
/// declared its length.
#[derive(Debug)]
pub(crate) struct Joined {
    first: Bytes,
    all: BytesMut,
    /// The declared length of the body.
    expected: usize,
}

impl Joined {
    /// For a body with this hint, of which at most `limit` bytes are read.
    pub(crate) fn new(hint: &SizeHint, limit: usize) -> Self {
        Self {
            first: Bytes::new(),
            all: BytesMut::new(),
            expected: usize::try_from(hint.lower()).unwrap_or(limit).min(limit),
        }
    }

    /// How many bytes there are so far.
    pub(crate) fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    /// Appends a frame.
    pub(crate) fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            let expected = self.expected.max(self.first.len() + data.len());
            self.all.reserve(expected);
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&data);
    }

    /// All data as one piece.
    pub(crate) fn into_bytes(self) -> Bytes {
        if self.all.is_empty() {
            return self.first;
        }
        self.all.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(expected: u64, frames: &[&'static [u8]]) -> Bytes {
        let mut joined = Joined::new(&SizeHint::with_exact(expected), 100);
        for frame in frames {
            joined.push(Bytes::from_static(frame));
        }
        joined.into_bytes()
    }

    #[test]
    fn frames_are_joined_in_order() {
        assert_eq!(joined(0, &[]), "");
        assert_eq!(joined(6, &[b"", b"one", b"", b"two"]), "onetwo");
        assert_eq!(joined(1000, &[b"one", b"two", b"three"]), "onetwothree");
    }

    #[test]
    fn a_single_frame_is_not_copied() {
        let frame: &'static [u8] = b"one";
        assert_eq!(joined(3, &[frame]).as_ptr(), frame.as_ptr());
    }
}
