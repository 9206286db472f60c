//! The beginning of an idempotent request: its key is claimed, or the request is answered without
//! its handler.
//!
//! | the key | the request |
//! |---|---|
//! | is free | claims the key, and runs ([`First`]) |
//! | is claimed with the same fingerprint | waits for the record, up to its limit; then 409 |
//! | is claimed with the same fingerprint, at most once, by a process that is dead | the same, and the outcome is unknown |
//! | is claimed with another fingerprint | 422, with the parts that differ |
//! | has the record of an equal request | gets the recorded answer ([`Instead::Again`]) |
//! | has the record of another request | 422 |
//! | has a tombstone | 409 |

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, request::Parts};
use http_body::Body;

use super::{
    fingerprint::Fingerprint,
    record::{Answer, Outcome, Record, Tombstone},
    scope::{self, Counted},
    service::Claim,
    settings::Settings,
    settle,
};
use crate::{
    Error, ErrorKind, LockGuard,
    http::gate::{self, BoxError},
    lock::RequestGuards,
    locks::NoTurn,
    read_body::read,
    rejection::{Asked, Reason, Rejection},
    trace::{self, Idempotent},
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A request that has claimed its key, and will run.
pub(super) struct First {
    pub(super) settings: Arc<Settings>,
    pub(super) claim: Claim,
    pub(super) fingerprint: Fingerprint,
    pub(super) guard: LockGuard,
    pub(super) counted: Counted,
}

/// The answer to a request that does not run.
pub(super) enum Instead {
    Again(Box<Answer>),
    Refuse(Rejection),
}

impl From<Rejection> for Instead {
    fn from(rejection: Rejection) -> Self {
        Self::Refuse(rejection)
    }
}

impl Instead {
    /// The answer, as the telemetry needs it.
    fn outcome(&self) -> Idempotent {
        match self {
            Self::Again(_) => Idempotent::Replayed,
            Self::Refuse(rejection) => {
                // The counts of all reasons are in another metric.
                let known = [
                    (Reason::KeyReused, Idempotent::Conflict),
                    (Reason::InProgress, Idempotent::InProgress),
                    (Reason::OutcomeUnknown, Idempotent::Unknown),
                ];
                let mut known = known.into_iter();
                let found = known.find(|(reason, _)| *reason == rejection.reason());
                found.map_or(Idempotent::Failed, |(_, outcome)| outcome)
            }
        }
    }

    /// The response, which is counted.
    pub(super) fn into_response<B>(
        self,
        settings: &Settings,
        asked: Asked,
    ) -> Response<gate::Body<B>> {
        let outcome = self.outcome();
        trace::idempotent(outcome);
        let mut response = match self {
            Self::Again(answer) => answer.into_response(),
            Self::Refuse(rejection) => settings.render(rejection, asked).map(gate::Body::whole),
        };
        if outcome == Idempotent::Replayed {
            let headers = response.headers_mut();
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// Reads the body and claims the key.
pub(super) async fn begin<B>(
    settings: Arc<Settings>,
    claim: Claim,
    parts: &mut Parts,
    body: B,
) -> Result<(First, Bytes), Instead>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    // Before the key is claimed: a slow upload holds no key.
    let body = read(body, settings.max_request).await;
    let body = body.map_err(|rejection| rejection.with_idempotency_key(&claim.name))?;
    let counted = enter(&settings, &claim)?;
    let fingerprint = settings.comparison.fingerprint(parts, &body);
    let claiming = settings.locks.claim(
        &claim.key,
        settings.claimed(fingerprint),
        claim.wait,
        settings.holding(),
    );
    match claiming.await {
        Ok(guard) => {
            trace::idempotent(Idempotent::First);
            parts.extensions.insert(claim.name.clone());
            RequestGuards::add_claim(&mut parts.extensions, &guard);
            let first = First {
                settings,
                claim,
                fingerprint,
                guard,
                counted,
            };
            Ok((first, body))
        }
        Err(no_turn) => Err(match no_turn {
            NoTurn::OtherFingerprint(theirs) => {
                let theirs = Fingerprint::of_claim(&theirs).map(|(theirs, _)| theirs);
                match theirs.map(|theirs| (theirs == fingerprint, theirs)) {
                    // The same request, by a layer with other settings.
                    Some((true, _)) => in_progress(&settings, &claim).into(),
                    Some((false, theirs)) => {
                        key_reused(&claim, &theirs.differences(fingerprint)).into()
                    }
                    None => key_reused(&claim, &[]).into(),
                }
            }
            NoTurn::Recorded(record) => {
                recorded(record, fingerprint, &claim).unwrap_or_else(Instead::from)
            }
            NoTurn::Failed(error) if is_abandoned(&error, &settings, &claim).await => {
                outcome_unknown(
                    &claim,
                    "a request with this Idempotency-Key was begun by a process that has died, and its outcome is not known",
                )
                .into()
            }
            NoTurn::Failed(error) => failed(error, &settings, &claim).into(),
        }),
    }
}

/// Counts the request, whose body was read, among the requests of the scope that are under way in
/// this process.
fn enter(settings: &Settings, claim: &Claim) -> Result<Counted, Rejection> {
    let counted = scope::enter(&settings.locks, &claim.scope, settings.max_running);
    counted.ok_or_else(|| {
        let detail = "too many requests of this client are under way";
        Rejection::new(Reason::TooManyRunning, detail)
            .with_idempotency_key(&claim.name)
            .with_retry_after(settings.retry_after)
    })
}

/// The answer to a request whose key has a record.
fn recorded(record: Bytes, fingerprint: Fingerprint, claim: &Claim) -> Result<Instead, Rejection> {
    let refuse = |reason, detail| Rejection::new(reason, detail).with_idempotency_key(&claim.name);
    let record = Record::decode(record).map_err(|why| refuse(Reason::RecordUnreadable, why))?;
    if record.fingerprint != fingerprint {
        return Err(key_reused(
            claim,
            &record.fingerprint.differences(fingerprint),
        ));
    }
    match record.outcome {
        Outcome::Answer(answer) => Ok(Instead::Again(answer)),
        Outcome::Tombstone(Tombstone::NotKept) => Err(refuse(
            Reason::AnswerNotKept,
            "a request with this Idempotency-Key was completed, and its answer could not be kept",
        )),
        Outcome::Tombstone(Tombstone::Unknown) => Err(outcome_unknown(
            claim,
            "a request with this Idempotency-Key was begun, and its outcome is not known",
        )),
        Outcome::Value(_) => Err(refuse(
            Reason::RecordUnreadable,
            "the record at this Idempotency-Key is not an answer",
        )),
    }
}

/// The refusal of a request that is not the one with this key. `parts`: the names of those that
/// differ.
fn key_reused(claim: &Claim, parts: &[&str]) -> Rejection {
    let detail = "this Idempotency-Key was used for another request";
    let detail = match parts {
        [] => detail.to_owned(),
        parts => format!("{detail}, with another {}", parts.join(" and another ")),
    };
    Rejection::new(Reason::KeyReused, detail).with_idempotency_key(&claim.name)
}

fn outcome_unknown(claim: &Claim, detail: &'static str) -> Rejection {
    Rejection::new(Reason::OutcomeUnknown, detail).with_idempotency_key(&claim.name)
}

fn in_progress(settings: &Settings, claim: &Claim) -> Rejection {
    Rejection::new(
        Reason::InProgress,
        "a request with this Idempotency-Key is under way",
    )
    .with_idempotency_key(&claim.name)
    .with_retry_after(settings.retry_after)
}

/// Whether the request that holds the key was begun by a process that is dead.
async fn is_abandoned(error: &Error, settings: &Settings, claim: &Claim) -> bool {
    if !settings.at_most_once || error.kind() != ErrorKind::Held {
        return false;
    }
    let seen = settings.locks.inspect(claim.key.clone()).await;
    seen.is_ok_and(|seen| seen.holder().is_some_and(settle::is_abandoned))
}

/// The refusal of a request that could not claim its key.
fn failed(error: Error, settings: &Settings, claim: &Claim) -> Rejection {
    if error.kind() == ErrorKind::Held {
        return in_progress(settings, claim).with_cause(error.into());
    }
    Rejection::from_error(error, settings.retry_after).with_idempotency_key(&claim.name)
}
