//! When a lease is renewed, and when it must count as lost: a state machine that is told the time.
//!
//! 1. The deadline is that of the last renewal that was *answered*, counted from before it was sent.
//! 2. At most one renewal is on its way. While it is, only the end of the lease or of its turn is due: a store that
//!    hangs cannot keep a loss from being told.
//! 3. What is due is due at a definite time; nothing here waits.

use std::time::Duration;

use tokio::time::Instant;

use super::Loss;
use crate::time::later;

/// How leases are renewed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// For how long a lease is trusted: its time less a margin for clocks that run at different speeds.
    pub(crate) validity: Duration,
    /// How often a quiet lease is renewed.
    pub(crate) every: Duration,
    /// How often one that is passed on is, so that it notices others who wait.
    pub(crate) every_when_passing: Duration,
    /// What is due within this time of each other is renewed together.
    pub(crate) together: Duration,
    /// How soon a renewal without an answer is tried again.
    pub(crate) retry: Duration,
    /// After how many of these to give up before the deadline.
    pub(crate) give_up_after: Option<u32>,
    /// How long a turn may last.
    pub(crate) max_hold: Duration,
}

/// The renewal of one lease.
#[derive(Debug)]
pub(crate) struct Renewal {
    deadline: Instant,
    hold_until: Instant,
    next: Instant,
    sent: Option<Instant>,
    hurried_meanwhile: bool,
    unknowns: u32,
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a renewal; it counts as sent now.
    Renew,
    /// Tell the loss.
    Lose(Loss),
}

impl Renewal {
    /// For a lease whose acquisition was sent at `sent`.
    pub(crate) fn new(pace: &Pace, sent: Instant, turn_began: Instant) -> Self {
        Self {
            deadline: later(sent, pace.validity),
            hold_until: later(turn_began, pace.max_hold),
            next: later(sent, pace.every),
            sent: None,
            hurried_meanwhile: false,
            unknowns: 0,
        }
    }

    /// When something is to be done.
    pub(crate) fn due(&self) -> Instant {
        let end = self.deadline.min(self.hold_until);
        match self.sent {
            Some(_) => end,
            None => end.min(self.next),
        }
    }

    /// What is to be done by now, if anything. A lease serves one turn after another, so it says when its
    /// present one began.
    pub(crate) fn step(&mut self, pace: &Pace, now: Instant, turn_began: Instant) -> Option<Step> {
        self.hold_until = later(turn_began, pace.max_hold);
        if now >= self.deadline {
            return Some(Step::Lose(Loss::Expired));
        }
        if now >= self.hold_until {
            return Some(Step::Lose(Loss::MaxHold));
        }
        if self.sent.is_none() && later(now, pace.together) >= self.next {
            self.sent = Some(now);
            return Some(Step::Renew);
        }
        None
    }

