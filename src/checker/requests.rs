//! Requests that ask in every way there is, and leave in every way there is.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{
    clock::sleep,
    patience::Patience,
    random::Random,
    witness::{Inside, is_result_of},
    world::World,
};
use crate::{Error, ErrorKind, LockGuard, Locks, idempotency::RunOnceError};

pub(super) struct Actor {
    pub(super) world: Arc<World>,
    pub(super) number: usize,
    pub(super) instance: usize,
    pub(super) random: Random,
}

/// Why a request ended without a result: the test wanted it so.
#[derive(Debug)]
struct Planned;

impl Actor {
    pub(super) async fn run(mut self) {
        for _ in 0..self.random.within(1..3) {
            let elapsed = self.world.elapsed();
            let pause = self
                .world
                .setup
                .pause(self.number, elapsed, &mut self.random);
            if !pause.is_zero() {
                self.note("pauses");
                sleep(pause).await;
            }
            let request = AssertUnwindSafe(self.request()).catch_unwind();
            if let Err(panic) = request.await
                && !panic.is::<Planned>()
            {
                std::panic::resume_unwind(panic);
            }
        }
        self.note("has finished");
        self.world.finished();
    }

    async fn request(&mut self) {
        let world = self.world.clone();
        let _waits = world.waits();
        self.note("asks");
        match self.world.setup.claims {
            true => self.claim().await,
            false => self.lock().await,
        }
    }

    async fn lock(&mut self) {
        let asked = self.world.witness.asked();
        let patience = Patience::by_polls(&mut self.random);
        let guards = match patience.of(self.ask()).await {
            None => return,
            // `try_lock` found the key held, or a limit was over.
            Some(Ok(guards)) if guards.is_empty() => return,
            Some(Ok(guards)) => guards,
            Some(Err(error)) => return self.failed(&error),
        };
        let enter = |guard| self.world.witness.enter(guard, asked);
        let inside: Vec<_> = guards.into_iter().map(enter).collect();
        self.note(&format!(
            "is inside: {:?}",
            inside.iter().map(Inside::guard).collect::<Vec<_>>()
        ));
        let _clones: Vec<_> = match self.random.percent(20) {
            true => inside.iter().map(|inside| inside.guard().clone()).collect(),
            false => Vec::new(),
        };
        self.hold().await;
        match self.random.within(0..10) {
            0 => std::panic::resume_unwind(Box::new(Planned)),
            1..4 => {
                self.note("releases");
                self.release(inside).await;
            }
            _ => drop(inside),
        }
    }

    async fn ask(&mut self) -> Result<Vec<LockGuard>, Error> {
        let locks = self.locks().clone();
        let keys = &self.world.keys;
        let key = self.random.pick(keys).as_str();
        match self.random.within(0..10) {
            0..5 => Ok(vec![locks.lock(key).await?]),
            5..7 => Ok(locks.try_lock(key).await?.into_iter().collect()),
            7..9 => {
                let limit = self.random.millis(0..4_000);
                match locks.lock_within(key, limit).await {
                    // Time may pass before the store's answer is taken.
                    Err(error) if error.kind() == ErrorKind::Unreachable => Ok(Vec::new()),
                    outcome => Ok(vec![outcome?]),
                }
            }
            _ => locks.lock_all(keys.iter().map(String::as_str)).await,
        }
    }

    async fn release(&mut self, inside: Vec<Inside>) {
        for inside in inside {
            let patience = Patience::by_polls(&mut self.random);
            if let Some(Err(error)) = patience.of(inside.leave().release()).await {
                self.failed(&error);
            }
        }
    }

    async fn claim(&mut self) {
        let (locks, witness) = (self.locks().clone(), self.world.witness.clone());
        let patience = Patience::by_polls(&mut self.random);
        let (key, instance) = (self.world.keys[0].clone(), self.instance);
        let work = async |_: LockGuard| {
            let working = witness.work(instance, &key);
            self.hold().await;
            match self.random.within(0..10) {
                0 => std::panic::resume_unwind(Box::new(Planned)),
                1 => Err(Planned),
                _ => Ok(working.value()),
            }
        };
        let outcome = patience.of(locks.run_once(&*key, RETAIN, work)).await;
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

    async fn hold(&mut self) {
        let world = self.world.clone();
        let _inside = world.inside();
        self.note("holds");
        let time = world
            .setup
            .hold(self.number, world.elapsed(), &mut self.random);
        if !time.is_zero() {
            sleep(time).await;
        }
        self.note("has held");
    }

    fn failed(&self, error: &Error) {
        let setup = &self.world.setup;
        let expected = match error.kind() {
            ErrorKind::Held => true,
            ErrorKind::Unreachable => setup.may_fail,
            ErrorKind::Lost => setup.may_lose,
            _ => false,
        };
        if !expected {
            self.world
                .witness
                .violation(format_args!("unexpected: {error:?}"));
        }
    }

    fn note(&self, what: &str) {
        let Self {
            number, instance, ..
        } = self;
        self.world
            .note(format_args!("task {number} on instance {instance} {what}"));
    }

    fn locks(&self) -> &Locks {
        &self.world.instances[self.instance]
    }
}

/// How long results are kept: longer than every fault.
pub(super) const RETAIN: Duration = Duration::from_secs(100);
