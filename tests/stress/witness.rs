//! The properties that hold in every world, watched from outside through the guards alone.
//!
//! 1. Two guards of different turns at one key are never held at the same time, unless both share
//!    the key; and never more permits than there are. A guard that is lost stays lost, so guards
//!    that are seen held one after the other under the witness's lock were held at the same time.
//! 2. Tokens rise: a held guard has a higher token than every exclusive turn that entered before;
//!    and an exclusive one, than every turn that entered before.
//! 3. A turn is lost to `max_hold` only when that turn itself has lasted so long.
//! 4. In one instance, the work of one claim does not begin a second time before its end.
//! 5. The requests of one instance have their turns in the order in which they came: who was in
//!    line when another request was made has its turn before that one, unless both share the key or
//!    use permits.
//! 6. A key does not stand still while a request waits that fits beside the holders
//!    ([`Witness::standing`]).
//!
//! A store that forgets its leases breaks 1 and 2 for turns under leases from before. Such leases
//! run out, and serve no request that is made after every instance has learned that the store
//! forgot.
//!
//! The stress test and the model checker both include this file; `super::subject` names the parts
//! of the crate, the clock and the mutex of each.

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
    /// Whether a turn may be lost at all: whether faults last longer than the lease, or turns
    /// longer than `max_hold`.
    pub(crate) may_lose: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The turns that are inside now.
    inside: Vec<Entry>,
    /// Numbers the requests and the turns.
    entered: u64,
    turns: u64,
    highest_token: u64,
    highest_exclusive_token: u64,
    /// When the last turn left that was held to its end.
    left: Option<Instant>,
    /// The requests that wait.
    waiting: Vec<Wait>,
    /// The order of the requests of each instance.
    lines: BTreeMap<usize, Order>,
    /// When a turn last entered or left.
    turned: Option<Instant>,
}

/// A request that waits.
#[derive(Debug)]
struct Wait {
    id: u64,
    wish: Wish,
    since: Instant,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A turn in this mode.
    Turn(Mode),
    /// Several keys, of which the request may hold this one already.
    Several,
}

/// The order of the requests of one instance at one key.
#[derive(Debug, Default)]
struct Order {
    /// How many requests have been seen in line.
    in_line: u64,
    /// How many requests had been seen in line when a request was made that has had its turn: the
    /// highest number.
    passed: u64,
    /// The same of exclusive turns only.
    passed_by_exclusive: u64,
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
        let highest = if is_exclusive {
            seen.highest_token
        } else {
            seen.highest_exclusive_token
        };
        if token <= highest && guard.is_held() && view.is_sound(asked) && view.is_current(self) {
            self.violation(format_args!(
                "{}: token {token} entered after token {highest}",
                guard.key()
            ));
        }
        seen.highest_token = seen.highest_token.max(token);
        if is_exclusive {
            // Not the highest one of all: a turn that was lost before it entered may be late.
            seen.highest_exclusive_token = seen.highest_exclusive_token.max(token);
        }
        seen.entered += 1;
        seen.turns += 1;
        seen.turned = Some(now());
        let id = seen.entered;
        // The turn began after the request, and an exclusive one after the end of every turn
        // before.
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

    /// A request is about to be made. The request waits until the result is dropped.
    pub(crate) fn waits(self: &Arc<Self>, instance: usize, key: &str, wish: Wish) -> Waiting {
        let mut seen = self.keys[key].lock();
        seen.entered += 1;
        let id = seen.entered;
        let came_after = seen.lines.entry(instance).or_default().in_line;
        let since = now();
        seen.waiting.push(Wait { id, wish, since });
        drop(seen);
        Waiting {
            witness: self.clone(),
            instance,
            key: key.to_owned(),
            id,
            wish,
            came_after,
            place: None,
        }
    }

    /// The keys at which a request waits that fits beside the holders and all others who wait, or
    /// at which nobody holds anything; and since when a request has waited there and no turn
    /// has entered or left.
    pub(crate) fn standing(&self) -> Vec<(&str, Instant)> {
        let standing = self.keys.iter().filter_map(|(key, seen)| {
            let seen = seen.lock();
            let waits = seen.waiting.iter().map(|wait| wait.since).min();
            let since = waits.filter(|_| seen.could_serve())?;
            Some((
                key.as_str(),
                seen.turned.map_or(since, |turned| since.max(turned)),
            ))
        });
        standing.collect()
    }

