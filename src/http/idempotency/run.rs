//! The run of a request that has claimed its key, and the end of its claim.
//!
//! 1. Until the inner service is called, nothing has begun: a failure frees the key.
//! 2. After the call, the key is freed only if the handler's answer says that nothing was done. The
//!    lease of a request that is dropped together with its runtime runs out
//!    ([`Claimed`](super::keep::Claimed)).
//! 3. A refusal by a layer further in is never recorded. A lost lease leaves a tombstone; all other
//!    reasons say that the handler did not begin. What comes out of the handler itself, an error of
//!    the locks or the refusal of a service that it has called, never frees the key by itself.
//!
//! | the handler | the claim ends with |
//! |---|---|
//! | answers, and the policy keeps the answer | the answer as a record |
//! | answers, and the policy does not keep the answer | nothing: the key is free |
//! | answers with a body that cannot be kept | a tombstone: the answer was not kept |
//! | returns an error | a tombstone: the outcome is not known; nothing if `keep_error` says so |
//! | is cancelled, with the lock of a layer further out | a tombstone: the outcome is not known |
//! | panics | a record of a 500, for duplicates |
//! | has answered or panicked, and the body or the policy panics | a tombstone: the outcome is not known |
//! | is dropped with its runtime | the end of the lease's time |

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, response};
use http_body::Body;
use tower_service::Service;

use super::{
    begin::First,
    keep::keep,
    policy::{Answered, Keep},
    read::read_response,
    record::{Answer, Outcome},
};
use crate::{
    http::gate::{self, BoxError, Rest, TaskTurns, run_to_end},
    lock::RequestGuards,
    rejection::{Reason, Rejection, grpc},
    trace::{self, KeepResult},
};

const STORED: HeaderName = HeaderName::from_static("idempotency-stored");

/// Runs the handler to its end, even if the client goes away.
pub(super) fn run<S, ReqBody, ResBody>(
    first: First,
    service: S,
    request: Request<ReqBody>,
) -> impl Future<Output = Result<Response<gate::Body<ResBody>>, S::Error>>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let locks = first.settings.locks.clone();
    let turns = RequestGuards::for_task(request.extensions());
    run_to_end(&locks, first.run(turns, service, request))
}

