//! The form in which a call is sent to a node of a Cluster.

use crate::store::redis::{calls::Call, lane::Before};

/// The plain form by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallForm {
    /// The call follows ASKING, at a node that is about to get the slot.
    is_asking: bool,
    /// The call has its first key alone, if there is such a form of it (see [`Call`]).
    has_one_key: bool,
}

impl CallForm {
    pub(super) fn asking() -> Self {
        Self {
            is_asking: true,
            has_one_key: false,
        }
    }

    pub(super) fn with_one_key(self) -> Self {
        Self {
            has_one_key: true,
            ..self
        }
    }

    pub(super) fn has_one_key(self) -> bool {
        self.has_one_key
    }

    pub(crate) fn before(self) -> Before {
        if self.is_asking {
            Before::Asking
        } else {
            Before::Nothing
        }
    }

    /// The call in this form.
    pub(crate) fn of(self, call: Call) -> Call {
        if self.has_one_key {
            call.with_one_key()
        } else {
            call
        }
    }
}
