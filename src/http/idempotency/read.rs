//! Reading a response's body, up to a limit: before the response goes out, so that the record is in
//! the store when the client has the answer.

use std::{future::poll_fn, pin::Pin, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use crate::{
    http::gate::{self, BoxError, Rest},
    read_body::Joined,
    time::{later, now, timeout_at},
};

/// The outcome of reading a response's body.
pub(crate) enum Response<B> {
    /// The whole body.
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// The body cannot be kept. The read part and the rest go out.
    NotKept(gate::Body<B>, WhyNot),
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
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Response::NotKept(gate::Body::inner(body), WhyNot::TooLarge);
    }
    let until = later(now(), within);
    let mut body = Box::pin(body);
    let mut read = Joined::new(&body.size_hint(), limit);
    let mut trailers: Option<HeaderMap> = None;
    let (rest, why) = loop {
        let frame = match timeout_at(until, next(body.as_mut())).await {
            None => break (Rest::Boxed(body), WhyNot::TooSlow),
            Some(None) => {
                let data = read.into_bytes();
                return Response::Whole { data, trailers };
            }
            Some(Some(Err(error))) => break (Rest::Error(Some(error.into())), WhyNot::BrokeOff),
            Some(Some(Ok(frame))) => frame,
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
    let body = gate::Body::read(read.into_bytes(), trailers, rest);
    Response::NotKept(body, why)
}

async fn next<B: Body>(mut body: Pin<&mut B>) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|cx| body.as_mut().poll_frame(cx)).await
}
