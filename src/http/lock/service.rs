//! The service, and the way of a request: its keys, the wait for its turn, and the handler under a
//! watched lease.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::Either;
use http::{Extensions, Request, Response, request::Parts};
use smallvec::{SmallVec, smallvec};
use tower_service::Service;

use super::{
    OnLoss,
    end::{End, lost_in_handler},
    request_guards::{Layer, NotLocked, RequestGuards},
    settings::Settings,
};
use crate::{
    Error, ErrorKind, LockGuard, LockKey,
    http::gate::{Body, Guards, HeldTurn, ResponseFuture, run_to_end},
    key::{Derived, KeyMap},
    locks::{
        Several, Wait,
        reentry::{self, Held},
    },
    rejection::{Asked, Reason, Rejection, grpc},
    store::Mode,
    trace,
};

/// A service whose requests have their turn at their key. See
/// [`DistributedLockLayer`](super::DistributedLockLayer).
#[derive(Debug, Clone)]
pub struct DistributedLock<S> {
    pub(super) inner: S,
    pub(super) settings: Arc<Settings>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for DistributedLock<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S: Service<Request<ReqBody>, Future: Send, Error: Send>,
    ReqBody: Send + 'static,
    ResBody: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    /// Always ready: the inner service is made ready for a request once its turn has come.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let settings = &self.settings;
        let (mut parts, body) = request.into_parts();
        let plan = plan(settings, &mut parts);
        // Usually the service that was polled ready has to be swapped out and used, since a clone
        // need not be ready. Here `self.inner` is never polled, and the clone is, later.
        let inner = self.inner.clone();
        match plan {
            Ok(Err(reason)) => {
                note(settings, &mut parts.extensions, Err(reason));
                ResponseFuture::pass(inner, Request::from_parts(parts, body))
            }
            Ok(Ok(wanted)) => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::run(handle(settings.clone(), wanted, inner, request))
            }
            Err(rejection) => ResponseFuture::refuse(rejection, &parts),
        }
    }
}

/// The turn that a request runs under.
struct Wanted {
    keys: Keys,
    mode: Mode,
    wait: Wait,
}

/// Keys in the order of the key function, each once. Those that layers further out have locked come
/// with their guard.
type Keys = SmallVec<[(LockKey, Option<LockGuard>); 1]>;

/// Decides the way of a request, which is locked, passes or is refused: by its method, then by its
/// key, then by the turns that layers further out hold.
fn plan(settings: &Settings, parts: &mut Parts) -> Result<Result<Wanted, NotLocked>, Rejection> {
    if !settings.methods.contains(&parts.method) {
        return Ok(Err(NotLocked::Method));
    }
    let mode = settings.modes.of(&parts.method);
    let mode = settings.locks.check_holding(settings.holding).and(mode);
    let mode = mode.map_err(|error| Rejection::misconfigured(error.to_string()))?;
    let with_guard = |parts: &Parts, key: LockKey| {
        let held = RequestGuards::find(&parts.extensions, &settings.locks, &key);
        (key, held)
    };
    let keys: Keys = match settings.key.derive(parts) {
        Ok(Derived::Key(key)) => smallvec![with_guard(parts, key)],
        Ok(Derived::Keys(keys)) => {
            let keys = each_once(keys, settings.max_keys_per_request)?;
            keys.into_iter().map(|key| with_guard(parts, key)).collect()
        }
        Ok(Derived::NoLock) => Keys::new(),
        Ok(Derived::NoRoute) => return Ok(Err(NotLocked::NoRoute)),
        Err(error) => return Err(Rejection::from_key_error(error)),
    };
    if keys.is_empty() {
        return Ok(Err(NotLocked::NoKey));
    }
    let mut held = keys.iter().filter_map(|(_, held)| held.as_ref());
    if let Some(held) = held.find(|held| !held.mode().includes(mode)) {
        return Err(other_mode(held, mode));
    }
    let wait = grpc::within_deadline(&parts.headers, settings.wait);
    Ok(Ok(Wanted { keys, mode, wait }))
}

