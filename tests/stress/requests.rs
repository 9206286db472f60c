//! Tasks that ask for keys in every way there is, and leave in every way there is.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tower_distributed_lock::{Error, ErrorKind, Locks};

use super::{
    patience::Patience,
    random::Random,
    subject::now,
    turns::{Choice, Planned, Uses},
    world::World,
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
    /// Everything that locks or permits can do.
    Wild(Uses),
    /// `run_once`.
    Claims,
}

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
            Habits::Wild(_) => self.lock().await,
            Habits::Claims => self.claim_of_the_moment().await,
        }
    }

    async fn brisk(&mut self) {
        let asked = self.world.witness.asked();
        match self.locks().lock(self.keys[0].as_str()).await {
            Ok(guard) => drop(self.world.witness.enter(guard, asked)),
            Err(error) => self.failed(&error),
        }
    }

    pub(super) fn choose(&mut self) -> Choice {
        // One guard for each turn: a key that is given twice is one turn.
        let mut all = self.keys.clone();
        all.truncate(2);
        Choice {
            key: self.random.pick(&self.keys).clone(),
            all,
            limit: self.random.micros(0..50_000),
        }
    }

    pub(super) fn may_fail(&self) -> bool {
        self.world.setup.may_fail
    }

    pub(super) fn uses(&self) -> Uses {
        match self.habits {
            Habits::Wild(uses) => uses,
            _ => Uses::Locks,
        }
    }

    /// Claims a key that is new every moment, for all who claim. The result outlasts the faults
    /// that hold back an answer.
    async fn claim_of_the_moment(&mut self) {
        let moment = self.world.began.elapsed().as_millis() / 40;
        let key = format!("claim/{moment}/{}", self.random.within(0..2));
        let retain = self.random.millis(1_500..2_000);
        self.claim(key, retain).await;
    }

    /// Most turns are over at once; some last long enough that renewals and faults fall into them.
    pub(super) async fn hold(&mut self) {
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

    pub(super) fn patience(&mut self) -> Patience {
        if self.random.percent(20) {
            Patience::by_time(&mut self.random, Duration::from_micros(400))
        } else {
            Patience::by_polls(&mut self.random)
        }
    }

    pub(super) fn failed(&self, error: &Error) {
        let setup = &self.world.setup;
        let expected = match error.kind() {
            ErrorKind::Held => matches!(self.habits, Habits::Wild(_)),
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

    /// A call for a turn under way has failed, or one of a request that does not wait.
    pub(super) fn unanswered(&self, error: &Error) {
        let has_no_answer = error.kind() == ErrorKind::Unreachable;
        if !(has_no_answer && self.world.setup.has_visitors) {
            self.failed(error);
        }
    }

    /// A run is too long for a note of each step.
    pub(super) fn note(&self, _: impl std::fmt::Display) {}

    pub(super) fn locks(&self) -> &Locks {
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
