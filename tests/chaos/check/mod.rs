//! The checker: reads the record of a run, and nothing else.
//!
//! | promise | module |
//! |---|---|
//! | no acknowledged deposit is lost, none counts twice; tokens rise with balances and with time | `deposits` |
//! | all answers of one idempotency key are equal; a second payment has a documented cause | `payments` |
//! | a key stands still only under a fault, and no longer than that fault's documented bound | `stalls` |
//! | nothing is left in the store and in the processes; no panic; memory and descriptors stay flat | `remains` |
//!
//! The checker also counts the acknowledged deposits that a ledger without fencing has lost under
//! the same faults.

mod deposits;
mod payments;
mod remains;
mod stalls;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(crate) use remains::is_left_over;

use crate::record::{Asked, Event, Fault, Kind, Request, Run};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) class: Class,
    pub(crate) what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// The record has no beginning or no end, or hardly anything happened: nothing is proven.
    Incomplete,
    /// An acknowledged deposit is not part of the balance.
    LostUpdate,
    /// A deposit was written twice, or its acknowledgement has another token or balance than its
    /// entry.
    WrongEntry,
    /// A later turn had a token that was not higher.
    TokenFell,
    /// Two answers of one idempotency key differ.
    AnswersDiffer,
    /// A payment was made twice without a fault that explains the second one.
    PaidTwice,
    /// A request was neither answered nor cut off by the end of its replica.
    NoAnswer,
    /// A status that the documentation does not name for this request.
    WrongStatus,
    /// A key stood still for longer than the faults of that time explain.
    Stall,
    /// A lock or a queue is left in the store.
    LeftInStore,
    /// A replica's locks still have something to do.
    LeftInProcess,
    Panic,
    /// A replica ended without being told to, or badly.
    BadEnd,
    MemoryGrew,
    DescriptorsGrew,
}

/// The findings of the checker.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) run: Run,
    /// Deposits that were acknowledged, and payments that were made.
    pub(crate) turns: u64,
    pub(crate) requests: u64,
    pub(crate) abandoned: u64,
    pub(crate) faults: BTreeMap<Kind, u64>,
    pub(crate) longest: Longest,
    pub(crate) paid_twice: PaidTwice,
    pub(crate) unfenced: Unfenced,
    pub(crate) violations: Vec<Violation>,
}

/// The longest times that a key stood still, in µs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Longest {
    /// During or after faults of one kind, with no other kind near.
    pub(crate) by_kind: BTreeMap<Kind, u64>,
    /// With faults of several kinds near.
    pub(crate) with_several: u64,
    /// With no fault near.
    pub(crate) without_fault: u64,
}

/// Payments that were made a second time, by their documented cause.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PaidTwice {
    /// The store has forgotten the record of the first payment.
    pub(crate) forgotten: u64,
    /// The handler's process was killed or paused, or the store was away.
    pub(crate) lease_lost: u64,
}

/// The deposits that a ledger without tokens has acknowledged and lost.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Unfenced {
    pub(crate) acknowledged: u64,
    pub(crate) lost: u64,
}

/// The record, sorted for the checks.
struct Facts<'a> {
    run: &'a Run,
    requests: Vec<&'a Request>,
    faults: Vec<&'a Fault>,
    /// When the machine did not let the test run.
    lags: Vec<(u64, u64)>,
    quiet_at: u64,
    events: &'a [Event],
}

/// Checks a record.
pub(crate) fn check(events: &[Event]) -> Report {
    let mut violations = Vec::new();
    let Some(facts) = Facts::of(events) else {
        let what = "the record has no settings, or does not reach its end".into();
        return Report::incomplete(Violation {
            class: Class::Incomplete,
            what,
        });
    };
    let unfenced = deposits::check(&facts, &mut violations);
    let paid_twice = payments::check(&facts, &mut violations);
    let longest = stalls::check(&facts, &mut violations);
    remains::check(&facts, &mut violations);
    let turns = facts.turns();
    let mut faults = BTreeMap::new();
    for fault in &facts.faults {
        *faults.entry(fault.kind).or_default() += 1;
    }
    if turns == 0 || faults.is_empty() {
        violations.push(Violation {
            class: Class::Incomplete,
            what: format!("{turns} turns, faults: {faults:?}"),
        });
    }
    Report {
        run: facts.run.clone(),
        turns,
        requests: facts.requests.len() as u64,
        abandoned: facts.requests.iter().filter(|r| r.abandoned).count() as u64,
        faults,
        longest,
        paid_twice,
        unfenced,
        violations,
    }
}

impl Report {
    fn incomplete(violation: Violation) -> Self {
        Self {
            run: Run::default(),
            turns: 0,
            requests: 0,
            abandoned: 0,
            faults: BTreeMap::new(),
            longest: Longest::default(),
            paid_twice: PaidTwice::default(),
            unfenced: Unfenced::default(),
            violations: vec![violation],
        }
    }
}

impl<'a> Facts<'a> {
    fn of(events: &'a [Event]) -> Option<Self> {
        let run = events.iter().find_map(|event| match event {
            Event::Run(run) => Some(run),
            _ => None,
        })?;
        let quiet_at = events.iter().find_map(|event| match event {
            Event::Quiet { at } => Some(*at),
            _ => None,
        })?;
        if !matches!(events.last(), Some(Event::End { .. })) {
            return None;
        }
        let mut facts = Self {
            run,
            requests: Vec::new(),
            faults: Vec::new(),
            lags: Vec::new(),
            quiet_at,
            events,
        };
        for event in events {
            match event {
                Event::Request(request) => facts.requests.push(request),
                Event::Fault(fault) => facts.faults.push(fault),
                Event::Lag { at, until } => facts.lags.push((*at, *until)),
                _ => {}
            }
        }
        facts.requests.sort_by_key(|request| request.at);
        Some(facts)
    }

    fn turns(&self) -> u64 {
        let acknowledged = self.requests.iter().filter(|request| {
            matches!(request.asked, Asked::Deposit { .. }) && request.is_acknowledged()
        });
        let paid = self.events.iter().filter_map(|event| match event {
            Event::Payments { keys } => Some(keys.len()),
            _ => None,
        });
        (acknowledged.count() + paid.sum::<usize>()) as u64
    }
}

impl Request {
    /// A success that the client has read.
    fn is_acknowledged(&self) -> bool {
        let answer = self.answer.as_ref();
        answer.is_some_and(|answer| matches!(answer.status, 200 | 201))
    }
}