impl First {
    async fn run<S, ReqBody, ResBody>(
        mut self,
        mut turns: TaskTurns,
        mut service: S,
        request: Request<ReqBody>,
    ) -> Option<Result<Response<gate::Body<ResBody>>, S::Error>>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: 'static>,
        ResBody: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
            return Some(Err(error));
        }
        // The wait may have outlasted the leases.
        if turns.is_lost() {
            return None;
        }
        if !self.claimed.guard().is_held() {
            let detail = "the claim was lost before the request could begin";
            let rejection = Rejection::new(Reason::InProgress, detail);
            return Some(Ok(self.refuse(rejection).map(gate::Body::whole)));
        }
        // From now on a drop does not free the key.
        self.claimed.begin(self.fingerprint);
        let handling = async move { service.call(request).await };
        let handling = turns.run(self.claimed.guard().hold().within(handling));
        let (ended, outcome) = match AssertUnwindSafe(handling).catch_unwind().await {
            Ok(Some(Ok(response))) => {
                let deciding = AssertUnwindSafe(self.decide(response)).catch_unwind();
                match deciding.await {
                    Ok((response, outcome)) => (Ok(Some(Ok(response))), outcome),
                    Err(panic) => (Err(panic), Some(Outcome::Unknown)),
                }
            }
            Ok(Some(Err(error))) => {
                let outcome = self.decide_on_error(&error);
                (Ok(Some(Err(error))), outcome)
            }
            Ok(None) => (Ok(None), Some(Outcome::Unknown)),
            // The server sees the panic itself.
            Err(panic) => (Err(panic), self.decide_on_panic()),
        };
        let kept = self.end(outcome).await;
        let ended = ended.unwrap_or_else(|panic| resume_unwind(panic))?;
        Some(ended.map(|response| self.give_out(response, kept)))
    }

    /// Ends the claim with an answer that the program has kept from an earlier run.
    pub(super) async fn recalled(&mut self, answer: &Answer) {
        self.claimed.begin(self.fingerprint);
        let (record, _) = self.settings.record_of(answer, self.fingerprint);
        self.store(record).await;
    }

    /// Reads the answer, as far as it can be kept, and decides what is recorded: nothing, if
    /// nothing was done. Runs code of the program: its policy and its body.
    async fn decide<B>(&self, response: Response<B>) -> (Response<gate::Body<B>>, Option<Outcome>)
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (parts, body) = response.into_parts();
        let is_grpc = grpc::is_grpc(&parts.headers);
        // The status of a gRPC response is in its trailers.
        let keep = (!is_grpc).then(|| self.keeps(&parts, None));
        let unread = match keep {
            Some(Keep::No) => Some(None),
            Some(Keep::Tombstone) => Some(Some(Outcome::Unknown)),
            Some(Keep::Yes) | None if is_endless(&parts) => {
                trace::answer_not_kept(ENDLESS);
                Some(Some(Outcome::NotKept))
            }
            Some(Keep::Yes) | None => None,
        };
        if let Some(outcome) = unread {
            return (
                Response::from_parts(parts, gate::Body::inner(body)),
                outcome,
            );
        }
        let settings = &self.settings;
        let reading = read_response(body, settings.max_response, settings.read_within);
        let (data, trailers) = match reading.await {
            Ok(read) => read,
            Err((body, why)) => {
                trace::answer_not_kept(why);
                return (Response::from_parts(parts, body), Some(Outcome::NotKept));
            }
        };
        let keep = keep.unwrap_or_else(|| self.keeps(&parts, trailers.as_ref()));
        let body = gate::Body::read(data.clone(), trailers.clone(), Rest::Ended(None));
        let outcome = outcome(keep, || self.answer(&parts, trailers, data));
        (Response::from_parts(parts, body), outcome)
    }

    /// The outcome that is recorded for an error of the inner service, of which there is no answer.
    fn decide_on_error(&self, error: &dyn Any) -> Option<Outcome> {
        let mut policies = self.settings.keep_errors.iter();
        // The policies are code of the program, which may panic.
        let decided = catch_unwind(AssertUnwindSafe(|| {
            policies.find_map(|decide| decide(error))
        }));
        match decided {
            Ok(Some(Keep::No)) => None,
            Ok(Some(Keep::Yes | Keep::Tombstone) | None) | Err(_) => Some(Outcome::Unknown),
        }
    }

    /// The outcome that is recorded for a handler that panicked: a 500, for duplicates.
    fn decide_on_panic(&self) -> Option<Outcome> {
        // The policy is code of the program, which may panic, too.
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let mut head = Response::new(()).into_parts().0;
            head.status = StatusCode::INTERNAL_SERVER_ERROR;
            let keep = self.keeps(&head, None);
            outcome(keep, || {
                let rejection = Rejection::new(Reason::Panicked, "the handler panicked");
                let (parts, body) = self.refuse(rejection).into_parts();
                self.answer(&parts, None, body)
            })
        }));
        decided.unwrap_or(Some(Outcome::Unknown))
    }

    fn answer(&self, parts: &response::Parts, trailers: Option<HeaderMap>, body: Bytes) -> Answer {
        Answer::of(parts, &self.settings.never_replayed, trailers, body)
    }

    /// The decision about an answer.
    fn keeps(&self, parts: &response::Parts, trailers: Option<&HeaderMap>) -> Keep {
        let answer = Answered { parts, trailers };
        answer.decide(self.keyed.asked, |answer| (self.settings.keep)(answer))
    }

    /// Ends the claim with a record of this outcome, or frees the key.
    async fn end(&mut self, outcome: Option<Outcome>) -> KeepResult {
        let Some(outcome) = outcome else {
            drop(self.claimed.take());
            return KeepResult::Kept;
        };
        self.store(outcome.encode(self.fingerprint)).await
    }

    async fn store(&mut self, record: Bytes) -> KeepResult {
        let (retain, within) = (self.settings.retain, self.settings.store_within);
        let kept = keep(self.claimed.take(), (&record, retain), within).await;
        if kept == KeepResult::Kept {
            trace::stored(self.keyed.scope.as_str(), record.len(), retain);
        }
        kept
    }

    /// The handler's response, which says if it was not kept. A response that another one has
    /// superseded is withheld.
    fn give_out<B>(
        &self,
        mut response: Response<gate::Body<B>>,
        kept: KeepResult,
    ) -> Response<gate::Body<B>> {
        let stored = match kept {
            KeepResult::Kept => return response,
            KeepResult::Superseded => {
                let detail = "the lock was lost, and another request with this Idempotency-Key has run since";
                let rejection = Rejection::new(Reason::LeaseLost, detail);
                return self.refuse(rejection).map(gate::Body::whole);
            }
            KeepResult::Refused => "false",
            KeepResult::Unknown => "unknown",
        };
        let stored = HeaderValue::from_static(stored);
        response.headers_mut().insert(STORED, stored);
        response
    }

    fn refuse(&self, rejection: Rejection) -> Response<Bytes> {
        self.keyed.refuse(&self.settings, rejection)
    }
}

/// The outcome that is recorded after this decision; `None` if nothing was done.
fn outcome(keep: Keep, answer: impl FnOnce() -> Answer) -> Option<Outcome> {
    match keep {
        Keep::No => None,
        Keep::Tombstone => Some(Outcome::Unknown),
        Keep::Yes => Some(Outcome::Answer(Box::new(answer()))),
    }
}

/// Whether the response is a stream of server-sent events, which ends when the client stops
/// listening and must not be delayed.
pub(crate) fn is_endless(parts: &response::Parts) -> bool {
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let media_type = content_type.and_then(|value| value.as_bytes().get(..EVENT_STREAM.len()));
    media_type.is_some_and(|it| it.eq_ignore_ascii_case(EVENT_STREAM))
}

/// Media types have no case.
const EVENT_STREAM: &[u8] = b"text/event-stream";

const ENDLESS: &str = "the response is an event stream, which cannot be kept; take the route out of the layer's scope";
