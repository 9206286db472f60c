//! The beginning of an idempotent request: its key is claimed, or the request is answered without its handler.
//!
//! | the key | the request |
//! |---|---|
//! | is free | claims the key, and runs ([`First`]) |
//! | is claimed with the same fingerprint | waits for the record, up to its limit; then 409 |
//! | is claimed with another fingerprint | 422 |
//! | has the record of an equal request | gets the recorded answer ([`Instead::Again`]) |
//! | has the record of another request | 422 |
//! | has a tombstone | 409 |

use std::{error::Error as StdError, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, request::Parts};
use http_body::Body;

use super::{
    body::IdempotentBody,
    fingerprint::Fingerprint,
    read::{self, Unread},
    record::{Answer, Outcome, Record, Tombstone},
    scope::Counted,
    settings::{Claim, Settings},
};
use crate::{
    Error, ErrorKind, LockGuard,
    lock::RequestGuards,
    locks::NoTurn,
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
            Self::Refuse(rejection) => match rejection.reason() {
                Reason::KeyReused => Idempotent::Conflict,
                Reason::InProgress => Idempotent::InProgress,
                _ => Idempotent::Failed,
            },
        }
    }

    /// The response, which is counted.
    pub(super) fn into_response<B>(
        self,
        settings: &Settings,
        asked: Asked,
    ) -> Response<IdempotentBody<B>> {
        trace::idempotent(self.outcome());
        match self {
            Self::Again(answer) => {
                let mut response = answer.into_response();
                let headers = response.headers_mut();
                headers.insert(REPLAYED, HeaderValue::from_static("true"));
                response
            }
            Self::Refuse(rejection) => settings.render(rejection, asked).map(IdempotentBody::whole),
        }
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
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    let counted = settings.enter(&claim)?;
    let body = match read::request(body, settings.max_request).await {
        Ok(body) => body,
        Err(unread) => return Err(not_read(unread).with_idempotency_key(&claim.name).into()),
    };
    let fingerprint = settings.comparison.fingerprint(parts, &body);
    let claiming = settings.locks.claim(
        &claim.key,
        fingerprint.to_bytes(),
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
            NoTurn::OtherFingerprint => key_reused(&claim).into(),
            NoTurn::Recorded(record) => {
                recorded(record, fingerprint, &claim).unwrap_or_else(Instead::from)
            }
            NoTurn::Failed(error) => failed(error, &settings, &claim).into(),
        }),
    }
}

/// The refusal of a request whose body could not be read.
fn not_read(unread: Unread) -> Rejection {
    match unread {
        Unread::TooLarge => Rejection::new(
            Reason::BodyTooLarge,
            "the request's body is too large to be read before it runs",
        ),
        Unread::Broken(cause) => {
            Rejection::new(Reason::BodyBroken, "the request's body broke off").with_cause(cause)
        }
    }
}

/// The answer to a request whose key has a record.
fn recorded(record: Bytes, fingerprint: Fingerprint, claim: &Claim) -> Result<Instead, Rejection> {
    let refuse = |reason, detail| Rejection::new(reason, detail).with_idempotency_key(&claim.name);
    let record = Record::decode(record).map_err(|why| refuse(Reason::RecordUnreadable, why))?;
    if record.fingerprint != fingerprint {
        return Err(key_reused(claim));
    }
    match record.outcome {
        Outcome::Answer(answer) => Ok(Instead::Again(answer)),
        Outcome::Tombstone(Tombstone::NotKept) => Err(refuse(
            Reason::AnswerNotKept,
            "a request with this Idempotency-Key was completed, and its answer could not be kept",
        )),
        Outcome::Tombstone(Tombstone::Unknown) => Err(refuse(
            Reason::OutcomeUnknown,
            "a request with this Idempotency-Key was begun, and its outcome is not known",
        )),
        Outcome::Value(_) => Err(refuse(
            Reason::RecordUnreadable,
            "the record at this Idempotency-Key is not an answer",
        )),
    }
}

fn key_reused(claim: &Claim) -> Rejection {
    Rejection::new(
        Reason::KeyReused,
        "this Idempotency-Key was used for another request",
    )
    .with_idempotency_key(&claim.name)
}

/// The refusal of a request that could not claim its key.
fn failed(error: Error, settings: &Settings, claim: &Claim) -> Rejection {
    let rejection = match error.kind() {
        ErrorKind::Held => Rejection::new(
            Reason::InProgress,
            "a request with this Idempotency-Key is under way",
        )
        .with_retry_after(settings.retry_after)
        .with_cause(error.into()),
        _ => Rejection::from_error(error, settings.retry_after),
    };
    rejection.with_idempotency_key(&claim.name)
}
