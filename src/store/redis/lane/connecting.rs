//! What follows a connect: the verdict for the calls that wait, and the pause before the next
//! connect.

use std::time::Duration;

use tokio::time::Instant;

use super::{DriverId, Inner};
use crate::{
    Error,
    store::{Outcome, redis::connection::Connection},
    sync::random,
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause before the next connect of a lane, after connects that brought no reply, or of the
/// subscription.
#[derive(Debug, Default)]
pub(in super::super) struct BackOff {
    /// The number of connects that brought no reply.
    connects: u32,
    pub(super) until: Option<Instant>,
}

impl Inner {
    /// Handles the end of a connect. All waiting calls get the same verdict: a connection, or the
    /// reason why two connects in a row have failed.
    pub(super) fn connected(&self, driver: DriverId, outcome: Result<Connection, Error>) {
        let mut state = self.lock();
        if state.driver != Some(driver) {
            return;
        }
        // The pause lasts until the connection has brought a reply, because some connections break
        // right after they were made.
        state.back_off.lengthen(self.limit);
        match outcome {
            Ok(connection) => {
                state.trouble = None;
                state.connection = Some(connection);
                state.was_connected = true;
                self.send(&mut state);
            }
            Err(error) => {
                state.trouble = Some(error.clone());
                // The first connect may have met the same fault that broke the last connection.
                if !state.back_off.is_first() {
                    let refused = || Outcome::Refused(error.clone());
                    state.queue.fail_unsent(refused);
                }
            }
        }
    }
}

impl BackOff {
    /// Whether only one connect has brought no reply so far.
    fn is_first(&self) -> bool {
        self.connects <= 1
    }

    /// Counts one more connect and doubles the pause, with jitter. The pause is at most half the
    /// time limit, so that a waiting call sees the next connect before its deadline.
    pub(in super::super) fn lengthen(&mut self, limit: Duration) -> Instant {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.connects.min(16));
        let pause = pause.min(LONGEST_PAUSE).min(limit / 2);
        self.connects += 1;
        let until = Instant::now() + pause.mul_f64(0.5 + random() / 2.0);
        *self.until.insert(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_connect_is_the_first_however_short_the_time_limit() {
        for millis in [1, 20, 1000] {
            let mut back_off = BackOff::default();
            back_off.lengthen(Duration::from_millis(millis));
            assert!(back_off.is_first(), "{millis} ms");
            back_off.lengthen(Duration::from_millis(millis));
            assert!(!back_off.is_first(), "{millis} ms");
        }
    }
}
