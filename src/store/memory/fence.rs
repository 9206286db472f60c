//! The token counter of a shard.
//!
//! The counter begins at the wall clock in microseconds, so that tokens rise across restarts of the process, too; and for that, no block
//! passes the clock. A counter that has reached the clock, or that was raised above it, hands out a few tokens in each call.

#[cfg(not(shuttle))]
use std::time::Instant;
use std::time::SystemTime;

use super::super::Tokens;
// The runs of the model checker must be repeatable. A test that pauses tokio's clock does not stop the wall clock.
#[cfg(shuttle)]
use crate::time::Instant;

/// How many tokens a call gets of a counter that has reached the clock. A process would have to start again within the microseconds by
/// which its calls were ahead of the clock.
const FEW: u32 = 16;

/// The highest token handed out, and the clock that it follows.
pub(super) struct Fence {
    last: u64,
    /// The wall clock at `began`, in microseconds.
    clock: u64,
    began: Instant,
}

impl Fence {
    pub(super) fn new() -> Self {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let clock = clock.unwrap_or_default().as_micros() as u64;
        Self {
            last: clock,
            clock,
            began: now(),
        }
    }

    /// The highest token handed out.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Raises the counter. Returns the highest token that counts as handed out now.
    pub(super) fn raise(&mut self, floor: u64) -> u64 {
        self.last = self.last.max(floor);
        self.last
    }

    /// Takes the next tokens: `block` of them, or as many as the clock leaves, and at least one for each of the leases.
    pub(super) fn hand_out(&mut self, block: u32, leases: u32) -> Tokens {
        let at_least = FEW.max(leases);
        let block = match block > at_least {
            true => block.min(self.left().max(at_least)),
            false => block,
        };
        let tokens = Tokens::new(self.last + 1, block);
        self.last += u64::from(block);
        tokens
    }

    /// How many tokens there are up to the clock.
    fn left(&self) -> u32 {
        let elapsed = now().saturating_duration_since(self.began).as_micros() as u64;
        let left = (self.clock + elapsed).saturating_sub(self.last);
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

fn now() -> Instant {
    #[cfg(shuttle)]
    return crate::time::now();
    #[cfg(not(shuttle))]
    return Instant::now();
}
