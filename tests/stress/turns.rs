//! One request: locks or claims a key, holds, and leaves in one of several ways.
//!
//! The stress test and the model checker both include this file. Each has an [`Actor`] of its own,
//! which says how to ask, how long to hold and which errors are expected, and `super::subject`,
//! which names the parts of the crate.

use std::time::Duration;

use super::{
    random::Random,
    requests::Actor,
    subject::{Error, ErrorKind, LockGuard, Mode, RunOnceError, Status},
    witness::{Inside, Waiting, Wish, is_result_of},
};

/// The keys that a request may ask for, and how long the request waits at most if it does not wait
/// for ever.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) key: String,
    pub(crate) all: Vec<String>,
    pub(crate) limit: Duration,
}

/// What the requests of an actor use its keys for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uses {
    /// Exclusive locks.
    Locks,
    /// Shared and exclusive locks.
    Reports,
    /// Permits, up to so many at each key.
    Permits(u32),
    /// Shared locks only: all requests fit beside each other.
    Reads,
    /// Permits, of which there are more than requests: all requests fit beside each other.
    Plenty,
}

/// More permits than any world has requests under way.
const PLENTY: u32 = 1_000;

impl Uses {
    fn mode(self, random: &mut Random) -> Mode {
        match self {
            Self::Reads => Mode::Shared,
            Self::Reports if random.percent(65) => Mode::Shared,
            Self::Reports | Self::Locks => Mode::Exclusive,
            Self::Permits(of) if random.percent(80) => Mode::Permit { of },
            Self::Permits(of) => Mode::Permit {
                of: 1 + random.within(0..u64::from(of)) as u32,
            },
            Self::Plenty => Mode::Permit { of: PLENTY },
        }
    }

    /// Whether all requests fit beside each other.
    fn all_fit(self) -> bool {
        matches!(self, Self::Reads | Self::Plenty)
    }
}

/// How long a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patient {
    Always,
    For(Duration),
    Never,
}

/// What a request asks for.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// One key, or all of an actor.
    keys: Vec<String>,
    mode: Mode,
    patient: Patient,
}

/// The error or panic of a request that was to end without a result.
#[derive(Debug)]
pub(crate) struct Planned;

impl Actor {
    /// A question for one key in one of the ways there are, or for all keys. `limit` is for a
    /// request that waits only so long.
    fn question(&mut self) -> Question {
        let Choice { key, all, limit } = self.choose();
        let mode = self.uses().mode(&mut self.random);
        let is_for_all = !matches!(mode, Mode::Permit { .. }) && self.random.percent(25);
        Question {
            keys: if is_for_all { all } else { vec![key] },
            mode,
            patient: match self.random.within(0..10) {
                0..2 => Patient::Never,
                2..4 => Patient::For(limit),
                _ => Patient::Always,
            },
        }
    }

    /// Asks for what a question says. Returns no guard if the key is held.
    async fn ask(&self, question: &Question) -> Result<Vec<LockGuard>, Error> {
        let (locks, mode) = (self.locks(), question.mode);
        let [key] = &*question.keys else {
            return self.ask_for_all(question).await;
        };
        let key = key.as_str();
        let tried = match (mode, question.patient) {
            (Mode::Exclusive, Patient::Never) => locks.lock(key).now().await?,
            (Mode::Exclusive, Patient::For(limit)) => {
                none_in_time(locks.lock(key).within(limit).await)?
            }
            (Mode::Exclusive, Patient::Always) => Some(locks.lock(key).await?),
            (Mode::Shared, Patient::Never) => locks.lock(key).shared().now().await?,
            (Mode::Shared, Patient::For(limit)) => {
                none_in_time(locks.lock(key).shared().within(limit).await)?
            }
            (Mode::Shared, Patient::Always) => Some(locks.lock(key).shared().await?),
            (Mode::Permit { of }, Patient::Never) => locks.permit(key, of).now().await?,
            (Mode::Permit { of }, Patient::For(limit)) => {
                none_in_time(locks.permit(key, of).within(limit).await)?
            }
            (Mode::Permit { of }, Patient::Always) => Some(locks.permit(key, of).await?),
            #[allow(unreachable_patterns)] // within the crate, there are no other modes
            (mode, _) => unreachable!("no request asks for {mode}"),
        };
        Ok(self.checked(question, tried.into_iter().collect()))
    }

