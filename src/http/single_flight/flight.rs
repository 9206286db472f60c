//! A flight: one request that runs, and the requests that wait for its answer.
//!
//! The store hands an answer over as a record in the place of the key's lease. The record stays for a moment, in which the waiting
//! instances fetch it. A request that comes in that moment, and did not wait, must not get the record. Therefore:
//!
//! 1. The first request of a process claims without waiting. A record that this claim finds is older than the request, and is shared
//!    only if marked as [kept](KEPT).
//! 2. Otherwise the next [generation](GENERATIONS) of the key is claimed: the same key with another number.
//! 3. The other requests of the process take part in the generation that the first one has found, for as long as that flight is under way
//!    ([`Flights`](super::flights::Flights)).
//! 4. A record that is found after waiting was made by a flight that was under way when the request came, and is shared.
//!
//! Three requests for the key `report,path=/reports/7`, of which the third comes after the first flight has ended:
//!
//! ```text
//!           request 1                    request 2                      request 3
//!   0 ms    claims flight,0: granted
//!           runs the handler
//!  40 ms                                 claims flight,0: held
//!                                        waits at flight,0
//! 100 ms    stores the answer at
//!           flight,0 for 2 s             gets the record: a copy
//! 150 ms                                                                claims flight,0: a record, not kept
//!                                                                       claims flight,1: granted, and runs
//! ```

