//! A flight: one request that runs, and the requests that wait for its answer.
//!
//! The store hands an answer over as a record in the place of the key's lease. The record stays for
//! a moment, in which the waiting instances fetch it. A request that comes in that moment, and did
//! not wait, must not get the record. Therefore:
//!
//! 1. The first request of a process claims without waiting. A record that this claim finds is
//!    older than the request, and is shared only if marked as [kept](KEPT).
//! 2. Otherwise the next [generation](GENERATIONS) of the key is claimed: the same key with another
//!    number.
//! 3. The other requests of the process are members of the flight that the first one has found, for
//!    as long as that flight is under way ([`Flights`](super::flights::Flights)). At most one of
//!    them waits in line for the key, and what it gets is for all.
//! 4. A record that is found after waiting was made by a flight that was under way when the request
//!    came, or that had ended in another process so recently that this process did not know yet.
//!    The record is shared.
//! 5. Where there is no room for another flight in the store, one request of the process runs, and
//!    its answer is for the other members.
//!
//! Three requests for the key `report,path=/reports/7`, of which the third comes after the first
//! flight has ended:
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
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use http_body::Body;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    flights::{Acting, Member},
    layer::Settings,
};
use crate::{
    Error, ErrorKind, LockGuard, LockKey,
    http::gate::{self, BoxError, Rest, TaskTurns, run_to_end},
    idempotency::{Answer, Fingerprint, Outcome, is_endless, keep, read_response},
    key,
    lock::RequestGuards,
    locks::{Holding, NoTurn, Wait},
    trace,
};

/// How long an answer stays in the store for the requests that waited for it.
const HANDOVER: Duration = Duration::from_secs(2);
/// How many flights of one key may end within [`HANDOVER`]. The requests of further flights run by
/// themselves.
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

/// A request that runs for others.
struct Lead {
    /// The flight's key; `None` if there was no room for another flight in the store: the answer is
    /// for members only.
    claimed: Option<LockGuard>,
    member: Member,
    _acting: Acting,
}

pub(super) async fn join<S, ReqBody, ResBody>(
    settings: Arc<Settings>,
    key: LockKey,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<gate::Body<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    // A store that hangs delays a request no longer than a slow flight does.
    let role = timeout(settings.wait, role(&settings, &key)).await;
    let role = role.unwrap_or(Err(None));
    trace::flight(match &role {
        Ok(lead) if lead.claimed.is_some() => trace::Role::Lead,
        Err(Some(_)) => trace::Role::Follow,
        Ok(_) | Err(None) => trace::Role::Alone,
    });
    match role {
        Err(Some(answer)) => Ok(Arc::unwrap_or_clone(answer).into_response()),
        Err(None) => Ok(gate::call(service, request).await?.map(gate::Body::inner)),
        Ok(lead) => {
            // The waiting requests get the answer although this request's client goes away.
            let locks = settings.locks.clone();
            let turns = RequestGuards::for_task(request.extensions());
            run_to_end(&locks, lead.run(settings, turns, service, request)).await
        }
    }
}

/// Finds the role of a request: it runs for others, or gets a copy, or runs and shares nothing
/// (`None`). Waits, if another request runs.
async fn role(settings: &Settings, of: &LockKey) -> Result<Lead, Option<Arc<Answer>>> {
    let member = settings.flights.enter(of);
    let acting = member.act().await?;
    let claimed = find(settings, of, &member).await?;
    Ok(Lead {
        claimed,
        member,
        _acting: acting,
    })
}

/// Claims the flight's key, or waits for the end of the flight.
///
/// The first request of the process claims without waiting, one generation after another, until it
/// finds one that is free, or one that is held and worth waiting for. There is no guard if there is
/// no room for another flight. A flight that has ended is ended for the other members, too.
async fn find(
    settings: &Settings,
    of: &LockKey,
    member: &Member,
) -> Result<Option<LockGuard>, Option<Arc<Answer>>> {
    let ended = |answer: Option<Arc<Answer>>| {
        member.end(answer.clone());
        Err(answer)
    };
    let (mut generation, mut wait) = match member.generation() {
        Some(generation) => (generation, Wait::AtMost(settings.wait)),
        None => (0, Wait::NotAtAll),
    };
    while generation < GENERATIONS {
        let waits = wait != Wait::NotAtAll;
        let key = generation_key(of, generation);
        let claiming = settings
            .locks
            .claim(&key, FINGERPRINT, wait, Holding::default());
        match claiming.await {
            Ok(guard) => {
                member.found_in(generation);
                return Ok(Some(guard));
            }
            Err(NoTurn::Recorded(record)) => match Outcome::decode(record) {
                Ok((mark, Outcome::Answer(answer))) if waits || mark == KEPT => {
                    return ended(Some(Arc::from(answer)));
                }
                _ if waits => return ended(None),
                // The record is older than this request.
                _ => generation += 1,
            },
            Err(NoTurn::Failed(error)) if error.kind() == ErrorKind::Held => {
                // That request may run for longer than this one waits; the next member waits on.
                if waits {
                    return Err(None);
                }
                member.found_in(generation);
                wait = Wait::AtMost(settings.wait);
            }
            Err(NoTurn::Failed(error)) if is_full(&error) => break,
            Err(NoTurn::Failed(_) | NoTurn::OtherFingerprint(_)) => return ended(None),
        }
    }
    Ok(None)
}