    /// The work of a claim begins in an instance. The work is under way until the result is
    /// dropped.
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
            .map(|(key, seen)| (key.as_str(), seen.lock().turns));
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
            // A turn under a higher limit may have begun since.
            Mode::Permit { of } => {
                let is_within = |other: &&&Entry| permits(other.guard.mode()) <= of;
                others.iter().filter(is_within).count() < of as usize
            }
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

impl Seen {
    /// Whether a request could have its turn now, whoever goes first.
    fn could_serve(&self) -> bool {
        let is_several = |wait: &Wait| wait.wish == Wish::Several;
        if self.waiting.is_empty() || self.waiting.iter().any(is_several) {
            return false;
        }
        let holders = self.inside.iter().filter(|entry| entry.guard.is_held());
        let holders: Vec<_> = holders.map(|entry| entry.guard.mode()).collect();
        let is_shared = |mode: Mode| mode == Mode::Shared;
        let wishes = || self.waiting.iter().map(|wait| wait.wish);
        let all_share = holders.iter().copied().all(is_shared)
            && wishes().all(|wish| wish == Wish::Turn(Mode::Shared));
        let others = holders.len() + self.waiting.len() - 1;
        let is_permitted =
            |wish: Wish| matches!(wish, Wish::Turn(Mode::Permit { of }) if others < of as usize);
        holders.is_empty() || all_share || wishes().any(is_permitted)
    }
}

/// The limit of a permit.
fn permits(mode: Mode) -> u32 {
    match mode {
        Mode::Permit { of } => of,
        _ => 1,
    }
}

/// A request that waits for its turn, until dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    witness: Arc<Witness>,
    instance: usize,
    key: String,
    id: u64,
    wish: Wish,
    /// How many requests of the instance were in line before this one was made.
    came_after: u64,
    /// The number of the request among those that were in line, once it was.
    place: Option<u64>,
}

impl Waiting {
    /// Polls the future of the request, and notes when the request is in line.
    pub(crate) async fn until<F: Future>(&mut self, asking: F) -> F::Output {
        let mut asking = std::pin::pin!(asking);
        std::future::poll_fn(|cx| {
            let outcome = asking.as_mut().poll(cx);
            if outcome.is_pending() && self.place.is_none() {
                let mut seen = self.witness.keys[&self.key].lock();
                let order = seen.lines.entry(self.instance).or_default();
                order.in_line += 1;
                self.place = Some(order.in_line);
            }
            outcome
        })
        .await
    }

    /// The request has its turn.
    pub(crate) fn served(self) {
        let Wish::Turn(mode @ (Mode::Exclusive | Mode::Shared)) = self.wish else {
            return;
        };
        let mut seen = self.witness.keys[&self.key].lock();
        let order = seen.lines.entry(self.instance).or_default();
        let overtaken_by = match mode {
            Mode::Exclusive => order.passed,
            _ => order.passed_by_exclusive,
        };
        order.passed = order.passed.max(self.came_after);
        if mode == Mode::Exclusive {
            order.passed_by_exclusive = order.passed_by_exclusive.max(self.came_after);
        }
        drop(seen);
        // A turn that is lost before its request has seen it begins anew at the end of the line.
        let place = self.place.filter(|_| !self.witness.settings.may_lose);
        if let Some(place) = place.filter(|place| *place <= overtaken_by) {
            self.witness.violation(format_args!(
                "{}: in instance {}, a request ({mode}) that was number {place} in line had its turn after one that came when \
                 {overtaken_by} were in line",
                self.key, self.instance
            ));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut seen = self.witness.keys[&self.key].lock();
        seen.waiting.retain(|wait| wait.id != self.id);
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
    /// Whether a request that was made then is not served under a lease that the store has
    /// forgotten.
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
        // Taken before the guard is asked: a turn that is lost right after that may be followed by
        // the next one, before this thread gets on.
        let left = now();
        seen.turned = Some(left);
        if registered
            .as_ref()
            .is_some_and(|entry| view.is_sound(entry.asked))
            && guard.is_held()
        {
            seen.left = Some(left);
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