    /// Wants a renewal at once; after the one that is on its way, if there is one.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.next = self.next.min(now);
        self.hurried_meanwhile = self.sent.is_some();
    }

    /// The lease is being passed on: its next renewal comes sooner than that of a quiet one.
    pub(crate) fn quicken(&mut self, pace: &Pace, now: Instant) {
        self.next = self.next.min(later(now, pace.every_when_passing));
    }

    /// The renewal was answered: the lease is ours. Returns the new deadline.
    pub(crate) fn renewed(&mut self, pace: &Pace) -> Instant {
        self.unknowns = 0;
        if let Some(sent) = self.sent.take() {
            self.deadline = self.deadline.max(later(sent, pace.validity));
            self.next = match self.hurried_meanwhile {
                true => sent,
                false => later(sent, pace.every),
            };
        }
        self.hurried_meanwhile = false;
        self.deadline
    }

    /// The renewal was not answered. Says whether to give up.
    pub(crate) fn unknown(&mut self, pace: &Pace, now: Instant) -> Option<Loss> {
        self.sent = None;
        self.hurried_meanwhile = false;
        self.unknowns += 1;
        self.next = later(now, pace.retry);
        let enough = pace
            .give_up_after
            .is_some_and(|limit| self.unknowns >= limit);
        enough.then_some(Loss::GaveUp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace() -> Pace {
        Pace {
            validity: 29 * SECOND,
            every: 10 * SECOND,
            every_when_passing: SECOND,
            together: SECOND / 10,
            retry: SECOND,
            give_up_after: None,
            max_hold: 600 * SECOND,
        }
    }

    fn start() -> (Pace, Instant, Renewal) {
        let (pace, now) = (pace(), Instant::now());
        (pace, now, Renewal::new(&pace, now, now))
    }

    #[test]
    fn validity_counts_from_before_the_sending() {
        let (pace, t0, mut renewal) = start();
        assert_eq!(renewal.due(), t0 + 10 * SECOND);
        let late = t0 + 11 * SECOND;
        assert_eq!(renewal.step(&pace, late, t0), Some(Step::Renew));
        assert_eq!(renewal.renewed(&pace), late + 29 * SECOND);
        assert_eq!(renewal.due(), late + 10 * SECOND);
    }

    #[test]
    fn a_renewal_that_hangs_does_not_hide_the_deadline() {
        let (pace, t0, mut renewal) = start();
        assert_eq!(renewal.step(&pace, t0 + 10 * SECOND, t0), Some(Step::Renew));
        assert_eq!(renewal.step(&pace, t0 + 11 * SECOND, t0), None);
        assert_eq!(renewal.due(), t0 + 29 * SECOND);
        assert_eq!(
            renewal.step(&pace, t0 + 29 * SECOND, t0),
            Some(Step::Lose(Loss::Expired))
        );
    }

    #[test]
    fn unknowns_are_retried_soon_and_again() {
        let (pace, t0, mut renewal) = start();
        let mut now = renewal.due();
        for _ in 0..5 {
            assert_eq!(renewal.step(&pace, now, t0), Some(Step::Renew));
            assert_eq!(renewal.unknown(&pace, now), None);
            now += SECOND;
            assert_eq!(renewal.due(), now);
        }
        renewal.step(&pace, now, t0);
        assert_eq!(renewal.renewed(&pace), now + 29 * SECOND);
    }

    #[test]
    fn gives_up_early_only_if_asked_to() {
        let (mut pace, t0, mut renewal) = start();
        pace.give_up_after = Some(2);
        assert_eq!(renewal.unknown(&pace, t0), None);
        renewal.step(&pace, renewal.due(), t0);
        renewal.renewed(&pace);
        assert_eq!(
            renewal.unknown(&pace, t0),
            None,
            "an answer in between starts the count anew"
        );
        assert_eq!(renewal.unknown(&pace, t0), Some(Loss::GaveUp));
    }

    #[test]
    fn max_hold_bounds_the_present_turn() {
        let (mut pace, t0, mut renewal) = start();
        pace.max_hold = 5 * SECOND;
        let second_turn = t0 + 4 * SECOND;
        assert_eq!(renewal.step(&pace, t0 + 5 * SECOND, second_turn), None);
        assert_eq!(renewal.due(), t0 + 9 * SECOND);
        let end = renewal.step(&pace, t0 + 9 * SECOND, second_turn);
        assert_eq!(end, Some(Step::Lose(Loss::MaxHold)));
    }

    #[test]
    fn a_hurry_during_a_renewal_is_not_forgotten() {
        let (pace, t0, mut renewal) = start();
        renewal.hurry(t0 + SECOND);
        assert_eq!(renewal.step(&pace, t0 + SECOND, t0), Some(Step::Renew));
        renewal.hurry(t0 + 2 * SECOND);
        assert_eq!(renewal.step(&pace, t0 + 2 * SECOND, t0), None);
        renewal.renewed(&pace);
        assert_eq!(renewal.step(&pace, t0 + 2 * SECOND, t0), Some(Step::Renew));
        renewal.renewed(&pace);
        assert_eq!(renewal.due(), t0 + 12 * SECOND);
    }

    #[test]
    fn renews_sooner_while_passing_on() {
        let (pace, t0, mut renewal) = start();
        renewal.quicken(&pace, t0);
        assert_eq!(renewal.due(), t0 + SECOND);
        renewal.step(&pace, t0 + SECOND, t0);
        renewal.renewed(&pace);
        renewal.quicken(&pace, t0 + SECOND);
        assert_eq!(renewal.due(), t0 + 2 * SECOND);
        renewal.step(&pace, t0 + 2 * SECOND, t0);
        renewal.renewed(&pace);
        assert_eq!(renewal.due(), t0 + 12 * SECOND);
    }
}
