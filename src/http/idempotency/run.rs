//! The run of a request that has claimed its key, and the end of its claim.
//!
//! 1. Until the inner service is called, nothing has begun: whatever fails frees the key.
//! 2. From the call on, the key is not freed unless the handler's answer says that nothing was done. A request that is dropped on the
//!    way, with its runtime, leaves its lease to run out ([`Begun`]).
//! 3. A refusal by a layer further in is never the record. It goes by its reason: a lost lease is a tombstone, all others say that
//!    the handler did not begin.

use std::{error::Error as StdError, future::poll_fn, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, response};
use http_body::Body;
use tower_service::Service;

use super::{
    begin::First,
    body::IdempotentBody,
    fingerprint::Fingerprint,
    keep::{Begun, Keeping, Kept},
    policy::{Answered, Keep},
    read::{self, WhyNot},
    record::{self, Answer, Outcome, Record, Tombstone},
    scope::Place,
    settings::{Claim, Settings},
};
use crate::{
    locks::reentry,
    rejection::{Reason, Rejection, grpc},
    trace,
};

const STORED: HeaderName = HeaderName::from_static("idempotency-stored");

/// Runs the handler to its end, whether or not anybody still waits for its answer.
pub(super) async fn run<S, ReqBody, ResBody>(
    first: First,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<IdempotentBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    let busy = first.settings.locks.busy();
    let task = trace::spawn(reentry::carry(async move {
        let _busy = busy;
        first.run(service, request).await
    }));
    match task.await {
        Ok(response) => response,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime shuts down.
        Err(_) => std::future::pending().await,
    }
}

impl First {
    async fn run<S, ReqBody, ResBody>(
        self,
        mut service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<IdempotentBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        poll_fn(|cx| service.poll_ready(cx)).await?;
        // That may have taken longer than the lease lasts.
        if !self.guard.is_held() {
            let detail = "the claim was lost before the request could begin";
            let rejection = Rejection::new(Reason::InProgress, detail)
                .with_idempotency_key(&self.claim.name)
                .with_retry_after(self.settings.retry_after);
            let response = self.settings.render(rejection, self.claim.wire);
            return Ok(response.map(IdempotentBody::whole));
        }
        let running = self.begin();
        let handling = AssertUnwindSafe(async move { service.call(request).await });
        match handling.catch_unwind().await {
            Ok(Ok(response)) => Ok(running.answered(response).await),
            Ok(Err(error)) => {
                running.end(Outcome::Tombstone(Tombstone::Unknown)).await;
                Err(error)
            }
            Err(panic) => {
                running.panicked().await;
                std::panic::resume_unwind(panic)
            }
        }
    }

    fn begin(self) -> Running {
        let Self {
            settings,
            claim,
            fingerprint,
            guard,
            place,
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
            _place: place,
        }
    }
}

/// A request whose handler was called.
struct Running {
    settings: Arc<Settings>,
    claim: Claim,
    fingerprint: Fingerprint,
    begun: Begun,
    _place: Place,
}

