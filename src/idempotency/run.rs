//! The way of a request: claim its key, run and keep the answer, or give the kept one again.

use std::{error::Error as StdError, future::poll_fn, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, request::Parts};
use http_body::Body;
use tower_service::Service;

use super::{
    body::IdempotentBody,
    fingerprint::Fingerprint,
    keep::{Keeping, Kept},
    read::{self, Unread},
    record::{self, Answer, Outcome, Record},
    scope::Place,
    settings::{Claim, Settings},
};
use crate::{
    Error, ErrorKind, LockGuard,
    locks::{Holding, NoTurn},
    middleware::{NotLocked, Turns},
    rejection::{Reason, Rejection},
    trace,
};

/// Under what name a request's guards have the layer's.
const NAME: &str = "idempotency";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const STORED: HeaderName = HeaderName::from_static("idempotency-stored");

/// A request whose turn it is to run.
struct First {
    settings: Arc<Settings>,
    claim: Claim,
    fingerprint: Fingerprint,
    guard: LockGuard,
    place: Place,
}

/// How a request that does not run is answered.
enum Instead {
    Again(Answer),
    Refuse(Rejection),
}

impl From<Rejection> for Instead {
    fn from(rejection: Rejection) -> Self {
        Self::Refuse(rejection)
    }
}

pub(super) async fn handle<S, ReqBody, ResBody>(
    settings: Arc<Settings>,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<IdempotentBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Clone + Send + 'static,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    let (mut parts, body) = request.into_parts();
    let instead = match settings.claim(&mut parts) {
        Ok(None) => {
            let not_claimed = Err(NotLocked::NoKey);
            Turns::note(&mut parts.extensions, Some(NAME.into()), not_claimed);
            let request = Request::from_parts(parts, body);
            return Ok(call(service, request).await?.map(IdempotentBody::inner));
        }
        // A layer further out has claimed the same for this very request, and keeps the answer.
        Ok(Some(claim))
            if Turns::find(&parts.extensions, &settings.locks, &claim.key).is_some() =>
        {
            let request = Request::from_parts(parts, body);
            return Ok(call(service, request).await?.map(IdempotentBody::inner));
        }
        Ok(Some(claim)) => match begin(settings.clone(), claim, &mut parts, body).await {
            Ok((first, body)) => {
                let request = Request::from_parts(parts, body.into());
                return run(first, service, request).await;
            }
            Err(instead) => instead,
        },
        Err(rejection) => rejection.into(),
    };
    Ok(match instead {
        Instead::Again(answer) => again(answer),
        Instead::Refuse(rejection) => settings.render(&rejection).map(IdempotentBody::whole),
    })
}

/// Claims the key, with all that it takes to tell whether it is for the same request.
async fn begin<ReqBody: Body<Data = Bytes>>(
    settings: Arc<Settings>,
    claim: Claim,
    parts: &mut Parts,
    body: ReqBody,
) -> Result<(First, Bytes), Instead> {
    let refuse = |reason, detail: &'static str| {
        Rejection::new(reason, detail)
            .with_idempotency_key(&claim.name)
            .with_retry_after(settings.retry_after)
    };
    let place = settings.scopes.enter(&claim.scope).ok_or_else(|| {
        refuse(
            Reason::TooManyRunning,
            "too many requests of this client are under way",
        )
    })?;
    let body = read::request(body, settings.max_request)
        .await
        .map_err(|unread| match unread {
            Unread::TooLarge => refuse(
                Reason::BodyTooLarge,
                "the request's body is too large to be read before it runs",
            ),
            Unread::Broken => refuse(Reason::BodyBroken, "the request's body broke off"),
        })?;
    let fingerprint = Fingerprint::of(parts, &body);
    let claiming = settings.locks.claim(
        &claim.key,
        fingerprint.to_bytes(),
        settings.wait,
        Holding::default(),
    );
    let miss = match claiming.await {
        Ok(guard) => {
            parts.extensions.insert(claim.name.clone());
            Turns::note(&mut parts.extensions, Some(NAME.into()), Ok(&guard));
            let first = First {
                settings,
                claim,
                fingerprint,
                guard,
                place,
            };
            return Ok((first, body));
        }
        Err(miss) => miss,
    };
    Err(match miss {
        NoTurn::OtherFingerprint => key_reused(&claim).into(),
        NoTurn::Recorded(record) => recorded(record, fingerprint, &claim)?,
        NoTurn::Failed(error) => failed(error, &settings, &claim).into(),
    })
}

