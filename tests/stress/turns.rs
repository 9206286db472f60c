//! One request: locks or claims a key, holds, and leaves in one of several ways.
//!
//! The stress test and the model checker both include this file. Each has an [`Actor`] of its own, which says how to ask, how
//! long to hold and which errors are expected, and `super::subject`, which names the parts of the crate.

use std::time::Duration;

use super::{
    random::Random,
    requests::Actor,
    subject::{Error, ErrorKind, LockGuard, Mode, RunOnceError},
    witness::{Inside, is_result_of},
};

/// What the requests of an actor use its keys for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uses {
    /// Exclusive locks.
    Locks,
    /// Shared and exclusive locks.
    Reports,
    /// Permits, so many at each key.
    Permits(u32),
}

impl Uses {
    fn mode(self, random: &mut Random) -> Mode {
        match self {
            Self::Reports if random.percent(65) => Mode::Shared,
            Self::Permits(of) => Mode::Permit { of },
            _ => Mode::Exclusive,
        }
    }
}

/// The error or panic of a request that was to end without a result.
#[derive(Debug)]
pub(crate) struct Planned;

impl Actor {
    /// Asks for a key in one of the ways there are, or for all keys. `limit` is for a request that waits only so long.
    pub(super) async fn ask_for(
        &mut self,
        key: &str,
        all: Vec<String>,
        limit: Duration,
    ) -> Result<Vec<LockGuard>, Error> {
        let (locks, way) = (self.locks().clone(), self.random.within(0..10));
        let mode = self.uses().mode(&mut self.random);
        let tried = match (mode, way) {
            (Mode::Exclusive, 0..2) => return locks.lock_all(all).await,
            (Mode::Exclusive, 2..4) => locks.try_lock(key).await?,
            (Mode::Exclusive, 4..6) => none_in_time(locks.lock_within(key, limit).await)?,
            (Mode::Exclusive, _) => Some(locks.lock(key).await?),
            (Mode::Shared, 2..4) => locks.try_lock_shared(key).await?,
            (Mode::Shared, 4..6) => none_in_time(locks.lock_shared_within(key, limit).await)?,
            (Mode::Shared, _) => Some(locks.lock_shared(key).await?),
            (Mode::Permit { of }, 2..4) => locks.try_permit(key, of).await?,
            (Mode::Permit { of }, 4..6) => none_in_time(locks.permit_within(key, of, limit).await)?,
            (Mode::Permit { of }, _) => Some(locks.permit(key, of).await?),
            #[allow(unreachable_patterns)] // within the crate, there are no other modes
            (mode, _) => unreachable!("no request asks for {mode}"),
        };
        if let Some(guard) = tried.iter().find(|guard| guard.mode() != mode) {
            let found = guard.mode();
            let violation = format!("{key}: asked for {mode}, and was granted {found}");
            self.world.witness.violation(violation);
        }
        Ok(tried.into_iter().collect())
    }

    /// A turn at one or several keys.
    pub(super) async fn lock(&mut self) {
        let (asked, patience) = (self.world.witness.asked(), self.patience());
        let guards = match patience.of(self.ask()).await {
            None => return,
            // `try_lock` found the key held, or a limit was over.
            Some(Ok(guards)) if guards.is_empty() => return,
            Some(Ok(guards)) => guards,
            Some(Err(error)) => return self.failed(&error),
        };
        let enter = |guard| self.world.witness.enter(guard, asked);
        let inside: Vec<_> = guards.into_iter().map(enter).collect();
        let guards: Vec<_> = inside.iter().map(Inside::guard).collect();
        self.note(format_args!("is inside: {guards:?}"));
        let clones: Vec<_> = match self.random.percent(20) {
            true => inside.iter().map(|inside| inside.guard().clone()).collect(),
            false => Vec::new(),
        };
        self.hold().await;
        if self.uses() == Uses::Reports && self.random.percent(30) {
            self.downgrade(&inside).await;
            self.hold().await;
        }
        match self.random.within(0..10) {
            0 => std::panic::resume_unwind(Box::new(Planned)),
            1..4 => self.release(inside).await,
            4 => drop(clones),
            _ => drop(inside),
        }
    }

    /// Lets others share the keys, and does not always wait for the answer.
    async fn downgrade(&mut self, inside: &[Inside]) {
        self.note("downgrades");
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.guard().downgrade()).await {
                self.failed(&error);
            }
        }
    }

    /// Releases by hand, and does not always wait for the answer.
    async fn release(&mut self, inside: Vec<Inside>) {
        self.note("releases");
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.leave().release()).await {
                self.failed(&error);
            }
        }
    }

    /// Work that is done once for the key, whose result is kept for `retain`.
    pub(super) async fn claim(&mut self, key: String, retain: Duration) {
        let (locks, patience) = (self.locks().clone(), self.patience());
        let (witness, instance) = (self.world.witness.clone(), self.instance);
        let work = async |_: LockGuard| {
            let working = witness.work(instance, &key);
            self.hold().await;
            match self.random.within(0..10) {
                0 => std::panic::resume_unwind(Box::new(Planned)),
                1 => Err(Planned),
                _ => Ok(working.value()),
            }
        };
        let outcome = patience.of(locks.run_once(&*key, retain, work)).await;
        match outcome {
            Some(Ok(once)) if !is_result_of(&key, &once.value) => {
                let result = once.value;
                witness.violation(format_args!("{key}: was given the result {result:?}"));
            }
            None | Some(Ok(_) | Err(RunOnceError::Work(Planned))) => {}
            Some(Err(RunOnceError::Lock(error))) => self.failed(&error),
            Some(Err(error)) => witness.violation(format_args!("{key}: {error:?}")),
        }
    }
}

/// Nothing for a request whose limit was over, perhaps before the store's answer was taken.
fn none_in_time(outcome: Result<LockGuard, Error>) -> Result<Option<LockGuard>, Error> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::Held | ErrorKind::Unreachable) => Ok(None),
        outcome => outcome.map(Some),
    }
}
