//! The form in which a call is sent to a node of a Cluster.

use crate::store::redis::{lane::Before, operations::Call};

/// The form of a call. The default is the plain form, for a node that has the slot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallForm {
    /// Whether ASKING is sent before the call, for a node to which the slot is moving.
    is_asking: bool,
    /// Whether the call uses its script with one key (see [`Call`]).
    has_one_key: bool,
}

impl CallForm {
    /// The form for a node that ASK has named.
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

    /// The command that is sent before the call.
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