impl Running {
    /// Ends the claim as the answer says, and gives the answer out.
    async fn answered<B>(self, response: Response<B>) -> Response<IdempotentBody<B>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        let (parts, body) = response.into_parts();
        // The status of a gRPC response is in its trailers.
        if !grpc::is_grpc(&parts.headers) {
            match self.keeps(&parts, None) {
                Keep::Yes => {}
                Keep::No => return self.free(parts, IdempotentBody::inner(body)),
                Keep::Tombstone => {
                    let unknown = Outcome::Tombstone(Tombstone::Unknown);
                    return self
                        .give_out(parts, IdempotentBody::inner(body), unknown)
                        .await;
                }
            }
        }
        let not_kept = Outcome::Tombstone(Tombstone::NotKept);
        if is_endless(&parts) {
            trace::answer_not_kept(ENDLESS);
            return self
                .give_out(parts, IdempotentBody::inner(body), not_kept)
                .await;
        }
        let settings = &self.settings;
        let (data, trailers) =
            match read::response(body, settings.max_response, settings.read_within).await {
                read::Response::Whole { data, trailers } => (data, trailers),
                read::Response::NotKept(body, why) => {
                    trace::answer_not_kept(advice(why));
                    return self.give_out(parts, body, not_kept).await;
                }
            };
        let body = IdempotentBody::with_trailers(data.clone(), trailers.clone());
        let outcome = match self.keeps(&parts, trailers.as_ref()) {
            Keep::No => return self.free(parts, body),
            Keep::Tombstone => Outcome::Tombstone(Tombstone::Unknown),
            Keep::Yes => Outcome::Answer(Answer {
                status: parts.status,
                headers: record::kept(&parts.headers, &self.settings.never_replayed),
                trailers,
                body: data,
            }),
        };
        self.give_out(parts, body, outcome).await
    }

    /// A panic counts as the answer 500, which duplicates get; whoever serves the request sees the panic.
    async fn panicked(self) {
        let rejection = Rejection::new(Reason::Panicked, "the handler panicked")
            .with_idempotency_key(&self.claim.name);
        let (parts, body) = self
            .settings
            .render(rejection, self.claim.wire)
            .into_parts();
        let mut head = response::Response::new(()).into_parts().0;
        head.status = StatusCode::INTERNAL_SERVER_ERROR;
        let outcome = match self.keeps(&head, None) {
            Keep::No => return drop(self.begun.into_guard()),
            Keep::Tombstone => Outcome::Tombstone(Tombstone::Unknown),
            Keep::Yes => Outcome::Answer(Answer {
                status: parts.status,
                headers: record::kept(&parts.headers, &self.settings.never_replayed),
                trailers: None,
                body,
            }),
        };
        self.end(outcome).await;
    }

    fn keeps(&self, parts: &response::Parts, trailers: Option<&http::HeaderMap>) -> Keep {
        let answer = Answered { parts, trailers };
        let handlers = || parts.extensions.get::<Keep>().copied();
        let keep = answer
            .of_refusal()
            .or_else(handlers)
            .unwrap_or_else(|| (self.settings.keep)(&answer));
        match keep {
            // A switch of protocols cannot be given again.
            Keep::Yes if parts.status.is_informational() => Keep::Tombstone,
            keep => keep,
        }
    }

    /// Frees the key, and gives the answer out.
    fn free<B>(self, parts: response::Parts, body: B) -> Response<B> {
        drop(self.begun.into_guard());
        Response::from_parts(parts, body)
    }

    /// Ends the claim with this outcome, and gives the answer out.
    async fn give_out<B>(
        self,
        mut parts: response::Parts,
        body: IdempotentBody<B>,
        outcome: Outcome,
    ) -> Response<IdempotentBody<B>> {
        let (settings, claim) = (self.settings.clone(), self.claim.clone());
        let stored = match self.end(outcome).await {
            Kept::Yes => return Response::from_parts(parts, body),
            Kept::Superseded => {
                let detail = "the lock was lost, and another request with this Idempotency-Key has run since";
                let rejection =
                    Rejection::new(Reason::LeaseLost, detail).with_idempotency_key(&claim.name);
                return settings
                    .render(rejection, claim.wire)
                    .map(IdempotentBody::whole);
            }
            Kept::No => "false",
            Kept::Unknown => "unknown",
        };
        parts
            .headers
            .insert(STORED, HeaderValue::from_static(stored));
        Response::from_parts(parts, body)
    }

    async fn end(self, outcome: Outcome) -> Kept {
        let record = Record {
            fingerprint: self.fingerprint,
            outcome,
        };
        let keeping = Keeping {
            locks: self.settings.locks.clone(),
            key: self.claim.key,
            claim: self.fingerprint.to_bytes(),
            record: record.encode(),
            retain: self.settings.retain,
            within: self.settings.store_within,
        };
        let bytes = keeping.record.len();
        let kept = keeping.keep(self.begun.into_guard()).await;
        if kept == Kept::Yes {
            trace::stored(self.claim.scope.as_str(), bytes, self.settings.retain);
        }
        kept
    }
}

/// Server-sent events go on for as long as their client listens, and must not be held back to see whether they end.
fn is_endless(parts: &response::Parts) -> bool {
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

const ENDLESS: &str = "the response is an event stream, which cannot be kept; take the route out of the layer's scope";

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
