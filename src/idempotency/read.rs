//! Reading bodies, up to a limit.

use std::{error::Error as StdError, pin::Pin};

use bytes::{Bytes, BytesMut};
use futures_util::future::{FutureExt, poll_fn};
use http_body::{Body, Frame};

use super::body::{IdempotentBody, Rest};

/// Why a request's body was not read.
pub(super) enum Unread {
    TooLarge,
    Broken,
}

/// The whole body of a request.
pub(super) async fn request<B: Body<Data = Bytes>>(body: B, limit: usize) -> Result<Bytes, Unread> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    let mut body = std::pin::pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = next(body.as_mut()).await {
        let data = frame
            .map_err(|_| Unread::Broken)?
            .into_data()
            .unwrap_or_default();
        if data.len() > limit - read.len() {
            return Err(Unread::TooLarge);
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// A response's body, as far as it was read.
pub(super) enum Response<B> {
    /// All of it, and how to send it.
    Whole(Bytes, IdempotentBody<B>),
    /// It cannot be kept: it is too long, does not end for now, broke off, or has trailers.
    Streams(IdempotentBody<B>),
}

/// Reads a response's body if it fits, without keeping one that is streamed from its reader.
pub(super) async fn response<B>(body: B, limit: usize) -> Response<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    let size = body.size_hint();
    if size.lower() > limit as u64 {
        return Response::Streams(IdempotentBody::inner(body));
    }
    // A body that says how long it is will end. One that does not may go on for ever, and is read only
    // as far as it is there.
    let will_end = size.exact().is_some();
    let mut body = Box::pin(body);
    let (mut frames, mut len): (Vec<Frame<Bytes>>, usize) = (Vec::new(), 0);
    loop {
        let frame = match will_end {
            true => Some(next(body.as_mut()).await),
            false => next(body.as_mut()).now_or_never(),
        };
        match frame {
            Some(Some(Ok(frame))) => {
                len += frame.data_ref().map_or(0, Bytes::len);
                frames.push(frame);
                if len > limit {
                    break;
                }
            }
            Some(Some(Err(error))) => {
                let rest = Rest::Error(Some(error.into()));
                return Response::Streams(IdempotentBody::read(frames, rest));
            }
            Some(None) if frames.iter().any(Frame::is_trailers) => {
                return Response::Streams(IdempotentBody::read(frames, Rest::Nothing));
            }
            Some(None) => {
                let data = frames.iter().filter_map(Frame::data_ref);
                let whole: BytesMut = data.flat_map(|data| data.iter().copied()).collect();
                return Response::Whole(
                    whole.freeze(),
                    IdempotentBody::read(frames, Rest::Nothing),
                );
            }
            None => break,
        }
    }
    Response::Streams(IdempotentBody::read(frames, Rest::Boxed(body)))
}

async fn next<B: Body>(mut body: Pin<&mut B>) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|cx| body.as_mut().poll_frame(cx)).await
}