/// What a record means for a request.
fn recorded(record: Bytes, fingerprint: Fingerprint, claim: &Claim) -> Result<Instead, Rejection> {
    let refuse = |reason, detail| Rejection::new(reason, detail).with_idempotency_key(&claim.name);
    let record = Record::decode(record).map_err(|why| refuse(Reason::RecordUnreadable, why))?;
    if record.fingerprint != fingerprint {
        return Err(key_reused(claim));
    }
    match record.outcome {
        Outcome::Answer(answer) => Ok(Instead::Again(answer)),
        Outcome::Tombstone => Err(refuse(
            Reason::AnswerNotKept,
            "a request with this Idempotency-Key was completed, and its answer could not be kept",
        )),
        Outcome::Value(_) => Err(refuse(
            Reason::RecordUnreadable,
            "what is kept is not an answer",
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

fn failed(error: Error, settings: &Settings, claim: &Claim) -> Rejection {
    let rejection = match error.kind() {
        ErrorKind::Held => Rejection::new(
            Reason::InProgress,
            "a request with this Idempotency-Key is under way",
        )
        .with_retry_after(settings.retry_after),
        _ => Rejection::from_error(error, settings.retry_after),
    };
    rejection.with_idempotency_key(&claim.name)
}

/// Runs the handler to its end, whether or not anybody still waits for its answer.
async fn run<S, ReqBody, ResBody>(
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
    let task = trace::spawn(async move {
        let _busy = busy;
        // An error, or a panic, drops `first` and with it the turn: the next one runs.
        let response = call(service, request).await?;
        Ok(first.end(response).await)
    });
    match task.await {
        Ok(response) => response,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime shuts down.
        Err(_) => std::future::pending().await,
    }
}

impl First {
    /// Keeps the answer, if it is to be kept, and gives it out.
    async fn end<B>(self, response: Response<B>) -> Response<IdempotentBody<B>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
    {
        let (mut parts, body) = response.into_parts();
        let Self {
            settings,
            claim,
            fingerprint,
            guard,
            place,
        } = self;
        let _place = place;
        if !settings.keeps(&parts) {
            return Response::from_parts(parts, IdempotentBody::inner(body));
        }
        let (outcome, body) = match read::response(body, settings.max_response).await {
            // A switch of protocols cannot be given again.
            read::Response::Whole(bytes, body) if !parts.status.is_informational() => {
                let answer = Answer {
                    status: parts.status,
                    headers: record::kept(&parts.headers),
                    body: bytes,
                };
                (Outcome::Answer(answer), body)
            }
            read::Response::Whole(_, body) | read::Response::Streams(body) => {
                (Outcome::Tombstone, body)
            }
        };
        let record = Record {
            fingerprint,
            outcome,
        };
        let keeping = Keeping {
            locks: settings.locks.clone(),
            key: claim.key,
            claim: fingerprint.to_bytes(),
            record: record.encode(),
            retain: settings.retain,
            within: settings.store_within,
        };
        let stored = match keeping.keep(guard).await {
            Kept::Yes => return Response::from_parts(parts, body),
            Kept::Superseded => {
                let detail = "the lock was lost, and another request with this Idempotency-Key has run since";
                let rejection =
                    Rejection::new(Reason::LeaseLost, detail).with_idempotency_key(&claim.name);
                return settings.render(&rejection).map(IdempotentBody::whole);
            }
            Kept::No => "false",
            Kept::Unknown => "unknown",
        };
        parts
            .headers
            .insert(STORED, HeaderValue::from_static(stored));
        Response::from_parts(parts, body)
    }
}

/// A kept answer, once more.
fn again<B>(answer: Answer) -> Response<IdempotentBody<B>> {
    let mut response = Response::new(IdempotentBody::whole(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

async fn call<S, B>(mut service: S, request: Request<B>) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>>,
{
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
