//! The run of a request that has claimed its key, and the end of its claim.
//!
//! 1. Until the inner service is called, nothing has begun: a failure frees the key.
//! 2. After the call, the key is freed only if the handler's answer says that nothing was done. The
//!    lease of a request that is dropped together with its runtime runs out ([`Begun`]).
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
//! | has answered or panicked, and the body, the policy or `on_rejection` panics | a tombstone: the outcome is not known |
//! | is dropped with its runtime | the end of the lease's time |

use std::{any::Any, future::poll_fn, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, response};
use http_body::Body;
use tower_service::Service;

use super::{
    begin::First,
    fingerprint::Fingerprint,
    keep::{Begun, Keeping, Kept},
    policy::{Answered, Keep},
    read::{self, WhyNot},
    record::{Answer, Outcome, Record, Tombstone},
    scope::Counted,
    service::Claim,
    settings::Settings,
};
use crate::{
    http::gate::{self, BoxError, Rest, TaskTurns, run_to_end},
    lock::RequestGuards,
    rejection::{Reason, Rejection, grpc},
    trace,
};

const STORED: HeaderName = HeaderName::from_static("idempotency-stored");

/// Runs the handler to its end, even if the client goes away.
pub(super) async fn run<S, ReqBody, ResBody>(
    first: First,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<gate::Body<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let locks = first.settings.locks.clone();
    let turns = RequestGuards::for_task(request.extensions());
    run_to_end(&locks, first.run(turns, service, request)).await
}

impl First {
    async fn run<S, ReqBody, ResBody>(
        self,
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
        if !self.guard.is_held() {
            let detail = "the claim was lost before the request could begin";
            let rejection = Rejection::new(Reason::InProgress, detail)
                .with_idempotency_key(&self.claim.name)
                .with_retry_after(self.settings.retry_after);
            let response = self.settings.render(rejection, self.claim.asked);
            return Some(Ok(response.map(gate::Body::whole)));
        }
        let handling = async move { service.call(request).await };
        let handling = turns.run(self.guard.hold().within(handling));
        let handling = AssertUnwindSafe(handling);
        let running = self.begin();
        match handling.catch_unwind().await {
            Ok(Some(Ok(response))) => Some(running.answered(response).await),
            Ok(Some(Err(error))) => {
                let keep = running.keeps_error(&error);
                running.failed(keep).await;
                Some(Err(error))
            }
            Ok(None) => {
                running.end(Outcome::Tombstone(Tombstone::Unknown)).await;
                None
            }
            Err(panic) => {
                running.panicked().await;
                std::panic::resume_unwind(panic)
            }
        }
    }

    /// Marks the request as begun: from now on a drop does not free its key.
    fn begin(self) -> Running {
        let Self {
            settings,
            claim,
            fingerprint,
            guard,
            counted,
        } = self;
        let unknown = Record {
            fingerprint,
            outcome: Outcome::Tombstone(Tombstone::Unknown),
        };
        Running {
            settings,
            claim,
            fingerprint,
            begun: Begun::new(guard, unknown.encode()),
            _counted: counted,
        }
    }
}

/// A request whose handler was called.
struct Running {
    settings: Arc<Settings>,
    claim: Claim,
    fingerprint: Fingerprint,
    begun: Begun,
    _counted: Counted,
}

/// A response, and the outcome that is recorded; `None` if nothing was done.
struct Decided<B> {
    parts: response::Parts,
    body: gate::Body<B>,
    outcome: Option<Outcome>,
}

