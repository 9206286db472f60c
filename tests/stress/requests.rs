//! Tasks that ask for keys in every way there is, and leave in every way there is.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tower_distributed_lock::{
    Error, ErrorKind, LockGuard, LockKey, Locks,
    idempotency::RunOnceError,
    store::{Acquire, Ending, Instance as StoreInstance, Mode, Owner, Queueing, Release},
};

use super::{
    patience::Patience,
    random::Random,
    subject::now,
    witness::{Inside, is_result_of},
    world::{LONG_LEASE, World},
};

/// A task with its own choice of keys and habits.
pub(crate) struct Actor {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    pub(crate) instance: usize,
    pub(crate) keys: Vec<String>,
    pub(crate) habits: Habits,
    pub(crate) random: Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habits {
    /// Locks, holds for a moment, drops, pauses for some microseconds.
    Brisk,
    /// Everything that plain locks can do.
    Wild,
    /// `run_once`.
    Claims,
    /// Calls the store itself: takes a key and releases it without waiting for the first answer.
    Bare,
}

/// Why a request ended without a result: the test wanted it so.
#[derive(Debug)]
struct Planned;

impl Actor {
    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            let _waits = self.world.waits(self.number, self.describe());
            let request = AssertUnwindSafe(self.request()).catch_unwind();
            if let Err(panic) = request.await
                && !panic.is::<Planned>()
            {
                self.world.witness.violation("a request panicked");
            }
            self.pause().await;
        }
    }

    async fn request(&mut self) {
        match self.habits {
            Habits::Brisk => self.brisk().await,
            Habits::Wild => self.wild().await,
            Habits::Claims => self.claim().await,
            Habits::Bare => self.bare().await,
        }
    }

    async fn brisk(&mut self) {
        let asked = self.world.witness.asked();
        match self.locks().lock(self.keys[0].as_str()).await {
            Ok(guard) => drop(self.world.witness.enter(guard, asked)),
            Err(error) => self.failed(&error),
        }
    }

    async fn wild(&mut self) {
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
        let clones: Vec<_> = match self.random.percent(20) {
            true => inside.iter().map(|inside| inside.guard().clone()).collect(),
            false => Vec::new(),
        };
        self.hold().await;
        match self.random.within(0..10) {
            0 => std::panic::resume_unwind(Box::new(Planned)),
            1..4 => self.release(inside).await,
            4 => drop(clones),
            _ => drop(inside),
        }
    }

    /// Asks in one of the ways there are.
    async fn ask(&mut self) -> Result<Vec<LockGuard>, Error> {
        let locks = self.locks().clone();
        let key = self.random.pick(&self.keys).as_str();
        match self.random.within(0..10) {
            0..4 => Ok(vec![locks.lock(key).await?]),
            4..6 => Ok(locks.try_lock(key).await?.into_iter().collect()),
            6..8 => {
                let limit = self.random.micros(0..50_000);
                match locks.lock_within(key, limit).await {
                    // The limit may be over before the store's answer is taken.
                    Err(error) if error.kind() == ErrorKind::Unreachable => Ok(Vec::new()),
                    outcome => Ok(vec![outcome?]),
                }
            }
            _ => {
                // One guard for each turn: a key that is given twice is one turn.
                let mut keys = self.keys.clone();
                keys.truncate(2);
                locks.lock_all(keys).await
            }
        }
    }

    /// Releases by hand, and does not always wait for the answer.
    async fn release(&mut self, inside: Vec<Inside>) {
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.leave().release()).await {
                self.failed(&error);
            }
        }
    }

    async fn claim(&mut self) {
        let (locks, patience) = (self.locks().clone(), self.patience());
        // A new key every moment, for all who claim. What is kept outlasts the faults that hold back an answer.
        let moment = self.world.began.elapsed().as_millis() / 40;
        let key = format!("claim/{moment}/{}", self.random.within(0..2));
        let retain = self.random.millis(1_500..2_000);
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
        let outcome = patience
            .of(locks.run_once(key.as_str(), retain, work))
            .await;
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

    /// A release that follows its acquire at once must not overtake it, whatever becomes of the connection: else the lease
    /// is left.
    async fn bare(&mut self) {
        let store = self.world.instances[self.instance].store.clone();
        let key = LockKey::new(format!("bare/{}", self.random.next())).expect("a short key");
        let owner = Owner {
            instance: StoreInstance::new(),
            attempt: 1,
        };
        let taking = store.acquire(Acquire {
            key: key.clone(),
            owner,
            lease: LONG_LEASE,
            block: 1,
            queueing: Queueing::No,
            mode: Mode::Exclusive,
            fingerprint: None,
        });
        let release = store.start_release(Release {
            key,
            owner,
            ending: Ending::Free,
            owed_for: LONG_LEASE,
        });
        let _ = (self.patience().of(taking).await, release.await);
    }

    /// Most turns are over at once; some last long enough that renewals and faults fall into them.
    async fn hold(&mut self) {
        match self.random.within(0..20) {
            0..12 => {}
            12..16 => spin(self.random.micros(0..30)),
            16..19 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(self.random.millis(1..self.world.setup.longest_hold)).await,
        }
    }

    async fn pause(&mut self) {
        match self.habits {
            Habits::Brisk => spin(self.random.micros(0..8)),
            _ if self.random.percent(5) => tokio::time::sleep(self.random.millis(1..5)).await,
            _ => spin(self.random.micros(0..50)),
        }
        if self.random.percent(10) {
            tokio::task::yield_now().await;
        }
    }

    fn patience(&mut self) -> Patience {
        match self.random.percent(20) {
            true => Patience::by_time(&mut self.random, Duration::from_micros(400)),
            false => Patience::by_polls(&mut self.random),
        }
    }

    fn failed(&self, error: &Error) {
        let setup = &self.world.setup;
        let expected = match error.kind() {
            ErrorKind::Held => self.habits == Habits::Wild,
            ErrorKind::Unreachable => setup.may_fail,
            ErrorKind::Lost => setup.may_lose,
            _ => false,
        };
        if !expected {
            self.world
                .witness
                .violation(format_args!("{}: {error:?}", self.describe()));
        }
    }

    fn locks(&self) -> &Locks {
        &self.world.instances[self.instance].locks
    }

    fn describe(&self) -> String {
        let Self {
            number,
            instance,
            keys,
            habits,
            ..
        } = self;
        format!(
            "actor {number} ({habits:?}) on instance {instance} for {}",
            keys.join(", ")
        )
    }
}

/// Pauses for less time than a timer can measure.
fn spin(time: Duration) {
    let end = now() + time;
    while now() < end {
        std::hint::spin_loop();
    }
}
