//! What must hold in every world, watched from outside by nothing but the guards.
//!
//! 1. Two guards of different turns at one key are never held at the same time. A guard that is lost stays lost, so two
//!    guards that are seen held one after the other under the witness's lock were held at the same time.
//! 2. Tokens rise: a held guard has a higher token than every turn that entered before.
//! 3. A turn is lost to `max_hold` only when that turn itself has lasted so long.
//! 4. In one instance, the work of one claim does not begin while it is under way.
//!
//! A store that forgets its leases breaks 1 and 2 until the leases from before have run out. The stress test and the model
//! checker both include this file; `super::subject` names the parts of the crate, the clock and the mutex of each.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use super::subject::{Instant, LockGuard, Loss, Mutex, Status, now};

#[derive(Debug)]
pub(crate) struct Witness {
    settings: Settings,
    keys: BTreeMap<String, Mutex<Seen>>,
    works: Mutex<Works>,
    /// When the store last forgot its leases.
    forgot: Mutex<Option<Instant>>,
    violations: Mutex<Vec<String>>,
}

/// What is promised by the settings of the locks.
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
    inside: Vec<(u64, LockGuard)>,
    entered: u64,
    highest_token: u64,
    /// When the last turn left that was held to its end.
    left: Option<Instant>,
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
            forgot: Mutex::default(),
            violations: Mutex::default(),
        })
    }

    /// The store is about to forget its leases.
    pub(crate) fn store_forgets(&self) {
        *self.forgot.lock() = Some(now());
    }

    /// Registers the turn of a guard, which was asked for at `asked`. The turn is inside until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, guard: LockGuard, asked: Instant) -> Inside {
        let memory = self.memory();
        let mut seen = self.seen(&guard);
        let (token, held) = (guard.token(), guard.is_held());
        if held && token <= seen.highest_token && memory.is_intact(self) {
            self.violation(format_args!(
                "{}: token {token} entered after token {}",
                guard.key(),
                seen.highest_token
            ));
        }
        seen.highest_token = seen.highest_token.max(token);
        seen.entered += 1;
        let id = seen.entered;
        // The turn began after the request, and after the end of every turn before.
        let began = seen.left.map_or(asked, |left| left.max(asked));
        seen.inside.push((id, guard.clone()));
        self.check_alone(&seen, id, memory);
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

    /// How many turns entered, and how many works began.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let turns = self.keys.values().map(|seen| seen.lock().entered).sum();
        (turns, self.works.lock().begun)
    }

    fn seen(&self, guard: &LockGuard) -> impl std::ops::DerefMut<Target = Seen> + '_ {
        self.keys[guard.key().as_str()].lock()
    }

    /// To be taken before guards are looked at.
    fn memory(&self) -> Memory {
        let forgot = *self.forgot.lock();
        Memory {
            forgot,
            ran_out: forgot.is_none_or(|at| now() > at + self.settings.lease),
        }
    }

    fn check_alone(&self, seen: &Seen, id: u64, memory: Memory) {
        let held: Vec<_> = seen
            .inside
            .iter()
            .filter(|(_, guard)| guard.is_held())
            .collect();
        let Some((_, mine)) = held.iter().find(|(inside, _)| *inside == id) else {
            return;
        };
        for (other, theirs) in &held {
            if *other != id && memory.is_intact(self) {
                self.violation(format_args!(
                    "{}: tokens {} and {} are held at the same time",
                    mine.key(),
                    theirs.token(),
                    mine.token()
                ));
            }
        }
    }
}

/// What the store remembered when the witness began to look.
#[derive(Debug, Clone, Copy)]
struct Memory {
    forgot: Option<Instant>,
    /// The leases that the store has forgotten have run out.
    ran_out: bool,
}

impl Memory {
    /// Whether no guard was looked at meanwhile whose lease the store had forgotten.
    fn is_intact(self, witness: &Witness) -> bool {
        self.ran_out && *witness.forgot.lock() == self.forgot
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
        let memory = self.witness.memory();
        let mut seen = self.witness.seen(&guard);
        self.witness.check_alone(&seen, self.id, memory);
        if guard.is_held() {
            seen.left = Some(now());
        }
        let at = seen.inside.iter().position(|(id, _)| *id == self.id);
        let registered = at.map(|at| seen.inside.swap_remove(at));
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
