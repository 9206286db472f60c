//! The service: the claim of a request, and its way.

use std::{
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tower_service::Service;

use super::{
    begin::{again, begin, count_refusal},
    claim::Claim,
    fingerprint::Fingerprint,
    run::run,
    settings::Settings,
};
use crate::{
    LockKey,
    http::gate::{self, BoxError, ResponseFuture},
    key,
    lock::RequestGuards,
    locks::Wait,
    read_body::{Rebuild, SameBody, WholeBody},
    rejection::{Asked, Reason, Rejection, RequestId, grpc},
};

/// The first part of the keys of idempotent requests, which keeps them apart from plain locks.
const LABEL: &str = "idempotency";

/// A service whose requests run once for each `Idempotency-Key`. See
/// [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct Idempotency<S, M = SameBody> {
    pub(super) inner: S,
    pub(super) settings: Arc<Settings>,
    pub(super) body: PhantomData<M>,
}

impl<S, M, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<S, M>
where
    M: Rebuild<ReqBody, Body: Send + 'static>,
    S: Service<Request<M::Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<M::Body>, Future: Send, Error: Send>,
    ReqBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<gate::Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M::Body, ResBody>;

    /// Always ready: the inner service is made ready for a request that has claimed its key.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let settings = &self.settings;
        let (mut parts, body) = request.into_parts();
        let keyed = keyed(settings, &mut parts);
        // The clone is made ready later, and `self.inner` never: no swap is needed.
        let inner = self.inner.clone();
        match keyed {
            Ok(None) => ResponseFuture::pass(inner, Request::from_parts(parts, M::unread(body))),
            Ok(Some(keyed)) => {
                let handling = handle::<M, _, _, _>(settings.clone(), keyed, inner, parts, body);
                ResponseFuture::run(handling)
            }
            Err(rejection) => ResponseFuture::refuse(rejection, &parts),
        }
    }
}

/// Claims the key, and runs the request or answers it.
async fn handle<M, S, ReqBody, ResBody>(
    settings: Arc<Settings>,
    keyed: Keyed,
    service: S,
    mut parts: Parts,
    body: ReqBody,
) -> Result<Response<gate::Body<ResBody>>, S::Error>
where
    M: Rebuild<ReqBody, Body: Send + 'static>,
    S: Service<Request<M::Body>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Body<Data = Bytes, Error: Into<BoxError>>,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    match begin(&settings, &keyed, &mut parts, body).await {
        Ok(Ok((first, body))) => {
            // Keys further in may come from the body.
            parts.extensions.insert(WholeBody(body.clone()));
            run(first, service, Request::from_parts(parts, M::whole(body))).await
        }
        Ok(Err(answer)) => Ok(again(*answer)),
        Err(rejection) => {
            count_refusal(rejection.reason());
            Ok(keyed.refuse(&settings, rejection).map(gate::Body::whole))
        }
    }
}

/// A request that has a key, which is to be claimed.
#[derive(Debug, Clone)]
pub(super) struct Keyed {
    pub(super) key: LockKey,
    pub(super) scope: LockKey,
    pub(super) name: Arc<str>,
    pub(super) asked: Asked,
    /// How long the request waits for a running request with the same key.
    pub(super) wait: Wait,
}

impl Keyed {
    /// The claim, for the program.
    pub(super) fn claim(&self, fingerprint: Fingerprint, token: u64) -> Claim {
        Claim {
            scope: self.scope.clone(),
            key: self.name.clone(),
            fingerprint,
            token,
            #[cfg(feature = "postgres")]
            in_database: None,
        }
    }

    /// The response of the layer for a refusal of this request.
    pub(super) fn refuse(&self, settings: &Settings, rejection: Rejection) -> Response<Bytes> {
        let rejection = rejection
            .with_retry_after(settings.retry_after)
            .with_idempotency_key(&self.name);
        rejection.to(self.asked).refuse()
    }
}

/// The request with its key; `None` if the request passes straight through.
///
/// The scope counts before the header: a request out of scope, or without a route, needs no key.
fn keyed(settings: &Settings, parts: &mut Parts) -> Result<Option<Keyed>, Rejection> {
    if !settings.methods.contains(&parts.method) {
        return Ok(None);
    }
    let holding = settings.locks.check_holding(settings.holding());
    holding.map_err(|error| Rejection::misconfigured(error.to_string()))?;
    let name = settings.source.read(parts, settings.strict);
    if matches!(name, Ok(None)) && !(settings.required && key::may_have_route(parts)) {
        return Ok(None);
    }
    let several = "the scope of an idempotency layer is one key, not several";
    let scope = match key::one_key(&*settings.scope, parts, several).transpose() {
        Some(scope) => scope.map_err(Rejection::from_key_error),
        None => return Ok(None),
    };
    let name = match name {
        Ok(Some(name)) => Arc::<str>::from(name),
        Ok(None) => {
            return Err(Rejection::new(
                Reason::MissingIdempotencyKey,
                format!(
                    "the request has no {}, and needs one",
                    settings.source.name()
                ),
            ));
        }
        Err(detail) => return Err(Rejection::new(Reason::BadIdempotencyKey, detail)),
    };
    let scope = scope.map_err(|rejection| rejection.with_idempotency_key(&name))?;
    RequestId::give(&mut parts.extensions);
    let key = key::scoped(LABEL, &scope, &name);
    // A layer further out may have claimed the same for this very request, and keeps the answer.
    let is_claimed = RequestGuards::find(&parts.extensions, &settings.locks, &key).is_some();
    Ok((!is_claimed).then(|| Keyed {
        key,
        scope,
        name,
        asked: Asked::by(parts),
        wait: grpc::within_deadline(&parts.headers, settings.wait),
    }))
}
