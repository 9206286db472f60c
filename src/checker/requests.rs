//! Requests that lock in every way, and give up in every way.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{
    clock::sleep,
    patience::Patience,
    random::Random,
    turns::{Choice, Planned, Uses},
    world::World,
};
use crate::{Error, ErrorKind, Locks};

/// One task, which makes a few requests on one instance.
pub(super) struct Actor {
    pub(super) world: Arc<World>,
    pub(super) number: usize,
    pub(super) instance: usize,
    pub(super) random: Random,
}

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
        if self.world.setup.claims {
            self.claim(self.world.keys[0].clone(), RETAIN).await
        } else {
            self.lock().await
        }
    }

    pub(super) fn choose(&mut self) -> Choice {
        let all = self.world.keys.clone();
        Choice {
            key: self.random.pick(&all).clone(),
            all,
            limit: self.random.millis(0..4_000),
        }
    }

    pub(super) fn may_fail(&self) -> bool {
        self.world.setup.may_fail
    }

    pub(super) fn uses(&self) -> Uses {
        self.world.setup.uses
    }

    pub(super) async fn hold(&mut self) {
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

    pub(super) fn patience(&mut self) -> Patience {
        Patience::by_polls(&mut self.random)
    }

    pub(super) fn failed(&self, error: &Error) {
        let setup = &self.world.setup;
        let expected = match error.kind() {
            ErrorKind::Held => true,
            ErrorKind::Unreachable => setup.may_fail,
            ErrorKind::Lost => setup.may_lose,
            ErrorKind::Closed => setup.closes.is_some() && self.instance == 0,
            ErrorKind::LineFull => setup.limits.longest_line.is_some(),
            ErrorKind::TooManyKeys => setup.limits.max_keys.is_some(),
            _ => false,
        };
        if !expected {
            self.world
                .witness
                .violation(format_args!("unexpected: {error:?}"));
        }
    }

    /// A call for a turn under way has failed, or one of a request that does not wait.
    pub(super) fn unanswered(&self, error: &Error) {
        self.failed(error);
    }

    pub(super) fn note(&self, what: impl std::fmt::Display) {
        let Self {
            number, instance, ..
        } = self;
        self.world
            .note(format_args!("task {number} on instance {instance} {what}"));
    }

    pub(super) fn locks(&self) -> &Locks {
        &self.world.instances[self.instance]
    }
}

/// How long results are kept, which is longer than every fault.
pub(super) const RETAIN: Duration = Duration::from_secs(100);
