//! Reading a response's body, up to a limit: before the response goes out, so that the record is in
//! the store when the client has the answer.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;

use crate::{
    http::gate::{self, BoxError, Rest},
    read_body::Joined,
    time::{later, now, timeout_at},
};

// Why a body cannot be kept, for the log, with the setting to change.
const TOO_LARGE: &str =
    "the response is larger than what is kept; raise `IdempotencyLayer::max_response`";
const TOO_SLOW: &str = "the response did not end in time; raise `IdempotencyLayer::read_within`, or take a streaming route out of the layer's scope";
const BROKE_OFF: &str = "the response broke off while it was read";

/// Reads a response's body with its trailers, up to a limit and within a time. Of a body that
/// cannot be kept, the read part and the rest come back, with the reason.
pub(crate) async fn read_response<B>(
    body: B,
    limit: usize,
    within: Duration,
) -> Result<(Bytes, Option<HeaderMap>), (gate::Body<B>, &'static str)>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err((gate::Body::inner(body), TOO_LARGE));
    }
    let until = later(now(), within);
    let mut body = Box::pin(body);
    let mut read = Joined::new(&body.size_hint(), limit);
    let mut trailers: Option<HeaderMap> = None;
    let (rest, why) = loop {
        let frame = match timeout_at(until, body.frame()).await {
            None => break (Rest::Boxed(body), TOO_SLOW),
            Some(None) => return Ok((read.into_bytes(), trailers)),
            Some(Some(Err(error))) => break (Rest::Ended(Some(error.into())), BROKE_OFF),
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
            break (Rest::Boxed(body), TOO_LARGE);
        }
    };
    let body = gate::Body::read(read.into_bytes(), trailers, rest);
    Err((body, why))
}
