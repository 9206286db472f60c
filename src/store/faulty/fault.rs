//! The current fault of a store, and the calls that wait for its end.
//!
//! | fault | the call is made | and answered |
//! |---|---|---|
//! | none | at once | at once |
//! | unreachable | never | *refused*, at once |
//! | hang | when the fault is over, or never if the store becomes unreachable instead | then |
//! | mute | at once | when the fault is over |
//! | late, every other call | later, in any order, or never | *unknown*, at once |

use std::{collections::VecDeque, mem};

use crate::{
    Error, ErrorKind,
    store::{MemoryStore, Owner},
    sync::random,
    time::{Instant, now},
};

/// A way in which a [`FaultyStore`](super::FaultyStore) can fail.
///
/// | fault | simulates | a lock | a guard |
/// |---|---|---|---|
/// | [`Unreachable`](Self::Unreachable) | a server that is down | fails at once | is held until its deadline |
/// | [`Hang`](Self::Hang) | a server, or a network, that hangs | waits until its limit | is held until its deadline |
/// | [`Mute`](Self::Mute) | answers that are lost on their way | waits, and may have the key in the store | is held until its deadline |
/// | [`Late`](Self::Late) | a connection that breaks, with calls that arrive later | is asked for again, and may fail | is held, as far as its renewals arrive |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every call fails at once and has no effect. When the fault is over, each
    /// [`Locks`](crate::Locks) is told that the store is back, and confirms its leases.
    Unreachable,
    /// No call returns until the fault is over. All of them then continue, in the order in which
    /// they were made.
    Hang,
    /// Every call takes effect at once, but its answer is held back until the fault is over.
    Mute,
    /// Every other call fails at once. It takes effect later, in any order with other calls, or
    /// never.
    Late,
}

/// The number of calls that a [`FaultyStore`](super::FaultyStore) has received.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::FaultyStore};
///
/// let store = FaultyStore::new();
/// let locks = Locks::builder(store.clone()).build()?;
/// drop(locks.lock("orders/42").await?);
/// assert_eq!((store.calls().acquires, store.calls().releases), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// Calls of `acquire`.
    pub acquires: u64,
    /// Calls of `renew`, each for a whole batch.
    pub renewals: u64,
    /// Calls of `release`.
    pub releases: u64,
}

/// A call that waits, or whose outcome was unknown and which may still be made.
pub(super) struct Unmade {
    /// The owners that it asks for. None for a call that grants nothing.
    pub(super) owners: Vec<Owner>,
    /// After this time a late call is not made any more: a server that has closed its connection
    /// does not run it.
    pub(super) until: Instant,
    /// Makes the call on the store, or refuses it without one.
    pub(super) make: Make,
}

type Make = Box<dyn FnOnce(Option<&MemoryStore>) + Send>;

/// The current fault, and everything that waits for its end.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) current: Option<Fault>,
    pub(super) hanging: VecDeque<Unmade>,
    /// Answers that are held back.
    pub(super) muted: Vec<Box<dyn FnOnce() + Send>>,
    pub(super) late: Vec<Unmade>,
    /// The owners of late and hanging calls that are being made.
    making: Vec<Owner>,
    /// The store was unreachable and has not worked since.
    was_away: bool,
    pub(super) calls: Calls,
    /// When the store last restarted empty.
    pub(super) restarted: Option<Instant>,
}

/// What the end of a fault lets happen, while the faults are not locked.
#[derive(Default)]
pub(super) struct Released {
    hanging: VecDeque<Unmade>,
    muted: Vec<Box<dyn FnOnce() + Send>>,
    /// The late calls are made, or given up.
    pub(super) ends_late: bool,
    is_unreachable: bool,
    is_back: bool,
}

impl Faults {
    /// Whether no call waits.
    pub(super) fn is_clear(&self) -> bool {
        self.hanging.is_empty() && self.muted.is_empty() && self.late.is_empty()
    }

    /// Changes the fault.
    pub(super) fn set(&mut self, fault: Option<Fault>) -> Released {
        let before = mem::replace(&mut self.current, fault);
        let mut released = Released::default();
        if before == fault {
            return released;
        }
        if fault != Some(Fault::Mute) {
            released.muted = mem::take(&mut self.muted);
        }
        if fault != Some(Fault::Hang) {
            released.hanging = mem::take(&mut self.hanging);
            let owners = released.hanging.iter().flat_map(|call| &call.owners);
            self.making.extend(owners);
        }
        released.ends_late = fault != Some(Fault::Late);
        if fault == Some(Fault::Unreachable) {
            released.is_unreachable = true;
            self.was_away = true;
        } else if fault != Some(Fault::Hang) {
            released.is_back = mem::take(&mut self.was_away);
        }
        released
    }

    /// Takes one of the late calls, if its turn has come: now and then, or in any case.
    pub(super) fn take_late(&mut self, in_any_case: bool) -> Option<Unmade> {
        let one_of = if in_any_case { 1.0 } else { 2.0 };
        let at = (random() * one_of * self.late.len() as f64) as usize;
        let late = (at < self.late.len()).then(|| self.late.swap_remove(at))?;
        self.making.extend(&late.owners);
        Some(late)
    }

    /// Notes that a late call was made.
    pub(super) fn was_made(&mut self, owners: &[Owner]) {
        self.making.retain(|owner| !owners.contains(owner));
    }

    /// Whether an acquire of this owner may still be made. The store may also make sure that it is
    /// not.
    pub(super) fn may_come_late(&mut self, owner: Owner) -> bool {
        let is_of_owner = |late: &Unmade| late.owners.contains(&owner);
        if random() < 0.5 {
            self.late.retain(|late| !is_of_owner(late));
        }
        self.late.iter().any(is_of_owner) || self.making.contains(&owner)
    }
}

impl Released {
    /// `made` is told the owners of each call that was made.
    pub(super) fn happen(self, store: &MemoryStore, made: impl Fn(&[Owner])) {
        self.muted.into_iter().for_each(|answer| answer());
        for call in self.hanging {
            (call.make)((!self.is_unreachable).then_some(store));
            made(&call.owners);
        }
        if self.is_back {
            store.tell_all_reconnected();
        }
    }
}

impl Unmade {
    /// Makes the call, unless its time is over. Half of the calls are never made. Returns its
    /// owners.
    pub(super) fn make_or_drop(self, store: &MemoryStore) -> Vec<Owner> {
        if now() < self.until && random() < 0.5 {
            (self.make)(Some(store));
        }
        self.owners
    }
}

/// The error of every call under [`Fault::Unreachable`].
pub(super) fn unreachable() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the store simulates an unreachable server (`FaultyStore::set_fault`)",
    )
}

/// The error of a call that may take effect later, under [`Fault::Late`].
pub(super) fn broken() -> Error {
    let message = "the store simulates a broken connection (`FaultyStore::set_fault`)";
    Error::broken(message, None)
}