    async fn ask_for_all(&self, question: &Question) -> Result<Vec<LockGuard>, Error> {
        let mut lock = self.locks().lock_all(question.keys.clone());
        if question.mode == Mode::Shared {
            lock = lock.shared();
        }
        let tried = match question.patient {
            Patient::Never => lock.now().await?,
            Patient::For(limit) => none_in_time(lock.within(limit).await)?,
            Patient::Always => Some(lock.await?),
        };
        if let Some(guards) = tried.iter().find(|it| it.len() != question.keys.len()) {
            let violation = format!("{question:?}: was granted {guards:?}");
            self.world.witness.violation(violation);
        }
        Ok(self.checked(question, tried.unwrap_or_default()))
    }

    /// Guards as the question asks for them, or none of them for a good reason.
    fn checked(&self, question: &Question, guards: Vec<LockGuard>) -> Vec<LockGuard> {
        let Question {
            keys,
            mode,
            patient,
        } = question;
        if let Some(guard) = guards.iter().find(|guard| guard.mode() != *mode) {
            let found = guard.mode();
            let violation = format!("{keys:?}: asked for {mode}, and was granted {found}");
            self.world.witness.violation(violation);
        }
        let refused = guards.is_empty() && *patient == Patient::Never;
        if refused && self.uses().all_fit() && !self.may_fail() {
            let violation = format!("{keys:?}: {mode} was refused, and nobody was in the way");
            self.world.witness.violation(violation);
        }
        guards
    }

    /// Asks as a witness sees it. `None` if the request has given up.
    async fn ask_and_wait(&mut self, question: &Question) -> Option<Result<Vec<LockGuard>, Error>> {
        let (witness, patience) = (self.world.witness.clone(), self.patience());
        if question.patient == Patient::Never {
            return patience.of(self.ask(question)).await;
        }
        let wish = match question.keys.len() {
            1 => Wish::Turn(question.mode),
            _ => Wish::Several,
        };
        let wait = |key: &String| witness.waits(self.instance, key, wish);
        let mut waiting: Vec<_> = question.keys.iter().map(wait).collect();
        let outcome = patience.of(waiting[0].until(self.ask(question))).await;
        if matches!(&outcome, Some(Ok(guards)) if !guards.is_empty()) {
            waiting.into_iter().for_each(Waiting::served);
        }
        outcome
    }

    /// A turn at one or several keys.
    pub(super) async fn lock(&mut self) {
        let question = self.question();
        let asked = self.world.witness.asked();
        let guards = match self.ask_and_wait(&question).await {
            None => return,
            // A request that does not wait found the key held, or a limit was over.
            Some(Ok(guards)) if guards.is_empty() => return,
            Some(Ok(guards)) => guards,
            // Who does not wait is refused while the store is silent.
            Some(Err(error)) if question.patient == Patient::Never => {
                return self.unanswered(&error);
            }
            Some(Err(error)) => return self.failed(&error),
        };
        let witness = self.world.witness.clone();
        let enter = |guard| witness.enter(guard, asked);
        let mut inside: Vec<_> = guards.into_iter().map(enter).collect();
        let guards: Vec<_> = inside.iter().map(Inside::guard).collect();
        self.note(format_args!("is inside: {guards:?}"));
        let clones: Vec<_> = if self.random.percent(20) {
            inside.iter().map(|inside| inside.guard().clone()).collect()
        } else {
            Vec::new()
        };
        self.hold().await;
        match self.random.within(0..8) {
            0 => self.confirm(&inside).await,
            1 => self.watch(&inside[0]).await,
            2 => self.work(&inside[0]).await,
            3 if question.mode == Mode::Exclusive => inside.extend(self.lock_more(&inside).await),
            _ => {}
        }
        if self.uses() == Uses::Reports && self.random.percent(30) {
            self.downgrade(&inside).await;
            self.hold().await;
        }
        match self.random.within(0..10) {
            0 => std::panic::resume_unwind(Box::new(Planned)),
            1..4 => self.release(inside).await,
            4 => drop(clones),
            _ => drop(inside),
        }
    }

