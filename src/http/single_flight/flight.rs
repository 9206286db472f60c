//! A flight: one request that runs, and the requests that wait for its answer.
//!
//! The store hands an answer over as a record in the place of the key's lease. The record stays for a moment, in which the waiting
//! instances fetch it. A request that comes in that moment, and did not wait, must not get the record. Therefore:
//!
//! 1. The first request of a process claims without waiting. A record that this claim finds is older than the request, and is shared
//!    only if marked as [kept](KEPT).
//! 2. Otherwise the next [generation](GENERATIONS) of the key is claimed: the same key with another number.
//! 3. The other requests of the process are members of the flight that the first one has found, for as long as that flight is under way
//!    ([`Flights`](super::flights::Flights)).
//! 4. A record that is found after waiting was made by a flight that was under way when the request came, or that had ended in another
//!    process so recently that this process did not know yet. The record is shared.
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
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    flights::{Known, Member},
    layer::Settings,
};
use crate::{
    ErrorKind, LockGuard, LockKey,
    idempotency::{
        Answer, Fingerprint, IdempotentBody, Keeping, Outcome, ReadResponse, Record, Tombstone,
        is_endless, read_response, replayed, run_to_end,
    },
    key,
    locks::{Holding, NoTurn, Wait},
    trace,
};

/// How long an answer stays in the store for the requests that waited for it.
const HANDOVER: Duration = Duration::from_secs(2);
/// How many flights of one key may end within [`HANDOVER`]. The requests of further flights run by themselves.
const GENERATIONS: u8 = 8;
/// The fingerprint of all flights, which differ by their keys.
const FINGERPRINT: Bytes = Bytes::from_static(b"flight");
/// How long to retry to store an answer.
const STORE_WITHIN: Duration = Duration::from_secs(1);
/// The mark of an answer for the requests that waited for it.
const HANDED_OVER: Fingerprint = Fingerprint::NONE;
/// The mark of an answer that also serves requests that come later.
const KEPT: Fingerprint = Fingerprint::ONES;

/// The key of a flight. HEAD and GET are different flights.
pub(super) fn key(method: &Method, of: &LockKey) -> LockKey {
    key::prefixed(method.as_str(), of)
}

/// The role of a request in its flight.
enum Role {
    /// The request runs, and shares its answer.
    Lead(Lead),
    /// The request gets a copy.
    Follow(Arc<Answer>),
    /// The request runs, and shares nothing.
    Alone,
}

/// A request that runs for others.
struct Lead {
    claimed: Claimed,
    member: Member,
}

/// The key of a flight, claimed.
struct Claimed {
    guard: LockGuard,
    key: LockKey,
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
        Role::Follow(answer) => Ok(Arc::unwrap_or_clone(answer).into_response()),
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
    let member = settings.flights.enter(of);
    let role = match find(settings, of, &member).await {
        Ok(claimed) => return Role::Lead(Lead { claimed, member }),
        Err(Known::Generation(generation)) => {
            let key = generation_key(of, generation);
            match claim(settings, &key, Wait::AtMost(settings.wait)).await {
                Ok(guard) => {
                    let claimed = Claimed { guard, key };
                    return Role::Lead(Lead { claimed, member });
                }
                Err(NoTurn::Recorded(record)) => {
                    answer_in(record).map_or(Role::Alone, Role::Follow)
                }
                Err(_) => Role::Alone,
            }
        }
        Err(Known::Answer(answer)) => Role::Follow(answer),
        Err(Known::Alone) => Role::Alone,
    };
    member.end();
    role
}

/// Claims the flight's key, or returns the state of the flight. Only the first request of this process asks the store.
async fn find(settings: &Settings, of: &LockKey, member: &Member) -> Result<Claimed, Known> {
    let mut known = member.known().lock().await;
    if let Some(known) = &*known {
        return Err(known.clone());
    }
    let found = ask(settings, of).await;
    *known = Some(match &found {
        Ok((generation, _)) => Known::Generation(*generation),
        Err(known) => known.clone(),
    });
    found.map(|(_, claimed)| claimed)
}

/// Claims the first generation that is free, or returns the state of the flight.
async fn ask(settings: &Settings, of: &LockKey) -> Result<(u8, Claimed), Known> {
    for generation in 0..GENERATIONS {
        let key = generation_key(of, generation);
        match claim(settings, &key, Wait::NotAtAll).await {
            Ok(guard) => return Ok((generation, Claimed { guard, key })),
            Err(NoTurn::Recorded(record)) => {
                // Any other record is older than this request.
                if let Ok(Record {
                    fingerprint: KEPT,
                    outcome: Outcome::Answer(answer),
                }) = Record::decode(record)
                {
                    return Err(Known::Answer(Arc::new(answer)));
                }
            }
            Err(NoTurn::Failed(error)) if error.kind() == ErrorKind::Held => {
                return Err(Known::Generation(generation));
            }
            Err(_) => break,
        }
    }
    Err(Known::Alone)
}

/// The key of one generation: `flight,0,GET,report,path=/reports/7`.
fn generation_key(of: &LockKey, generation: u8) -> LockKey {
    key::prefixed(&format!("flight,{generation}"), of)
}

async fn claim(settings: &Settings, key: &LockKey, wait: Wait) -> Result<LockGuard, NoTurn> {
    settings
        .locks
        .claim(key, FINGERPRINT, wait, Holding::default())
        .await
}

/// The answer in a record, if there is one.
fn answer_in(record: Bytes) -> Option<Arc<Answer>> {
    match Record::decode(record).ok()?.outcome {
        Outcome::Answer(answer) => Some(Arc::new(answer)),
        _ => None,
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
        let not_kept = Outcome::Tombstone(Tombstone::NotKept);
        if !is_for_all(parts.status) || is_endless(&parts) {
            self.end(settings, not_kept).await;
            return Response::from_parts(parts, IdempotentBody::inner(body));
        }
        let (max, within) = (settings.max_response, settings.read_within);
        let (outcome, body) = match read_response(body, max, within).await {
            ReadResponse::Whole { data, trailers } => {
                let answer = Answer {
                    status: parts.status,
                    headers: replayed(&parts.headers, &[]),
                    trailers: trailers.clone(),
                    body: data.clone(),
                };
                let body = IdempotentBody::with_trailers(data, trailers);
                (Outcome::Answer(answer), body)
            }
            ReadResponse::NotKept(body, _) => (not_kept, body),
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
            key: self.claimed.key,
            fingerprint: FINGERPRINT,
            record: record.encode(),
            retain,
            within: STORE_WITHIN,
        };
        keeping.keep(self.claimed.guard).await;
        self.member.end();
    }
}

/// Whether an answer with this status may go to requests with other headers. The answers to conditional requests, and to those for a part
/// of the content, are for the client that has asked so. A switch of protocols cannot be copied.
fn is_for_all(status: StatusCode) -> bool {
    !status.is_informational()
        && !matches!(
            status,
            StatusCode::PARTIAL_CONTENT
                | StatusCode::NOT_MODIFIED
                | StatusCode::PRECONDITION_FAILED
                | StatusCode::RANGE_NOT_SATISFIABLE
        )
}
