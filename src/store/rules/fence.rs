//! The token counter.
//!
//! The counter begins at the clock, so that tokens rise across restarts, too; and for that, no
//! block passes the clock. A counter that has reached the clock, or that was raised above it, hands
//! out a few tokens in each call.

use super::{super::Tokens, Moment};

/// How many tokens a call gets of a counter that has reached the clock. A process would have to
/// start again within the microseconds by which its calls were ahead of the clock.
const FEW: u32 = 16;

/// The highest token handed out.
#[derive(Debug, Clone)]
pub struct Fence(u64);

impl Fence {
    /// A counter that begins at the clock.
    pub fn new(clock: Moment) -> Self {
        Self(clock.0)
    }

    /// The highest token handed out.
    pub fn last(&self) -> u64 {
        self.0
    }

    /// Raises the counter. Returns the highest token that counts as handed out now.
    pub fn raise(&mut self, floor: u64) -> u64 {
        self.0 = self.0.max(floor);
        self.0
    }

    /// Takes the next tokens: `block` of them, or as many as the clock leaves, and at least one for
    /// each of the leases.
    pub(super) fn hand_out(&mut self, block: u32, leases: u32, clock: Moment) -> Tokens {
        let left = u32::try_from(clock.0.saturating_sub(self.0)).unwrap_or(u32::MAX);
        let block = block.min(left.max(FEW).max(leases));
        let tokens = Tokens::new(self.0 + 1, block);
        self.0 += u64::from(block);
        tokens
    }
}