    /// Asks the store whether the turns are held.
    async fn confirm(&mut self, inside: &[Inside]) {
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.guard().confirm()).await {
                self.unanswered(&error);
            }
        }
    }

    /// Waits for a loss while the turn goes on. The loss is one that the guard reports.
    async fn watch(&mut self, inside: &Inside) {
        let guard = inside.guard();
        let (witness, watched) = (self.world.witness.clone(), guard.watch());
        let loss = tokio::select! {
            biased;
            loss = guard.lost() => Some(loss),
            loss = watched => Some(loss),
            () = self.hold() => None,
        };
        let status = guard.status();
        if let Some(loss) = loss.filter(|loss| status != Status::Lost(*loss)) {
            witness.violation(format_args!(
                "{loss} was reported of a turn that is {status:?}"
            ));
        }
    }

    /// Works only as long as the turn is held.
    async fn work(&mut self, inside: &Inside) {
        let guard = inside.guard();
        if let Err(error) = guard.run(self.hold()).await {
            self.failed(&error);
        }
    }

    /// Locks the keys behind those that are held, in the order that all requests keep.
    async fn lock_more(&mut self, inside: &[Inside]) -> Vec<Inside> {
        let all = self.choose().all;
        let in_hand: Vec<_> = inside.iter().map(|inside| inside.guard().clone()).collect();
        let is_last = |key: &&String| {
            in_hand
                .iter()
                .all(|guard| guard.key().as_str() < key.as_str())
        };
        let mut further: Vec<_> = all.iter().filter(is_last).cloned().collect();
        if further.is_empty() || self.uses() != Uses::Locks {
            return Vec::new();
        }
        let (witness, asked) = (self.world.witness.clone(), self.world.witness.asked());
        let wait = |key: &String| witness.waits(self.instance, key, Wish::Several);
        let waiting: Vec<_> = further.iter().map(wait).collect();
        further.push(in_hand[0].key().as_str().to_owned());
        let patience = self.patience();
        let locking = self.locks().lock_all(further).with(&in_hand);
        let outcome = patience.of(locking).await;
        drop(waiting);
        match outcome {
            None => Vec::new(),
            Some(Err(error)) => {
                self.failed(&error);
                Vec::new()
            }
            Some(Ok(mut guards)) => {
                guards.pop(); // of the key in hand
                let enter = |guard| witness.enter(guard, asked);
                guards.into_iter().map(enter).collect()
            }
        }
    }

    /// Lets others share the keys, and does not always wait for the answer.
    async fn downgrade(&mut self, inside: &[Inside]) {
        self.note("downgrades");
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.guard().downgrade()).await {
                self.unanswered(&error);
            }
        }
    }

    /// Releases by hand, and does not always wait for the answer.
    async fn release(&mut self, inside: Vec<Inside>) {
        self.note("releases");
        for inside in inside {
            let patience = self.patience();
            if let Some(Err(error)) = patience.of(inside.leave().release()).await {
                self.unanswered(&error);
            }
        }
    }

    /// Work that is done once for the key, whose result is kept for `retain`.
    pub(super) async fn claim(&mut self, key: String, retain: Duration) {
        let (locks, patience) = (self.locks().clone(), self.patience());
        let (witness, instance) = (self.world.witness.clone(), self.instance);
        let work = async |_: LockGuard| {
            let working = witness.work(instance, &key);
            self.hold().await;
            match self.random.within(0..10) {
                0 => std::panic::resume_unwind(Box::new(Planned)),
                1 => Err(Planned),
                _ => Ok(working.value()),
            }
        };
        let outcome = patience.of(locks.run_once(&*key, retain, work)).await;
        match outcome {
            Some(Ok(once)) if !is_result_of(&key, &once.value) => {
                let result = once.value;
                witness.violation(format_args!("{key}: was given the result {result:?}"));
            }
            None | Some(Ok(_) | Err(RunOnceError::Work(Planned))) => {}
            Some(Err(RunOnceError::Lock(error))) => self.failed(&error),
            Some(Err(error)) => witness.violation(format_args!("{key}: {error:?}")),
        }
    }
}

/// Nothing for a request whose limit was over, perhaps before the store's answer was taken.
fn none_in_time<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::Held | ErrorKind::Unreachable) => Ok(None),
        outcome => outcome.map(Some),
    }
}
