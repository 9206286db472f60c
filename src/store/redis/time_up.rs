//! A point in time that a future waits for on whichever runtime the future is polled.
//!
//! A timer of tokio belongs to the runtime on which it was created: the timer panics on a runtime without timers, and when it is polled
//! after its runtime has shut down. [`TimeUp`] creates its timer with the first poll, and again when the runtime has changed.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    runtime::{self, Handle},
    time::{Instant, Sleep, sleep_until},
};

use crate::time::can_sleep;

/// A point in time to wait for.
#[derive(Debug)]
pub(super) struct TimeUp {
    at: Instant,
    timer: Option<Timer>,
}

#[derive(Debug)]
struct Timer {
    /// The runtime that the timer belongs to.
    runtime: runtime::Id,
    /// `None` on a runtime without timers.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl TimeUp {
    /// Needs no runtime.
    pub(super) fn at(at: Instant) -> Self {
        Self { at, timer: None }
    }

    /// Whether the time has come. Where no timer can be created, a later poll notices, and no poll is woken for it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(sleep) = self.sleep() {
            return sleep.as_mut().poll(cx);
        }
        if Instant::now() >= self.at {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// The timer of the current runtime, if that has timers.
    fn sleep(&mut self) -> Option<&mut Pin<Box<Sleep>>> {
        let runtime = Handle::try_current().ok()?.id();
        let timer = self.timer.take_if(|timer| timer.runtime == runtime);
        let timer = timer.unwrap_or_else(|| Timer {
            runtime,
            sleep: can_sleep().then(|| Box::pin(sleep_until(self.at))),
        });
        self.timer.insert(timer).sleep.as_mut()
    }
}