use std::{
    error::Error as StdError, future::poll_fn, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body::Body;
use tokio::time::timeout;
use tower_service::Service;

use super::{flights::Part, layer::Settings};
use crate::{
    ErrorKind, LockGuard, LockKey,
    idempotency::{
        Answer, Fingerprint, IdempotentBody, Keeping, Outcome, ReadResponse, Record, Tombstone,
        read_response, replayed, run_to_end,
    },
    key,
    locks::{Holding, NoTurn, Wait},
    trace,
};

/// How long an answer stays in the store for the requests that waited for it.
const HANDOVER: Duration = Duration::from_secs(2);
/// How many flights of one key may end within [`HANDOVER`]. The requests of further flights run by themselves.
const GENERATIONS: u8 = 8;
/// The claim of all flights, which differ by their keys.
const CLAIM: Bytes = Bytes::from_static(b"flight");
/// How long to retry to store an answer.
const STORE_WITHIN: Duration = Duration::from_secs(1);
/// The mark of an answer for the requests that waited for it.
const HANDED_OVER: Fingerprint = Fingerprint::NONE;
/// The mark of an answer that also serves requests that come later.
const KEPT: Fingerprint = Fingerprint::ONES;

/// The key of a flight: an answer to HEAD is none to GET.
pub(super) fn key(method: &Method, of: &LockKey) -> LockKey {
    key::prefixed(method.as_str(), of)
}

/// The role of a request in its flight.
enum Role {
    /// The request runs, and shares its answer.
    Lead(Lead),
    /// The request gets a copy.
    Follow(Box<Answer>),
    /// The request runs, and shares nothing.
    Alone,
}

/// A request that runs for others.
struct Lead {
    guard: LockGuard,
    key: LockKey,
    part: Option<Part>,
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
    // A store that hangs delays a request no longer than a slow flight does.
    let role = timeout(settings.wait, role(&settings, &key)).await;
    let role = role.unwrap_or(Role::Alone);
    trace::flight(match &role {
        Role::Lead(_) => trace::Role::Lead,
        Role::Follow(_) => trace::Role::Follow,
        Role::Alone => trace::Role::Alone,
    });
    match role {
        Role::Follow(answer) => Ok(answer.into_response()),
        Role::Alone => {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            let response = service.call(request).await?;
            Ok(response.map(IdempotentBody::inner))
        }
        Role::Lead(lead) => {
            // The waiting requests get the answer although this request's client goes away.
            let locks = settings.locks.clone();
            run_to_end(&locks, lead.run(settings, service, request)).await
        }
    }
}

/// Finds the role of a request. Waits, if another request runs.
async fn role(settings: &Settings, of: &LockKey) -> Role {
    let part = settings.flights.enter(of);
    let role = match find(settings, of, &part).await {
        Found::Role(role) => role,
        Found::Generation(generation) => {
            let key = generation_key(of, generation);
            match claim(settings, &key, Wait::AtMost(settings.wait)).await {
                Ok(guard) => Role::Lead(Lead {
                    guard,
                    key,
                    part: None,
                }),
                Err(NoTurn::Recorded(record)) => Record::decode(record).map_or(Role::Alone, follow),
                Err(_) => Role::Alone,
            }
        }
    };
    match role {
        Role::Lead(lead) => Role::Lead(Lead {
            part: Some(part),
            ..lead
        }),
        role => {
            part.end();
            role
        }
    }
}

/// The state of a flight in the store, as the first request of a process finds it.
enum Found {
    Role(Role),
    /// A flight of this generation is under way.
    Generation(u8),
}

/// Asks the store for the state of the flight, unless another request of this process has asked before.
async fn find(settings: &Settings, of: &LockKey, part: &Part) -> Found {
    let mut known = part.generation().lock().await;
    if let Some(generation) = *known {
        return Found::Generation(generation);
    }
    for generation in 0..GENERATIONS {
        let key = generation_key(of, generation);
        let found = match claim(settings, &key, Wait::NotAtAll).await {
            Ok(guard) => Found::Role(Role::Lead(Lead {
                guard,
                key,
                part: None,
            })),
            Err(NoTurn::Recorded(record)) => match Record::decode(record) {
                Ok(record) if record.fingerprint == KEPT => return Found::Role(follow(record)),
                // Older than this request.
                _ => continue,
            },
            Err(NoTurn::Failed(error)) if error.kind() == ErrorKind::Held => {
                Found::Generation(generation)
            }
            Err(_) => return Found::Role(Role::Alone),
        };
        *known = Some(generation);
        return found;
    }
    Found::Role(Role::Alone)
}

/// The key of one generation: `flight,0,GET,report,path=/reports/7`.
fn generation_key(of: &LockKey, generation: u8) -> LockKey {
    key::prefixed(&format!("flight,{generation}"), of)
}

async fn claim(settings: &Settings, key: &LockKey, wait: Wait) -> Result<LockGuard, NoTurn> {
    settings
        .locks
        .claim(key, CLAIM, wait, Holding::default())
        .await
}

/// The role of a request that has found a record: a copy of the answer, or a run of its own if there is no answer.
fn follow(record: Record) -> Role {
    match record.outcome {
        Outcome::Answer(answer) => Role::Follow(Box::new(answer)),
        _ => Role::Alone,
    }
}

impl Lead {
    async fn run<S, ReqBody, ResBody>(
        self,
        settings: Arc<Settings>,
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
        let unknown = Outcome::Tombstone(Tombstone::Unknown);
        match handling.catch_unwind().await {
            Ok(Ok(response)) => Ok(self.share(&settings, response).await),
            Ok(Err(error)) => {
                self.end(&settings, unknown).await;
                Err(error)
            }
            Err(panic) => {
                self.end(&settings, unknown).await;
                std::panic::resume_unwind(panic)
            }
        }
    }

    async fn share<B>(
        self,
        settings: &Settings,
        response: Response<B>,
    ) -> Response<IdempotentBody<B>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        let (parts, body) = response.into_parts();
        let (max, within) = (settings.max_response, settings.read_within);
        let (outcome, body) = match read_response(body, max, within).await {
            ReadResponse::Whole { data, trailers } if !parts.status.is_informational() => {
                let answer = Answer {
                    status: parts.status,
                    headers: replayed(&parts.headers, &[]),
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
        self.end(settings, outcome).await;
        Response::from_parts(parts, body)
    }

    /// Hands the outcome over to the waiting requests.
    async fn end(self, settings: &Settings, outcome: Outcome) {
        let keep_for = settings.keep_for;
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
            locks: settings.locks.clone(),
            key: self.key,
            claim: CLAIM,
            record: record.encode(),
            retain,
            within: STORE_WITHIN,
        };
        keeping.keep(self.guard).await;
        if let Some(part) = self.part {
            part.end();
        }
    }
}
