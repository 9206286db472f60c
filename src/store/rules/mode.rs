//! The table of modes: who may hold a key beside whom.
//!
//! | | exclusive | shared | one of *n* permits |
//! |---|---|---|---|
//! | there is [room](Mode::room) | if nothing is held or ahead | beside and behind shared ones | for *n*, less those held and ahead |
//! | the owner's lease of the mode [covers](Mode::covers) | every mode | shared | a permit |
//! | a renewal [makes it](Mode::renewed_as) | shared, if that is asked for | shared | a permit |
//! | [may end with a record](Mode::may_end_with_record) | yes | no | no |
//!
//! Redis has the same table in `lua/queue.lua`: `room_behind`. `queue.rs` asks beside that
//! whether an attempt shares.

use super::super::Mode;

/// What is in the way of an attempt.
#[derive(Clone, Copy)]
pub(super) struct InTheWay {
    /// The mode of the present leases.
    pub(super) leased: Option<Mode>,
    /// How many leases others hold.
    pub(super) held: usize,
    /// How many attempts are ahead in the queue.
    pub(super) ahead: usize,
    /// Whether all attempts ahead share the key.
    pub(super) all_share: bool,
}

impl Mode {
    /// How many leases of this mode there is room for.
    pub(super) fn room(self, way: InTheWay) -> usize {
        match self {
            Self::Exclusive => usize::from(way.held == 0 && way.ahead == 0),
            Self::Shared => usize::from(way.leased.is_none_or(Self::is_shared) && way.all_share),
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
            Self::Exclusive if asked.is_shared() => Self::Shared,
            Self::Exclusive | Self::Shared | Self::Permit { .. } => self,
        }
    }

    /// Whether a record may take the place of a lease of this mode.
    pub(super) fn may_end_with_record(self) -> bool {
        self.is_exclusive()
    }

    /// Whether a lease of this mode is the only one.
    pub(super) fn is_exclusive(self) -> bool {
        self == Self::Exclusive
    }

    /// Whether any number of leases of this mode go together.
    pub(super) fn is_shared(self) -> bool {
        self == Self::Shared
    }
}
