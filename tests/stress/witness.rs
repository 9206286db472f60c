//! The properties that hold in every world, watched from outside through the guards alone.
//!
//! 1. Two guards of different turns at one key are never held at the same time, unless both share the key; and never more
//!    permits than there are. A guard that is lost stays lost, so guards that are seen held one after the other under the
//!    witness's lock were held at the same time.
//! 2. Tokens rise: a held guard has a higher token than every exclusive turn that entered before; and an exclusive one, than
//!    every turn that entered before.
//! 3. A turn is lost to `max_hold` only when that turn itself has lasted so long.
//! 4. In one instance, the work of one claim does not begin a second time before its end.
//!
//! A store that forgets its leases breaks 1 and 2 for turns under leases from before. Such leases run out, and serve no request
//! that is made after every instance has learned that the store forgot.
//!
//! The stress test and the model checker both include this file; `super::subject` names the parts of the crate, the clock and
//! the mutex of each.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use super::subject::{Instant, LockGuard, Loss, Mode, Mutex, Status, now};

#[derive(Debug)]
pub(crate) struct Witness {
    settings: Settings,
    keys: BTreeMap<String, Mutex<Seen>>,
    works: Mutex<Works>,
    memory: Mutex<Memory>,
    violations: Mutex<Vec<String>>,
}

/// The promises that the settings of the locks make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    /// Whether a turn may be lost at all: whether faults last longer than the lease, or turns longer than `max_hold`.
    pub(crate) may_lose: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The turns that are inside now.
    inside: Vec<Entry>,
    entered: u64,
    highest_token: u64,
    highest_exclusive_token: u64,
    /// When the last turn left that was held to its end.
    left: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    asked: Asked,
    guard: LockGuard,
}

/// When a request was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    /// How many times the store had forgotten its leases and every instance knew.
    known: u64,
}

/// The memory of the store.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// How often the store has forgotten its leases, and when it did so last.
    forgot: u64,
    last: Option<Instant>,
    /// How much of that every instance knows.
    known: u64,
}

#[derive(Debug, Default)]
struct Works {
    /// Works under way, by instance and key.
    running: BTreeMap<(usize, String), u32>,
    begun: u64,
}

impl Witness {
    pub(crate) fn new(settings: Settings, keys: &[String]) -> Arc<Self> {
        Arc::new(Self {
            settings,
            keys: keys
                .iter()
                .map(|key| (key.clone(), Mutex::default()))
                .collect(),
            works: Mutex::default(),
            memory: Mutex::default(),
            violations: Mutex::default(),
        })
    }

    /// The store is about to forget its leases.
    pub(crate) fn store_forgets(&self) {
        let mut memory = self.memory.lock();
        memory.forgot += 1;
        memory.last = Some(now());
    }

    /// Every instance has learned that the store has forgotten its leases.
    pub(crate) fn fleet_knows(&self) {
        let mut memory = self.memory.lock();
        memory.known = memory.forgot;
    }

    /// To be noted before a request is made.
    pub(crate) fn asked(&self) -> Asked {
        let known = self.memory.lock().known;
        Asked { at: now(), known }
    }

    /// Registers the turn of a guard. The turn is inside until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, guard: LockGuard, asked: Asked) -> Inside {
        let view = self.view();
        let mut seen = self.seen(&guard);
        let is_exclusive = guard.mode() == Mode::Exclusive;
        let token = guard.token();
        let highest = match is_exclusive {
            true => seen.highest_token,
            false => seen.highest_exclusive_token,
        };
        if token <= highest && guard.is_held() && view.is_sound(asked) && view.is_current(self) {
            self.violation(format_args!(
                "{}: token {token} entered after token {highest}",
                guard.key()
            ));
        }
        seen.highest_token = seen.highest_token.max(token);
        if is_exclusive {
            seen.highest_exclusive_token = token.max(highest);
        }
        seen.entered += 1;
        let id = seen.entered;
        // The turn began after the request, and an exclusive one after the end of every turn before.
        let left = seen.left.filter(|_| is_exclusive);
        let began = left.map_or(asked.at, |left| left.max(asked.at));
        seen.inside.push(Entry {
            id,
            asked,
            guard: guard.clone(),
        });
        self.check_room(&seen, id, view);
        drop(seen);
        let inside = Inside {
            witness: self.clone(),
            guard: Some(guard),
            id,
            began,
        };
        inside.check_status();
        inside
    }

    /// The work of a claim begins in an instance. The work is under way until the result is dropped.
    pub(crate) fn work(self: &Arc<Self>, instance: usize, key: &str) -> Working {
        let place = (instance, key.to_owned());
        let mut works = self.works.lock();
        works.begun += 1;
        let value = works.begun;
        let running = works.running.entry(place.clone()).or_default();
        *running += 1;
        let running = *running;
        drop(works);
        if running > 1 {
            self.violation(format_args!(
                "{key}: instance {instance} does the work of one claim {running} times at once"
            ));
        }
        Working {
            witness: self.clone(),
            place,
            value,
        }
    }

    pub(crate) fn violation(&self, what: impl ToString) {
        self.violations.lock().push(what.to_string());
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// How many turns entered at each key, and how many works began.
    pub(crate) fn counts(&self) -> (Vec<(&str, u64)>, u64) {
        let turns = self
            .keys
            .iter()
            .map(|(key, seen)| (key.as_str(), seen.lock().entered));
        (turns.collect(), self.works.lock().begun)
    }

    fn seen(&self, guard: &LockGuard) -> impl std::ops::DerefMut<Target = Seen> + '_ {
        self.keys[guard.key().as_str()].lock()
    }

    /// To be taken before guards are looked at.
    fn view(&self) -> View {
        let memory = *self.memory.lock();
        let ran_out = memory
            .last
            .is_none_or(|at| now() > at + self.settings.lease);
        View { memory, ran_out }
    }

    /// Checks that the modes of the turns inside leave room for each other.
    fn check_room(&self, seen: &Seen, id: u64, view: View) {
        let counts = |entry: &&Entry| view.is_sound(entry.asked) && entry.guard.is_held();
        let Some(mine) = seen
            .inside
            .iter()
            .find(|entry| entry.id == id)
            .filter(counts)
        else {
            return;
        };
        let mode = mine.guard.mode();
        let others = seen.inside.iter().filter(|entry| entry.id != id);
        let others: Vec<_> = others.filter(counts).collect();
        let is_shared = |other: &&Entry| other.guard.mode() == Mode::Shared;
        let has_room = match mode {
            Mode::Shared => others.iter().all(is_shared),
            Mode::Permit { of } => others.len() < of as usize,
            _ => others.is_empty(),
        };
        // The mode may have changed meanwhile, but not back.
        if !has_room && mine.guard.mode() == mode && view.is_current(self) {
            let tokens: Vec<_> = others.iter().map(|other| other.guard.token()).collect();
            self.violation(format_args!(
                "{}: token {} ({mode}) is held at the same time as {tokens:?}",
                mine.guard.key(),
                mine.guard.token()
            ));
        }
    }
}

