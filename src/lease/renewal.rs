//! The times of a lease's renewals, as a state machine that takes the time as an argument.
//!
//! 1. At most one renewal is under way. The answer, or the lack of an answer, determines when the
//!    next renewal is due.
//! 2. A renewal is due at a definite time; nothing here waits. After a renewal without an answer,
//!    or without the tokens that were asked for, the next one is never due at once, unless its
//!    connection broke, or a runtime has ended.
//!
//! The renewals of a lease of 30 s with the default pace, while the store is away from 15 s to 23
//! s:
//!
//! ```text
//!  0 s    granted                   next: 10 s
//! 10 s    sent, answered            next: 20 s
//! 20 s    sent, no answer           unknown 1, next: one second later
//! 22 s    sent, no answer           unknown 2, next: one second later     (each try takes the call's time limit)
//! 24 s    sent, answered            next: 34 s                            the deadline was 39.7 s
//! ```

use std::time::Duration;

use crate::time::{Instant, later};

/// How often a call whose connection broke is followed by the next one at once. One whose time was
/// over is not: the store is slow, and further calls would make it slower.
pub(crate) const AT_ONCE: u32 = 2;

/// How often leases are renewed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The interval between renewals of a lease that is not passed on.
    pub(crate) every: Duration,
    /// The interval between renewals of a lease that is passed on. It is shorter, so that the
    /// instance notices when other instances wait.
    pub(crate) every_when_passing: Duration,
    /// How soon a renewal without an answer, or without the tokens that were asked for, is
    /// retried.
    pub(crate) retry: Duration,
    /// After how many renewals without an answer to give up before the deadline.
    pub(crate) give_up_after: Option<u32>,
}

impl Pace {
    /// Renewals that are due within this time of each other are sent together. The time is shorter
    /// than every pause between two renewals of one lease, so that a renewal which was just put
    /// off is not due at once.
    pub(crate) fn together(&self) -> Duration {
        /// The longest time that a renewal may be sent early.
        const LONGEST: Duration = Duration::from_millis(250);
        let bounds = [self.retry / 2, self.every_when_passing / 4, LONGEST];
        bounds.into_iter().fold(self.every / 32, Duration::min)
    }
}

/// The renewals of one lease.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// The interval between renewals while the lease is not passed on.
    every: Duration,
    /// When the next renewal is due.
    next: Instant,
    /// When the renewal under way was sent.
    sent: Option<Instant>,
    /// How many renewals in a row had no answer.
    unknowns: u32,
    /// How many of them were followed by the next one at once.
    at_once: u32,
    /// A renewal was asked for that a turn waits for.
    for_a_turn: bool,
}

impl Renewal {
    /// Creates the renewals of a lease of this length, which was requested at `sent`.
    pub(crate) fn new(pace: &Pace, lease: Duration, sent: Instant) -> Self {
        let every = pace.every.min(lease / 3);
        Self {
            every,
            next: later(sent, every),
            sent: None,
            unknowns: 0,
            at_once: 0,
            for_a_turn: false,
        }
    }

