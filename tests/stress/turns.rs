//! One request: locks or claims a key, holds, and leaves in one of several ways.
//!
//! The stress test and the model checker both include this file. Each has an [`Actor`] of its own, which says how to ask, how
//! long to hold and which errors are expected, and `super::subject`, which names the parts of the crate.

use std::time::Duration;

use super::{
    requests::Actor,
    subject::{LockGuard, RunOnceError},
    witness::{Inside, is_result_of},
};

/// The error or panic of a request that was to end without a result.
#[derive(Debug)]
pub(crate) struct Planned;

impl Actor {
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
        match self.random.within(0..10) {
            0 => std::panic::resume_unwind(Box::new(Planned)),
            1..4 => self.release(inside).await,
            4 => drop(clones),
            _ => drop(inside),
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
