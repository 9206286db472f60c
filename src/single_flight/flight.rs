//! A flight: one request that runs, and those that wait for its answer.
//!
//! The store hands an answer over as a record in the place of the key's lease. A record has to stay for a moment, so that the waiting
//! instances can fetch it; a request that comes in that moment, and did not wait, must not get it. So:
//!
//! 1. A request first claims without waiting. If that finds a record, the record is older than the request, and is shared only if it
//!    is marked as [kept](KEPT).
//! 2. Otherwise the next [generation](GENERATIONS) of the key is claimed: the same key with another number.
//! 3. A record that is found after waiting was made by a flight that was under way when the request came, and is shared.

use std::{
    error::Error as StdError, future::poll_fn, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use super::layer::Settings;
use crate::{
    ErrorKind, LockGuard, LockKey,
    idempotency::{
        Answer, Fingerprint, IdempotentBody, Keeping, Outcome, ReadResponse, Record, Tombstone,
        kept_headers, read_response,
    },
    key,
    locks::{Miss, Wait},
    trace,
};

/// How long an answer is there for those who waited for it.
const HANDOVER: Duration = Duration::from_secs(2);
/// How many flights of one key may end within [`HANDOVER`]; the requests of further ones run by themselves.
const GENERATIONS: u8 = 8;
/// How long to try to store an answer.
const STORE_WITHIN: Duration = Duration::from_secs(1);
/// The mark of an answer that is for those only who waited for it.
const HANDED_OVER: Fingerprint = Fingerprint::NONE;
/// The mark of an answer that also serves requests that come later.
const KEPT: Fingerprint = Fingerprint::ONES;

/// The key of a flight: an answer to HEAD is none to GET.
pub(super) fn key(method: &Method, of: &LockKey) -> LockKey {
    key::prefixed(method.as_str(), of)
}

/// The part of a request in its flight.
enum Role {
    /// It runs, and shares its answer.
    Lead(LockGuard, LockKey),
    /// It gets a copy.
    Follow(Answer),
    /// It runs, and shares nothing.
    Alone,
}

pub(super) async fn join<S, ReqBody, ResBody>(
    settings: Arc<Settings>,
    key: LockKey,
    mut service: S,
    request: Request<ReqBody>,
) -> Result<Response<IdempotentBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    match role(&settings, &key).await {
        Role::Follow(answer) => Ok(answer.into_response()),
        Role::Alone => {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            let response = service.call(request).await?;
            Ok(response.map(IdempotentBody::inner))
        }
        Role::Lead(guard, key) => {
            let flight = Flight {
                settings,
                key,
                guard,
            };
            let busy = flight.settings.locks.busy();
            // Those who wait get the answer although this request's client goes away.
            let task = trace::spawn(async move {
                let _busy = busy;
                flight.fly(service, request).await
            });
            match task.await {
                Ok(response) => response,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime shuts down.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

async fn role(settings: &Settings, key: &LockKey) -> Role {
    let claim = async |key: &LockKey, wait| {
        let claim = Bytes::from_static(b"flight");
        settings.locks.claim(key, claim, wait).await
    };
    for generation in 0..GENERATIONS {
        let key = key::prefixed(&format!("flight,{generation}"), key);
        match claim(&key, Wait::NotAtAll).await {
            Ok(guard) => return Role::Lead(guard, key),
            Err(Miss::Recorded(record)) => match Record::decode(record) {
                Ok(record) if record.fingerprint == KEPT => return follow(record),
                // Older than this request.
                _ => continue,
            },
            Err(Miss::Failed(error)) if error.kind() == ErrorKind::Held => {}
            Err(_) => return Role::Alone,
        }
        return match claim(&key, Wait::AtMost(settings.wait)).await {
            Ok(guard) => Role::Lead(guard, key),
            Err(Miss::Recorded(record)) => Record::decode(record).map_or(Role::Alone, follow),
            Err(_) => Role::Alone,
        };
    }
    Role::Alone
}

fn follow(record: Record) -> Role {
    match record.outcome {
        Outcome::Answer(answer) => Role::Follow(answer),
        _ => Role::Alone,
    }
}

/// A request that runs for others.
struct Flight {
    settings: Arc<Settings>,
    key: LockKey,
    guard: LockGuard,
}

impl Flight {
    async fn fly<S, ReqBody, ResBody>(
        self,
        mut service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<IdempotentBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        let handling = AssertUnwindSafe(async move {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        });
        match handling.catch_unwind().await {
            Ok(Ok(response)) => Ok(self.share(response).await),
            Ok(Err(error)) => {
                self.end(Outcome::Tombstone(Tombstone::Unknown)).await;
                Err(error)
            }
            Err(panic) => {
                self.end(Outcome::Tombstone(Tombstone::Unknown)).await;
                std::panic::resume_unwind(panic)
            }
        }
    }

    async fn share<B>(self, response: Response<B>) -> Response<IdempotentBody<B>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        let (parts, body) = response.into_parts();
        let (max, within) = (self.settings.max_response, self.settings.read_within);
        let (outcome, body) = match read_response(body, max, within).await {
            ReadResponse::Whole { data, trailers } if !parts.status.is_informational() => {
                let answer = Answer {
                    status: parts.status,
                    headers: kept_headers(&parts.headers, &[]),
                    trailers: trailers.clone(),
                    body: data.clone(),
                };
                let body = IdempotentBody::with_trailers(data, trailers);
                (Outcome::Answer(answer), body)
            }
            ReadResponse::Whole { data, trailers } => {
                let body = IdempotentBody::with_trailers(data, trailers);
                (Outcome::Tombstone(Tombstone::NotKept), body)
            }
            ReadResponse::NotKept(body, _) => (Outcome::Tombstone(Tombstone::NotKept), body),
        };
        self.end(outcome).await;
        Response::from_parts(parts, body)
    }

    /// Hands the outcome over to those who wait.
    async fn end(self, outcome: Outcome) {
        let keep_for = self.settings.keep_for;
        let (fingerprint, retain) = match &outcome {
            Outcome::Answer(answer) if !keep_for.is_zero() && answer.status.is_success() => {
                (KEPT, keep_for)
            }
            _ => (HANDED_OVER, HANDOVER),
        };
        let record = Record {
            fingerprint,
            outcome,
        };
        let keeping = Keeping {
            locks: self.settings.locks.clone(),
            key: self.key,
            claim: Bytes::from_static(b"flight"),
            record: record.encode(),
            retain,
            within: STORE_WITHIN,
        };
        keeping.keep(self.guard).await;
    }
}