/// The keys of a request, each once.
///
/// Clients may decide the number of keys, so that the work is linear and ends at the limit.
fn each_once(keys: Vec<LockKey>, limit: usize) -> Result<Vec<LockKey>, Rejection> {
    let (mut known, mut wanted) = (KeyMap::default(), Vec::new());
    for key in keys {
        if known.insert(key.clone(), ()).is_some() {
            continue;
        }
        if wanted.len() == limit {
            let detail = format!("the request names more than {limit} keys");
            return Err(Rejection::new(Reason::BadKey, detail));
        }
        wanted.push(key);
    }
    Ok(wanted)
}

/// Waits for the turn, runs the handler under it, and ends it.
///
/// A request that is dropped at any `.await` gives up its place in line, its handler and its turn,
/// in this order. Nothing is spawned, unless the layer is detached.
async fn handle<S, ReqBody, ResBody>(
    settings: Arc<Settings>,
    wanted: Wanted,
    mut service: S,
    mut request: Request<ReqBody>,
) -> Result<Response<Body<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future: Send, Error: Send>,
    S: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: http_body::Body<Data = Bytes> + Send + 'static,
{
    let asked = Asked::of(request.headers(), request.extensions());
    let refuse = |error| {
        let rejection = Rejection::from_error(error, settings.retry_after).to(asked);
        Ok(rejection.refuse().map(Body::whole))
    };
    let guards = match acquire(&settings, wanted).await {
        Ok(guards) => guards,
        // A layer further out has lost its lease.
        Err(error) if error.kind() == ErrorKind::Lost => return refuse(lost_before()),
        Err(error) => return refuse(error),
    };
    note(
        &settings,
        request.extensions_mut(),
        guards.as_deref().map_err(|reason| *reason),
    );
    let mut turn = HeldTurn::new(guards.unwrap_or_default(), settings.loss == OnLoss::Cancel);

    let readied = turn.while_held(|_, cx| service.poll_ready(cx)).await;
    let is_ready = readied.transpose()?.is_some();
    // A handler that has not begun is not begun under a lost lease, not even with
    // `OnLoss::Finish`. Nothing was done, and the request can be sent again.
    if !is_ready || turn.is_lost() {
        return refuse(lost_before());
    }
    let outcome = {
        let _running = settings.count_handler(request.extensions());
        let held = reentry::with(turn.guards());
        let handling = under(&held, turn.guards(), || {
            if !settings.detached {
                return Either::Left(service.call(request));
            }
            let mut turns = RequestGuards::for_task(request.extensions());
            let handling = service.call(request);
            Either::Right(run_to_end(&settings.locks, async move {
                turns.run(handling).await
            }))
        });
        let mut handling = pin!(handling);
        turn.while_held(|guards, cx| under(&held, guards, || handling.as_mut().poll(cx)))
            .await
    };
    // The handler is dropped by now: it must not run beside the next holder's, and its future may
    // have held guards.
    let Some(outcome) = outcome else {
        drop(turn);
        return refuse(lost_in_handler());
    };
    match End::after(&outcome, &settings).end(turn).await {
        Ok(None) => Ok(outcome?.map(Body::inner)),
        Ok(Some(turn)) => Ok(outcome?.map(|body| Body::inner(body).holding(turn))),
        Err(error) => refuse(error),
    }
}

/// The error of a request whose handler has not begun.
fn lost_before() -> Error {
    let detail = "the lease was lost before the handler could begin";
    Error::new(ErrorKind::Held, detail)
}

/// Adds the outcome of the lock to the request's extensions.
fn note(settings: &Settings, to: &mut Extensions, guards: Result<&[LockGuard], NotLocked>) {
    let (name, on_loss) = (settings.name.clone(), settings.loss);
    RequestGuards::add(to, Layer::Lock { name, on_loss }, guards);
}

