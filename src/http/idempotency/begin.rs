//! The beginning of an idempotent request: its key is claimed, or the request is answered without
//! its handler.
//!
//! | the key | the request |
//! |---|---|
//! | is free | claims the key, and runs ([`First`]) |
//! | is claimed with the same fingerprint | waits for the record, up to its limit; then 409 |
//! | is claimed with the same fingerprint, at most once, by a process that is dead | the same, and the outcome is unknown |
//! | is claimed with another fingerprint | 422, with the parts that differ |
//! | has the record of an equal request | gets the recorded answer ([`again`]) |
//! | has the record of another request | 422 |
//! | has a tombstone | 409 |
//!
//! Before a request runs, and before it is told that the outcome of an earlier one is not known,
//! the program is asked ([`recall`]).

use std::{slice, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, request::Parts};
use http_body::Body;

use super::{
    fingerprint::Fingerprint,
    keep::Claimed,
    recall::recall,
    record::{Answer, Outcome},
    scope::{self, Admitted},
    service::Keyed,
    settings::Settings,
    settle::abandoned,
};
use crate::{
    ErrorKind,
    http::gate::{self, BoxError},
    lock::{Layer, RequestGuards},
    locks::NoTurn,
    read_body::read,
    rejection::{Reason, Rejection},
    store::Owner,
    trace::{self, Idempotent},
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A request that has claimed its key, and will run.
pub(super) struct First {
    pub(super) settings: Arc<Settings>,
    pub(super) keyed: Keyed,
    pub(super) fingerprint: Fingerprint,
    pub(super) claimed: Claimed,
    _counted: Admitted,
}

/// The response to a request that was answered before.
pub(super) fn again<B>(answer: Answer) -> Response<gate::Body<B>> {
    trace::idempotent(Idempotent::Replayed);
    let mut response = answer.into_response();
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Counts a request that is refused for this reason. The counts of all reasons are in another
/// metric.
pub(super) fn count_refusal(reason: Reason) {
    let known = [
        (Reason::KeyReused, Idempotent::Conflict),
        (Reason::InProgress, Idempotent::InProgress),
        (Reason::OutcomeUnknown, Idempotent::Unknown),
    ];
    let found = known.into_iter().find(|(known, _)| *known == reason);
    trace::idempotent(found.map_or(Idempotent::Failed, |(_, outcome)| outcome));
}

/// Reads the body and claims the key. The answer, if the request was answered before.
pub(super) async fn begin<B>(
    settings: &Arc<Settings>,
    keyed: &Keyed,
    parts: &mut Parts,
    body: B,
) -> Result<Result<(First, Bytes), Box<Answer>>, Rejection>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    // Before the key is claimed: a slow upload holds no key.
    let body = read(body, settings.max_request).await?;
    // An upload that never ends counts for nobody.
    let counted = scope::enter(&settings.locks, &keyed.scope, settings.max_running);
    let detail = "too many requests of this client are under way";
    let counted = counted.ok_or_else(|| Rejection::new(Reason::TooManyRunning, detail))?;
    let fingerprint = settings.comparison.fingerprint(parts, &body);
    let claiming = settings.locks.claim(
        &keyed.key,
        settings.claimed(fingerprint),
        keyed.wait,
        settings.holding(),
    );
    let guard = match claiming.await {
        Ok(guard) => guard,
        Err(no_turn) => {
            let answering = Box::pin(without_turn(no_turn, settings, keyed, fingerprint));
            return answering.await.map(Err);
        }
    };
    let claim = keyed.claim(fingerprint, guard.token());
    #[cfg(feature = "postgres")]
    let claim = claim.within_database(settings, &guard);
    let turn = Ok(slice::from_ref(&guard));
    RequestGuards::add(&mut parts.extensions, Layer::Idempotency, turn);
    let mut first = First {
        settings: settings.clone(),
        keyed: keyed.clone(),
        fingerprint,
        claimed: Claimed::new(guard),
        _counted: counted,
    };
    if settings.recall.is_some()
        // In a box: most layers ask for nothing, and all would carry the room for it.
        && let Some(answer) = Box::pin(recall(settings, claim.clone())).await?
    {
        Box::pin(first.recalled(&answer)).await;
        return Ok(Err(answer));
    }
    trace::idempotent(Idempotent::First);
    parts.extensions.insert(claim);
    Ok(Ok((first, body)))
}

/// The answer to a request that has not claimed its key.
async fn without_turn(
    no_turn: NoTurn,
    settings: &Settings,
    keyed: &Keyed,
    fingerprint: Fingerprint,
) -> Result<Box<Answer>, Rejection> {
    let in_progress = Rejection::new(
        Reason::InProgress,
        "a request with this Idempotency-Key is under way",
    );
    let mut may_be_abandoned = false;
    let mut refusal = match no_turn {
        NoTurn::OtherFingerprint(theirs) => match Fingerprint::of_claim(&theirs) {
            // The same request, by a layer with other settings.
            Some((theirs, alive)) if theirs == fingerprint => {
                may_be_abandoned = alive.is_some();
                in_progress
            }
            Some((theirs, _)) => key_reused(theirs, fingerprint),
            None => key_reused(fingerprint, fingerprint),
        },
        NoTurn::Recorded(record) => match recorded(record, fingerprint) {
            Ok(answer) => return Ok(answer),
            Err(refusal) => refusal,
        },
        NoTurn::Failed(error) if error.kind() == ErrorKind::Held => {
            may_be_abandoned = settings.at_most_once;
            in_progress.with_cause(error.into())
        }
        NoTurn::Failed(error) => Rejection::from_error(error, settings.retry_after),
    };
    let mut dead = None;
    if may_be_abandoned {
        dead = abandoned_by(settings, keyed).await;
    }
    if dead.is_some() {
        refusal = Rejection::new(
            Reason::OutcomeUnknown,
            "a request with this Idempotency-Key was begun by a process that has died, and its outcome is not known",
        );
    }
    if !refusal.reason().was_begun_before() {
        return Err(refusal);
    }
    let recalled = recall(settings, keyed.claim(fingerprint, 0)).await?;
    let answer = recalled.ok_or(refusal)?;
    if let Some(owner) = dead {
        let record = settings.record_of(&answer, fingerprint);
        // The next duplicate asks again, if the record does not arrive.
        let _ = settings.locks.record_for(&keyed.key, owner, record).await;
    }
    Ok(answer)
}

/// The answer to a request whose key has a record.
fn recorded(record: Bytes, fingerprint: Fingerprint) -> Result<Box<Answer>, Rejection> {
    let record = Outcome::decode(record);
    let (theirs, outcome) = record.map_err(|why| Rejection::new(Reason::RecordUnreadable, why))?;
    if theirs != fingerprint {
        return Err(key_reused(theirs, fingerprint));
    }
    let (reason, detail) = match outcome {
        Outcome::Answer(answer) => return Ok(answer),
        Outcome::NotKept => (
            Reason::AnswerNotKept,
            "a request with this Idempotency-Key was completed, and its answer could not be kept",
        ),
        Outcome::Unknown => (
            Reason::OutcomeUnknown,
            "a request with this Idempotency-Key was begun, and its outcome is not known",
        ),
        Outcome::Value(_) => (
            Reason::RecordUnreadable,
            "the record at this Idempotency-Key is not an answer",
        ),
    };
    Err(Rejection::new(reason, detail))
}

/// The refusal of a request that is not the one with this key. Names the parts that differ, as far
/// as the fingerprints tell.
pub(super) fn key_reused(theirs: Fingerprint, ours: Fingerprint) -> Rejection {
    let detail = "this Idempotency-Key was used for another request";
    let detail = match &theirs.differences(ours)[..] {
        [] => detail.to_owned(),
        parts => format!("{detail}, with another {}", parts.join(" and another ")),
    };
    Rejection::new(Reason::KeyReused, detail)
}

/// The owner of the key, if it is held for a request that a dead process has begun.
async fn abandoned_by(settings: &Settings, keyed: &Keyed) -> Option<Owner> {
    let seen = settings.locks.inspect(keyed.key.clone()).await.ok()?;
    seen.holder().and_then(abandoned).map(|(owner, _)| owner)
}
