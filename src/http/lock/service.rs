//! The service, and the first steps of a request: its keys, and the wait for its turn.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    LockBody, ResponseFuture,
    held::Guards,
    request_guards::{NotLocked, RequestGuards},
    settings::Settings,
};
use crate::{
    Error, ErrorKind, LockGuard, LockKey,
    key::{Derived, KeyMap},
    locks::Wait,
    rejection::{Asked, Reason, Rejection, grpc},
    store::Mode,
    time::later,
    trace,
};

/// A service whose requests have their turn at their key. See [`DistributedLockLayer`](super::DistributedLockLayer).
#[derive(Debug, Clone)]
pub struct DistributedLock<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> DistributedLock<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for DistributedLock<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<LockBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    /// Always ready: the inner service is made ready for a request once its turn has come.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let plan = self.settings.plan(&mut parts);
        let asked = Asked::by(&parts);
        let request = Request::from_parts(parts, body);
        // Usually the service that was polled ready has to be swapped out and used, since a clone need not be
        // ready. Here `self.inner` is never polled, and the clone is, later: see `poll_ready`.
        ResponseFuture::new(
            self.settings.clone(),
            self.inner.clone(),
            request,
            plan,
            asked,
        )
    }
}

/// The way of a request through the layer.
pub(super) enum Plan {
    /// The request is not locked.
    Pass(NotLocked),
    /// Layers further out have locked all keys of the request.
    Enter(Guards),
    /// The request waits for its turn.
    Lock(Wanted),
    /// The key function has failed.
    Refuse(Rejection),
}

/// The turn that a request wants.
pub(super) struct Wanted {
    keys: Keys,
    mode: Mode,
    /// How long the request waits at most; not at all if `None`.
    wait: Option<Duration>,
}

/// The keys of a turn. One, as usual, needs no list.
enum Keys {
    One(LockKey),
    /// In the order of the key function, each once. Keys that layers further out have locked come with their guard.
    Several(Vec<(LockKey, Option<LockGuard>)>),
}

impl Settings {
    /// Decides the way of a request: by its method, then by its key, then by the turns that layers further out hold.
    pub(super) fn plan(&self, parts: &mut Parts) -> Plan {
        if !self.methods.contains(&parts.method) {
            return Plan::Pass(NotLocked::Method);
        }
        let mode = self.modes.of(&parts.method);
        let mode = self.locks.check_holding(self.holding).and(mode);
        let mode = match mode {
            Ok(mode) => mode,
            Err(error) => return Plan::Refuse(Rejection::misconfigured(error.to_string())),
        };
        let keys = match self.key.derive(parts) {
            Ok(Derived::Key(key)) => {
                match RequestGuards::find(&parts.extensions, &self.locks, &key) {
                    Some(held) if is_enough(&held, mode) => {
                        return Plan::Enter(Guards::One(held));
                    }
                    Some(held) => return Plan::Refuse(other_mode(&held, mode)),
                    None => Keys::One(key),
                }
            }
            Ok(Derived::Keys(keys)) => {
                let wanted = match self.each_once(parts, keys) {
                    Ok(wanted) => wanted,
                    Err(rejection) => return Plan::Refuse(rejection),
                };
                if wanted.is_empty() {
                    return Plan::Pass(NotLocked::NoKey);
                }
                let mut held = wanted.iter().flat_map(|(_, held)| held);
                if let Some(held) = held.find(|held| !is_enough(held, mode)) {
                    return Plan::Refuse(other_mode(held, mode));
                }
                let held = wanted.iter().map(|(_, held)| held.clone());
                if let Some(held) = held.collect::<Option<Vec<_>>>() {
                    return Plan::Enter(Guards::from(held));
                }
                Keys::Several(wanted)
            }
            Ok(Derived::NoLock) => return Plan::Pass(NotLocked::NoKey),
            Ok(Derived::NoRoute) => return Plan::Pass(NotLocked::NoRoute),
            Err(error) => return Plan::Refuse(Rejection::from_key_error(error)),
        };
        let wait = self.wait.map(|wait| within_deadline(parts, wait));
        Plan::Lock(Wanted { keys, mode, wait })
    }

