//! Reading bodies, up to a limit.
//!
//! A request's body is read before the key is claimed, so that a slow upload holds no key. A response's body is read before the
//! response goes out, so that the record is in the store when the client has the answer.

use std::{error::Error as StdError, future::poll_fn, pin::Pin, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::time::{Instant, timeout_at};

use super::body::{IdempotentBody, Rest};
use crate::{read_body::Joined, rejection::body_error, time::later};

/// Why a request's body could not be read.
pub(super) enum Unread {
    TooLarge,
    Broken(Box<dyn StdError + Send + Sync>),
}

/// The whole body of a request.
pub(super) async fn request<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    let mut body = std::pin::pin!(body);
    let mut read = Joined::new(&body.size_hint(), limit);
    while let Some(frame) = next(body.as_mut()).await {
        let frame = frame.map_err(|error| {
            let error = error.into();
            match body_error::is_over_limit(&*error) {
                true => Unread::TooLarge,
                false => Unread::Broken(error),
            }
        })?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - read.len() {
            return Err(Unread::TooLarge);
        }
        read.push(data);
    }
    Ok(read.into_bytes())
}

/// The outcome of reading a response's body.
pub(crate) enum Response<B> {
    /// The whole body.
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// The body cannot be kept. The read part and the rest go out.
    NotKept(IdempotentBody<B>, WhyNot),
}

/// Why a response's body cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhyNot {
    TooLarge,
    /// The body did not end in time.
    TooSlow,
    BrokeOff,
}

/// Reads a response's body, up to a limit and within a time.
pub(crate) async fn response<B>(body: B, limit: usize, within: Duration) -> Response<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Response::NotKept(IdempotentBody::inner(body), WhyNot::TooLarge);
    }
    let until = later(Instant::now(), within);
    let mut body = Box::pin(body);
    let mut read = Joined::new(&body.size_hint(), limit);
    let mut trailers: Option<HeaderMap> = None;
    let (rest, why) = loop {
        let frame = match timeout_at(until, next(body.as_mut())).await {
            Err(_) => break (Rest::Boxed(body), WhyNot::TooSlow),
            Ok(None) => {
                let data = read.into_bytes();
                return Response::Whole { data, trailers };
            }
            Ok(Some(Err(error))) => break (Rest::Error(Some(error.into())), WhyNot::BrokeOff),
            Ok(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(data) => read.push(data),
            Err(frame) => {
                let more = frame.into_trailers().unwrap_or_default();
                trailers.get_or_insert_default().extend(more);
            }
        }
        if read.len() > limit {
            break (Rest::Boxed(body), WhyNot::TooLarge);
        }
    };
    let data = Some(read.into_bytes()).filter(|data| !data.is_empty());
    let frames = data.map(Frame::data).into_iter();
    let frames = frames.chain(trailers.map(Frame::trailers));
    Response::NotKept(IdempotentBody::read(frames, rest), why)
}

async fn next<B: Body>(mut body: Pin<&mut B>) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|cx| body.as_mut().poll_frame(cx)).await
}