/// Runs a step of the handler with its turns in the task-local of [`reentry`], and within the span
/// of its first turn.
fn under<T>(held: &Held, guards: &[LockGuard], step: impl FnOnce() -> T) -> T {
    let step = || reentry::scope(held, step);
    match guards.first() {
        Some(guard) => guard.hold().scope(step),
        None => step(),
    }
}

/// Waits for the turn, unless layers further out have locked all keys of the request. A layer that
/// fails open lets the request go on without a turn.
async fn acquire(settings: &Settings, wanted: Wanted) -> Result<Result<Guards, NotLocked>, Error> {
    if wanted.keys.iter().all(|(_, held)| held.is_some()) {
        let held = wanted.keys.into_iter().filter_map(|(_, held)| held);
        return Ok(Ok(held.collect()));
    }
    if settings.fail_open && settings.outage.is_on() {
        trace::unlocked();
        return Ok(Err(NotLocked::FailedOpen));
    }
    match lock_all(settings, &wanted).await {
        Err(error) if settings.fail_open && error.kind() == ErrorKind::Unreachable => {
            if settings.outage.begin() {
                trace::failed_open(&error);
            }
            trace::unlocked();
            Ok(Err(NotLocked::FailedOpen))
        }
        outcome => {
            // Other errors, such as a line that is full, are no answers of the store.
            let is_answer = |error: &Error| error.kind() == ErrorKind::Held;
            if settings.fail_open && outcome.as_ref().err().is_none_or(is_answer) {
                settings.outage.end();
            }
            outcome.map(Ok)
        }
    }
}

/// Takes all keys, or none, within one limit for all.
async fn lock_all(settings: &Settings, wanted: &Wanted) -> Result<Guards, Error> {
    let (keys, mode, wait) = (&wanted.keys, wanted.mode, wanted.wait);
    let (locks, holding, fail_fast) = (&settings.locks, settings.holding, settings.fail_open);
    if let [(key, None)] = keys.as_slice() {
        let lock = locks.lock_for_layer(key, mode, wait, holding, fail_fast);
        return Ok(smallvec![lock.await?]);
    }
    let held: Guards = keys.iter().filter_map(|(_, held)| held.clone()).collect();
    let several = Several {
        locks,
        keys: Ok(keys.iter().map(|(key, _)| key.clone()).collect()),
        held: &held,
        mode,
        wait,
        holding,
        fail_fast,
    };
    Ok(several.lock().await?.into())
}

/// The refusal of a request whose key a layer further out has locked in a mode that is not enough.
fn other_mode(held: &LockGuard, mode: Mode) -> Rejection {
    let held = held.mode();
    Rejection::misconfigured(format!(
        "a layer further out has locked the same key ({held}), and this layer wants the key {mode}: use one layer, or different keys"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{DistributedLockLayer, Locks, key::KeyError};

    /// The time that so many plans take, of a request that names so many keys.
    fn time_to_plan(plans: usize, count: usize) -> Duration {
        let keys = (0..count).map(|at| LockKey::new(format!("key/{at}")).unwrap());
        let keys: Vec<_> = keys.collect();
        let derive = move |_: &mut Parts| Ok::<_, KeyError>(Derived::Keys(keys.clone()));
        let layer =
            DistributedLockLayer::new(Locks::in_memory(), derive).max_keys_per_request(count);
        let (mut parts, ()) = Request::post("/").body(()).unwrap().into_parts();
        let begun = std::time::Instant::now();
        for _ in 0..plans {
            let plan = plan(layer.settings(), &mut parts);
            assert!(matches!(plan, Ok(Ok(_))));
        }
        begun.elapsed()
    }

    #[test]
    fn the_plan_of_a_request_is_linear_in_its_keys() {
        // Both plan as many keys. With the square of the keys of a request, the second takes many
        // times as long in every round, and else in none that the machine does not disturb.
        let mut rounds = (0..10).map(|_| (time_to_plan(32, 250), time_to_plan(1, 8_000)));
        assert!(rounds.any(|(few, many)| many < 6 * few));
    }
}