    /// When the next renewal is due, unless one is under way.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.sent.is_none().then_some(self.next)
    }

    /// Returns whether to send a renewal now, which then counts as sent.
    pub(crate) fn send_if_due(&mut self, pace: &Pace, now: Instant) -> bool {
        let is_due =
            self.sent.is_none() && later(now, pace.together().min(self.every / 32)) >= self.next;
        if is_due {
            self.sent = Some(now);
        }
        is_due
    }

    /// Requests a renewal at once, unless one is under way. The line looks at the answer to that
    /// one, and then knows whether another is needed.
    pub(crate) fn renew_now(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// Requests a renewal at once for a turn that cannot begin before, unless one was asked for.
    pub(crate) fn renew_for_a_turn(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.for_a_turn, true) {
            self.renew_now(now);
        }
    }

    /// Moves the next renewal forward, because the lease is being passed on.
    pub(crate) fn renew_soon(&mut self, pace: &Pace, now: Instant) {
        self.next = self.next.min(later(now, pace.every_when_passing));
    }

    /// Notes the answer that the lease is still held.
    pub(crate) fn renewed(&mut self) {
        (self.unknowns, self.at_once, self.for_a_turn) = (0, 0, false);
        if let Some(sent) = self.sent.take() {
            self.next = later(sent, self.every);
        }
    }

    /// Notes that the lease was doubted after the renewal was sent. The answer confirms nothing,
    /// and the next renewal is due now.
    pub(crate) fn outdated(&mut self, now: Instant) {
        self.sent = None;
        self.next = now;
    }

    /// Whether a renewal whose connection broke is repeated at once, which is worth a few tries.
    pub(crate) fn repeats_at_once(&mut self) -> bool {
        self.at_once += 1;
        self.at_once <= AT_ONCE
    }

    /// Lets the next renewal follow after a short pause, because the last one did not bring the
    /// tokens that a turn waits for.
    pub(crate) fn put_off(&mut self, pace: &Pace, now: Instant) {
        self.for_a_turn = true;
        self.retry(pace, now);
    }

    fn retry(&mut self, pace: &Pace, now: Instant) {
        self.next = later(now, pace.retry.min(self.every / 8));
    }

    /// Notes a renewal without an answer. Returns whether to give up the lease.
    pub(crate) fn unknown(&mut self, pace: &Pace, now: Instant) -> bool {
        self.sent = None;
        self.unknowns = self.unknowns.saturating_add(1);
        self.retry(pace, now);
        pace.give_up_after
            .is_some_and(|limit| self.unknowns >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace() -> Pace {
        Pace {
            every: 10 * SECOND,
            every_when_passing: SECOND,
            retry: SECOND,
            give_up_after: None,
        }
    }

    fn start() -> (Pace, Instant, Renewal) {
        let (pace, now) = (pace(), Instant::now());
        (pace, now, Renewal::new(&pace, 30 * SECOND, now))
    }

    #[test]
    fn the_next_renewal_counts_from_the_sending_of_the_last() {
        let (pace, t0, mut renewal) = start();
        assert_eq!(renewal.due(), Some(t0 + 10 * SECOND));
        let late = t0 + 11 * SECOND;
        assert!(renewal.send_if_due(&pace, late));
        assert_eq!(renewal.due(), None, "one is on its way");
        renewal.renewed();
        assert_eq!(renewal.due(), Some(late + 10 * SECOND));
    }

    #[test]
    fn a_renewal_on_its_way_is_not_sent_again() {
        let (pace, t0, mut renewal) = start();
        assert!(renewal.send_if_due(&pace, t0 + 10 * SECOND));
        assert!(!renewal.send_if_due(&pace, t0 + 11 * SECOND));
    }

    #[test]
    fn unanswered_renewals_are_retried_after_a_pause_each() {
        let (pace, t0, mut renewal) = start();
        let mut now = t0 + 10 * SECOND;
        for _ in 0..5 {
            assert!(renewal.send_if_due(&pace, now));
            assert!(!renewal.unknown(&pace, now));
            assert!(
                !renewal.send_if_due(&pace, now),
                "not without a pause in between"
            );
            now += SECOND;
            assert_eq!(renewal.due(), Some(now));
        }
    }

    #[test]
    fn no_renewal_that_was_put_off_is_due_at_once_however_long_the_lease() {
        for lease in [
            SECOND,
            30 * SECOND,
            120 * SECOND,
            3600 * SECOND,
            Duration::MAX,
        ] {
            let pace = Pace {
                every: lease / 3,
                retry: (lease / 24).min(SECOND),
                ..pace()
            };
            let now = Instant::now();
            let mut renewal = Renewal::new(&pace, lease, now);
            renewal.renew_now(now);
            assert!(renewal.send_if_due(&pace, now));
            renewal.unknown(&pace, now);
            assert!(
                !renewal.send_if_due(&pace, now),
                "retried at once: {lease:?}"
            );

            let mut renewal = Renewal::new(&pace, lease, now);
            renewal.renew_soon(&pace, now);
            assert!(
                lease == SECOND || !renewal.send_if_due(&pace, now),
                "renewed at once: {lease:?}"
            );
        }
    }

    #[test]
    fn a_lease_is_given_up_early_only_with_give_up_after() {
        let (mut pace, t0, mut renewal) = start();
        pace.give_up_after = Some(2);
        assert!(!renewal.unknown(&pace, t0));
        renewal.send_if_due(&pace, t0 + SECOND);
        renewal.renewed();
        assert!(
            !renewal.unknown(&pace, t0),
            "an answer in between starts the count anew"
        );
        assert!(renewal.unknown(&pace, t0));
    }

    #[test]
    fn a_lease_doubted_during_a_renewal_is_renewed_again_at_once() {
        let (pace, t0, mut renewal) = start();
        renewal.renew_now(t0 + SECOND);
        assert!(renewal.send_if_due(&pace, t0 + SECOND));
        renewal.renew_now(t0 + 2 * SECOND);
        assert!(!renewal.send_if_due(&pace, t0 + 2 * SECOND));
        renewal.outdated(t0 + 3 * SECOND);
        assert!(renewal.send_if_due(&pace, t0 + 3 * SECOND));
        renewal.renewed();
        assert_eq!(renewal.due(), Some(t0 + 13 * SECOND));
    }

    #[test]
    fn a_lease_that_is_passed_on_is_renewed_sooner() {
        let (pace, t0, mut renewal) = start();
        renewal.renew_soon(&pace, t0);
        assert_eq!(renewal.due(), Some(t0 + SECOND));
        assert!(renewal.send_if_due(&pace, t0 + SECOND));
        renewal.renewed();
        assert_eq!(renewal.due(), Some(t0 + 11 * SECOND));
    }

    #[test]
    fn a_lease_that_is_passed_on_is_not_renewed_later_than_before() {
        let (pace, t0, mut renewal) = start();
        renewal.renew_soon(&pace, t0 + 19 * SECOND / 2);
        assert_eq!(renewal.due(), Some(t0 + 10 * SECOND));
    }
}