/// Whether the locks of this process have no room for another claim.
fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::LineFull | ErrorKind::TooManyKeys)
}

/// The key of one generation: `flight,0,GET,report,path=/reports/7`.
fn generation_key(of: &LockKey, generation: u8) -> LockKey {
    key::prefixed(&format!("flight,{generation}"), of)
}

impl Lead {
    async fn run<S, ReqBody, ResBody>(
        self,
        settings: Arc<Settings>,
        mut turns: TaskTurns,
        service: S,
        request: Request<ReqBody>,
    ) -> Option<Result<Response<gate::Body<ResBody>>, S::Error>>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let handling = turns.run(gate::call(service, request));
        let ended = match AssertUnwindSafe(handling).catch_unwind().await {
            Ok(Some(Ok(response))) => return Some(Ok(self.share(&settings, response).await)),
            Ok(Some(Err(error))) => Ok(Some(Err(error))),
            Ok(None) => Ok(None),
            Err(panic) => Err(panic),
        };
        self.end(&settings, Outcome::Unknown).await;
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }

    async fn share<B>(self, settings: &Settings, response: Response<B>) -> Response<gate::Body<B>>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (parts, body) = response.into_parts();
        let is_for_all = is_for_all(parts.status)
            && (settings.share_uncacheable || !is_uncacheable(&parts.headers));
        if !is_for_all || is_endless(&parts) {
            self.end(settings, Outcome::NotKept).await;
            return Response::from_parts(parts, gate::Body::inner(body));
        }
        let (max, within) = (settings.max_response, settings.read_within);
        let (outcome, body) = match read_response(body, max, within).await {
            Ok((data, trailers)) => {
                let answer = Answer::of(&parts, &[], trailers.clone(), data.clone());
                let body = gate::Body::read(data, trailers, Rest::Ended(None));
                (Outcome::Answer(Box::new(answer)), body)
            }
            Err((body, _)) => (Outcome::NotKept, body),
        };
        self.end(settings, outcome).await;
        Response::from_parts(parts, body)
    }

    /// Hands the outcome over to the waiting requests: to other processes by a record, then to the
    /// members.
    async fn end(self, settings: &Settings, outcome: Outcome) {
        let keep_for = settings.keep_for;
        let (mark, retain) = match &outcome {
            Outcome::Answer(answer) if !keep_for.is_zero() && answer.status.is_success() => {
                (KEPT, keep_for)
            }
            _ => (HANDED_OVER, HANDOVER),
        };
        if let Some(guard) = self.claimed {
            keep(guard, (&outcome.encode(mark), retain), STORE_WITHIN).await;
        }
        self.member.end(match outcome {
            Outcome::Answer(answer) => Some(Arc::from(answer)),
            Outcome::NotKept | Outcome::Unknown | Outcome::Value(_) => None,
        });
    }
}

/// Whether an answer with this status may go to requests with other headers. The answers to
/// conditional requests, and to those for a part of the content, are for the client that has asked
/// so. A switch of protocols cannot be copied.
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

/// Whether the answer says that it is for one client only, or that others need not get the same.
fn is_uncacheable(headers: &HeaderMap) -> bool {
    let directives = values(headers, header::CACHE_CONTROL);
    let mut names = directives.map(|directive| directive.split('=').next().unwrap_or_default());
    let is_for_one = names.any(|name| {
        let name = name.trim_end();
        name.eq_ignore_ascii_case("private") || name.eq_ignore_ascii_case("no-store")
    });
    is_for_one || values(headers, header::VARY).any(|name| name == "*")
}

/// The members of a header that is a list. A value that is no text has none.
fn values(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(',').map(str::trim))
}
