//! The table of modes: who may hold a key beside whom, and what that means for a line.
//!
//! | | exclusive | shared | one of *n* permits |
//! |---|---|---|---|
//! | there is [room](Mode::room) | if nothing is held or ahead | beside and behind shared ones | for *n*, less those held and ahead |
//! | its owner is granted the key again ([covers](Mode::covers)) in | every mode | shared | the same permit |
//! | a renewal [makes it](Mode::renewed_as) | shared, if that is asked for | shared | a permit |
//! | [may end with a record](Mode::may_end_with_record) | yes | no | no |
//! | a guard [includes](Mode::includes) | exclusive, shared | shared | as many permits, or more |
//! | *held* [means held](Mode::held_means_held_for) for | all but shared | both | as many permits, or fewer |
//! | a turn is [alone](Mode::is_alone) | yes | no | no |
//! | a lease [shares its turns](Mode::shares_turns): side by side, with one token, until its time; others that want the key wait for those in line only | no | yes | no |
//! | leases of a line are [counted](Mode::permits) | no | no | up to *n* |
//!
//! Redis has the first four rows in `lua/queue.lua`: `room_behind`. `queue.rs` asks beside that
//! whether an attempt shares.

use super::super::Mode;
use crate::{Error, ErrorKind};

/// What is in the way of an attempt, or of a request in a line.
#[derive(Clone, Copy)]
pub(crate) struct InTheWay {
    /// The mode of the present leases.
    pub(crate) leased: Option<Mode>,
    /// How many leases others hold.
    pub(crate) held: usize,
    /// How many attempts are ahead in the queue.
    pub(crate) ahead: usize,
    /// Whether all attempts ahead share the key.
    pub(crate) all_share: bool,
}

impl Mode {
    /// The error of an attempt in this mode at a key that is used for the other kind of leases.
    pub(crate) fn wrong_kind(self) -> Error {
        let message = if self.is_permit() {
            "the key is locked: use another key for permits"
        } else {
            "permits of this key are held: use another key for locks"
        };
        Error::new(ErrorKind::Foreign, message)
    }

    /// How many leases of this mode there is room for.
    pub(crate) fn room(self, way: InTheWay) -> usize {
        match self {
            Self::Exclusive => usize::from(way.held == 0 && way.ahead == 0),
            Self::Shared => usize::from(way.leased.is_none_or(Self::shares_turns) && way.all_share),
            Self::Permit { of } => (of as usize).saturating_sub(way.held + way.ahead),
        }
    }

    /// Whether an owner with a lease of this mode is granted the key again if it asks in a mode. A
    /// shared lease is not granted again as an exclusive one.
    pub(super) fn covers(self, asked: Self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Shared | Self::Permit { .. } => self == asked,
        }
    }

    /// The mode of a lease of this mode after a renewal.
    pub(super) fn renewed_as(self, asked: Self) -> Self {
        match self {
            Self::Exclusive if asked.shares_turns() => Self::Shared,
            Self::Exclusive | Self::Shared | Self::Permit { .. } => self,
        }
    }

    /// Whether a record may take the place of a lease of this mode.
    pub(super) fn may_end_with_record(self) -> bool {
        self.is_alone()
    }

    /// Whether who holds a key in this mode needs no other guard for a second one. A key that is
    /// only shared, or that has permits, does not become exclusive.
    pub(crate) fn includes(self, wanted: Self) -> bool {
        match (self, wanted) {
            (Self::Exclusive, Self::Exclusive | Self::Shared) | (Self::Shared, Self::Shared) => {
                true
            }
            (Self::Permit { of: fewer }, Self::Permit { of }) => fewer <= of,
            (Self::Exclusive | Self::Shared, Self::Permit { .. })
            | (Self::Permit { .. }, Self::Exclusive | Self::Shared)
            | (Self::Shared, Self::Exclusive) => false,
        }
    }

    /// Whether a key that was found held by a question in this mode is held for another mode as
    /// well.
    pub(crate) fn held_means_held_for(self, other: Self) -> bool {
        match (self, other) {
            (Self::Exclusive, Self::Shared) => false,
            (Self::Permit { of: asked }, Self::Permit { of }) => of <= asked,
            (Self::Exclusive | Self::Permit { .. }, Self::Exclusive)
            | (Self::Shared | Self::Permit { .. }, Self::Shared)
            | (Self::Shared, Self::Exclusive)
            | (Self::Exclusive | Self::Shared, Self::Permit { .. }) => true,
        }
    }

    /// Whether nobody else holds a key that is held in this mode.
    pub(crate) fn is_alone(self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Shared | Self::Permit { .. } => false,
        }
    }

    /// Whether any number of turns go side by side, under one lease or several. They share the
    /// token of their lease, and each of them has its own time. Once another instance waits, such
    /// a lease serves those who were in line, where others serve a number of turns.
    pub(crate) fn shares_turns(self) -> bool {
        match self {
            Self::Shared => true,
            Self::Exclusive | Self::Permit { .. } => false,
        }
    }

    /// How many leases of this mode there are at most, where they are counted.
    pub(crate) fn permits(self) -> Option<usize> {
        match self {
            Self::Permit { of } => Some(of as usize),
            Self::Exclusive | Self::Shared => None,
        }
    }
}