    /// The keys of a request, each once, with the guards of layers further out.
    ///
    /// Clients may decide the number of keys, so that the work is linear and ends at the limit.
    fn each_once(
        &self,
        parts: &Parts,
        keys: Vec<LockKey>,
    ) -> Result<Vec<(LockKey, Option<LockGuard>)>, Rejection> {
        let limit = self.max_keys_per_request;
        let (mut known, mut wanted) = (KeyMap::default(), Vec::new());
        for key in keys {
            if known.insert(key.clone(), ()).is_some() {
                continue;
            }
            if wanted.len() == limit {
                let detail = format!("the request names more than {limit} keys");
                return Err(Rejection::new(Reason::BadKey, detail));
            }
            let held = RequestGuards::find(&parts.extensions, &self.locks, &key);
            wanted.push((key, held));
        }
        Ok(wanted)
    }

    /// Waits for the turn; `None` if the request may go on without one.
    pub(super) async fn acquire(self: Arc<Self>, wanted: Wanted) -> Result<Option<Guards>, Error> {
        if self.fail_open && self.outage.is_on() {
            trace::unlocked();
            return Ok(None);
        }
        let until = wanted.wait.map(|limit| later(Instant::now(), limit));
        let outcome = match wanted.keys {
            Keys::One(key) => {
                let guard = self.lock(&key, wanted.mode, until).await;
                guard.map(Guards::One)
            }
            Keys::Several(keys) => self.lock_all(keys, wanted.mode, until).await,
        };
        match outcome {
            Err(error) if self.fail_open && error.kind() == ErrorKind::Unreachable => {
                if self.outage.begin() {
                    trace::failed_open(&error);
                }
                trace::unlocked();
                Ok(None)
            }
            outcome => {
                // Other errors, such as a line that is full, are no answers of the store.
                let is_answer = |error: &Error| error.kind() == ErrorKind::Held;
                if self.fail_open && outcome.as_ref().err().is_none_or(is_answer) {
                    self.outage.end();
                }
                outcome.map(Some)
            }
        }
    }

    /// Takes one key after another, in one fixed order, within one limit for all. On an error, the taken keys are released.
    async fn lock_all(
        &self,
        wanted: Vec<(LockKey, Option<LockGuard>)>,
        mode: Mode,
        until: Option<Instant>,
    ) -> Result<Guards, Error> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by(|&one, &other| wanted[one].0.cmp(&wanted[other].0));
        loop {
            let mut guards: Vec<Option<LockGuard>> = vec![None; wanted.len()];
            for &at in &order {
                let (key, held) = &wanted[at];
                guards[at] = match held {
                    Some(held) => Some(held.clone()),
                    None => Some(self.lock(key, mode, until).await?),
                };
            }
            // The wait for the later keys may have outlasted the leases of the earlier ones.
            let is_held = |((_, held), guard): (&(_, Option<LockGuard>), &Option<LockGuard>)| {
                held.is_some() || guard.as_ref().is_some_and(LockGuard::begin_anew)
            };
            if wanted.len() == 1 || wanted.iter().zip(&guards).all(is_held) {
                let guards = guards.into_iter().flatten();
                return Ok(Guards::from(guards.collect::<Vec<_>>()));
            }
        }
    }

    /// Takes one key, within the time that is left.
    async fn lock(
        &self,
        key: &LockKey,
        mode: Mode,
        until: Option<Instant>,
    ) -> Result<LockGuard, Error> {
        let wait = until.map_or(Wait::NotAtAll, |until| {
            Wait::AtMost(until.saturating_duration_since(Instant::now()))
        });
        let Self {
            holding, fail_open, ..
        } = *self;
        self.locks
            .lock_for_layer(key, mode, wait, holding, fail_open)
            .await
    }
}

/// Whether the guard of a layer further out serves a layer that wants the key in this mode. A key that is only shared, or that has
/// permits, does not become exclusive.
fn is_enough(held: &LockGuard, mode: Mode) -> bool {
    match (held.mode(), mode) {
        (Mode::Permit { of: fewer }, Mode::Permit { of }) => fewer <= of,
        (held, Mode::Shared) => !held.is_permit(),
        (held, mode) => held == mode,
    }
}

/// The refusal of a request whose key a layer further out has locked in a mode that is not enough.
fn other_mode(held: &LockGuard, mode: Mode) -> Rejection {
    let held = held.mode();
    Rejection::misconfigured(format!(
        "a layer further out has locked the same key ({held}), and this layer wants the key {mode}: use one layer, or different keys"
    ))
}

/// A gRPC client that has given up does not wait in line any more.
fn within_deadline(parts: &Parts, wait: Duration) -> Duration {
    match grpc::timeout(&parts.headers) {
        Some(deadline) => wait.min(deadline),
        None => wait,
    }
}

#[cfg(test)]
mod tests {
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
            assert!(matches!(layer.settings().plan(&mut parts), Plan::Lock(_)));
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
