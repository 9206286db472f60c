//! Points in time, as plain numbers.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A point in time on the clock of a store, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Add<Duration> for Moment {
    type Output = Self;

    /// A sum that cannot be represented is the last moment there is.
    fn add(self, time: Duration) -> Self {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// The time since an earlier moment: zero if it is not an earlier one.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