/// The memory of the store when the witness began to look at guards.
#[derive(Debug, Clone, Copy)]
struct View {
    memory: Memory,
    /// Every lease that the store has forgotten has run out.
    ran_out: bool,
}

impl View {
    /// Whether a request that was made then is not served under a lease that the store has forgotten.
    fn is_sound(&self, asked: Asked) -> bool {
        self.ran_out || asked.known == self.memory.forgot
    }

    /// Whether the store has forgotten nothing since.
    fn is_current(&self, witness: &Witness) -> bool {
        self.memory.forgot == witness.memory.lock().forgot
    }
}

/// A turn that is inside. Dropped, the turn leaves, and then the guard is dropped.
#[derive(Debug)]
pub(crate) struct Inside {
    witness: Arc<Witness>,
    guard: Option<LockGuard>,
    id: u64,
    /// The turn began at this time or later.
    began: Instant,
}

impl Inside {
    pub(crate) fn guard(&self) -> &LockGuard {
        self.guard.as_ref().expect("taken only by the end")
    }

    /// The turn leaves; the guard is still there.
    pub(crate) fn leave(mut self) -> LockGuard {
        self.end().expect("ended only once")
    }

    fn end(&mut self) -> Option<LockGuard> {
        let guard = self.guard.take()?;
        let view = self.witness.view();
        let mut seen = self.witness.seen(&guard);
        self.witness.check_room(&seen, self.id, view);
        let at = seen.inside.iter().position(|entry| entry.id == self.id);
        let registered = at.map(|at| seen.inside.swap_remove(at));
        if registered
            .as_ref()
            .is_some_and(|entry| view.is_sound(entry.asked))
            && guard.is_held()
        {
            seen.left = Some(now());
        }
        drop(seen);
        drop(registered);
        self.guard = Some(guard);
        self.check_status();
        self.guard.take()
    }

    fn check_status(&self) {
        let (guard, settings) = (self.guard(), self.witness.settings);
        let Status::Lost(loss) = guard.status() else {
            return;
        };
        let lasted = now().saturating_duration_since(self.began);
        if loss == Loss::MaxHold && lasted < settings.max_hold {
            self.witness.violation(format_args!(
                "{}: token {} was lost to `max_hold` of {:?} after {lasted:?} at most",
                guard.key(),
                guard.token(),
                settings.max_hold
            ));
        }
        if !settings.may_lose {
            self.witness.violation(format_args!(
                "{}: token {} was lost, and nothing in this world loses a turn: {loss}",
                guard.key(),
                guard.token()
            ));
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Work that is under way.
#[derive(Debug)]
pub(crate) struct Working {
    witness: Arc<Witness>,
    place: (usize, String),
    value: u64,
}

impl Working {
    /// A result that no other work has.
    pub(crate) fn value(&self) -> String {
        format!("{} {}", self.place.1, self.value)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut works = self.witness.works.lock();
        let running = works.running.get_mut(&self.place);
        *running.expect("counted at its beginning") -= 1;
    }
}

/// Whether a result is one that work for this key had.
pub(crate) fn is_result_of(key: &str, value: &str) -> bool {
    value
        .strip_prefix(key)
        .is_some_and(|rest| rest.starts_with(' '))
}