impl Running {
    /// Ends the claim according to the answer, and returns the response.
    async fn answered<B, E>(self, response: Response<B>) -> Result<Response<gate::Body<B>>, E>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let decided = AssertUnwindSafe(self.decide(response)).catch_unwind().await;
        let Decided {
            parts,
            body,
            outcome,
        } = match decided {
            Ok(decided) => decided,
            Err(panic) => {
                self.end(Outcome::Tombstone(Tombstone::Unknown)).await;
                std::panic::resume_unwind(panic)
            }
        };
        Ok(match outcome {
            Some(outcome) => self.give_out(parts, body, outcome).await,
            None => {
                drop(self.begun.into_guard());
                Response::from_parts(parts, body)
            }
        })
    }

    /// Reads the answer, as far as it can be kept, and decides what is recorded. Runs code of the
    /// program: its policy and its body.
    async fn decide<B>(&self, response: Response<B>) -> Decided<B>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (parts, body) = response.into_parts();
        let unknown = Outcome::Tombstone(Tombstone::Unknown);
        let is_grpc = grpc::is_grpc(&parts.headers);
        // The status of a gRPC response is in its trailers.
        let keep = (!is_grpc).then(|| self.keeps(&parts, None));
        if let Some(Keep::No | Keep::Tombstone) = keep {
            return Decided {
                parts,
                body: gate::Body::inner(body),
                outcome: (keep == Some(Keep::Tombstone)).then_some(unknown),
            };
        }
        let not_kept = Outcome::Tombstone(Tombstone::NotKept);
        if is_endless(&parts) {
            trace::answer_not_kept(ENDLESS);
            return Decided {
                parts,
                body: gate::Body::inner(body),
                outcome: Some(not_kept),
            };
        }
        let settings = &self.settings;
        let (data, trailers) =
            match read::response(body, settings.max_response, settings.read_within).await {
                read::Response::Whole { data, trailers } => (data, trailers),
                read::Response::NotKept(body, why) => {
                    trace::answer_not_kept(advice(why));
                    return Decided {
                        parts,
                        body,
                        outcome: Some(not_kept),
                    };
                }
            };
        let body = gate::Body::read(data.clone(), trailers.clone(), Rest::Nothing);
        let outcome = match keep.unwrap_or_else(|| self.keeps(&parts, trailers.as_ref())) {
            Keep::No => None,
            Keep::Tombstone => Some(unknown),
            Keep::Yes => {
                let never = &self.settings.never_replayed;
                let answer = Answer::of(&parts, never, trailers, data);
                Some(Outcome::Answer(Box::new(answer)))
            }
        };
        Decided {
            parts,
            body,
            outcome,
        }
    }

    /// Ends the claim of a request whose handler has returned an error instead of an answer.
    async fn failed(self, keep: Keep) {
        match keep {
            Keep::No => drop(self.begun.into_guard()),
            // There is no answer to keep.
            Keep::Yes | Keep::Tombstone => {
                self.end(Outcome::Tombstone(Tombstone::Unknown)).await;
            }
        }
    }

    /// The decision about an error of the inner service.
    fn keeps_error(&self, error: &dyn Any) -> Keep {
        let mut policies = self.settings.keep_errors.iter();
        // The policies are code of the program, which may panic.
        let decided = std::panic::catch_unwind(AssertUnwindSafe(|| {
            policies.find_map(|policy| policy.decide(error))
        }));
        decided.ok().flatten().unwrap_or(Keep::Tombstone)
    }

    /// Records a panic as the answer 500, for duplicates. The server sees the panic itself.
    async fn panicked(self) {
        // The policy and the renderer are code of the program, which may panic, too.
        let decided = std::panic::catch_unwind(AssertUnwindSafe(|| self.decide_on_panic()));
        match decided.unwrap_or(Some(Outcome::Tombstone(Tombstone::Unknown))) {
            Some(outcome) => drop(self.end(outcome).await),
            None => drop(self.begun.into_guard()),
        }
    }

    /// The outcome that is recorded for a handler that panicked; `None` if nothing was done.
    fn decide_on_panic(&self) -> Option<Outcome> {
        let mut head = response::Response::new(()).into_parts().0;
        head.status = StatusCode::INTERNAL_SERVER_ERROR;
        match self.keeps(&head, None) {
            Keep::No => None,
            Keep::Tombstone => Some(Outcome::Tombstone(Tombstone::Unknown)),
            Keep::Yes => {
                let rejection = Rejection::new(Reason::Panicked, "the handler panicked")
                    .with_idempotency_key(&self.claim.name);
                let response = self.settings.render(rejection, self.claim.asked);
                let (parts, body) = response.into_parts();
                let never = &self.settings.never_replayed;
                let answer = Answer::of(&parts, never, None, body);
                Some(Outcome::Answer(Box::new(answer)))
            }
        }
    }

    /// The decision about an answer.
    fn keeps(&self, parts: &response::Parts, trailers: Option<&http::HeaderMap>) -> Keep {
        let answer = Answered { parts, trailers };
        answer.decide(self.claim.asked, |answer| (self.settings.keep)(answer))
    }

    /// Ends the claim with this outcome, and returns the response.
    async fn give_out<B>(
        self,
        mut parts: response::Parts,
        body: gate::Body<B>,
        outcome: Outcome,
    ) -> Response<gate::Body<B>> {
        let (settings, claim) = (self.settings.clone(), self.claim.clone());
        let stored = match self.end(outcome).await {
            Kept::Yes => return Response::from_parts(parts, body),
            Kept::Superseded => {
                let detail = "the lock was lost, and another request with this Idempotency-Key has run since";
                let rejection =
                    Rejection::new(Reason::LeaseLost, detail).with_idempotency_key(&claim.name);
                return settings
                    .render(rejection, claim.asked)
                    .map(gate::Body::whole);
            }
            Kept::No => "false",
            Kept::Unknown => "unknown",
        };
        parts
            .headers
            .insert(STORED, HeaderValue::from_static(stored));
        Response::from_parts(parts, body)
    }

    /// Ends the claim with a record of this outcome.
    async fn end(self, outcome: Outcome) -> Kept {
        let record = Record {
            fingerprint: self.fingerprint,
            outcome,
        };
        let keeping = Keeping {
            locks: self.settings.locks.clone(),
            key: self.claim.key,
            fingerprint: self.settings.claimed(self.fingerprint),
            record: record.encode(),
            retain: self.settings.retain,
            within: self.settings.store_within,
        };
        let bytes = keeping.record.len();
        let kept = keeping.keep(self.begun.into_guard()).await;
        if kept == Kept::Yes {
            let (scope, retain) = (&self.claim.scope, self.settings.retain);
            trace::stored(scope.as_str(), bytes, retain);
        }
        kept
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

/// The text of the log for an answer that is not kept, with the setting to change.
fn advice(why: WhyNot) -> &'static str {
    match why {
        WhyNot::TooLarge => {
            "the response is larger than what is kept; raise `IdempotencyLayer::max_response`"
        }
        WhyNot::TooSlow => {
            "the response did not end in time; raise `IdempotencyLayer::read_within`, or take a streaming route out of the layer's scope"
        }
        WhyNot::BrokeOff => "the response broke off while it was read",
    }
}
