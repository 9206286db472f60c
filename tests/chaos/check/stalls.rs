//! Stalls: each account always has clients on every replica, so that a time without an acknowledged
//! deposit means that its key stood still. Faults explain a part of that time, each up to a bound;
//! the rest must be short.

use std::collections::BTreeMap;

use super::{Class, Facts, Longest, Violation};
use crate::record::{Asked, Fault, Kind};

/// The time in which an instance notices by itself: a poll interval, or a reconnect with its
/// back-off.
const NOTICED: u64 = 1_000_000;

/// A time in which an account was not changed.
#[derive(Debug, Clone, Copy)]
struct Stall {
    from: u64,
    until: u64,
}

/// Returns the longest stalls.
pub(super) fn check(facts: &Facts<'_>, violations: &mut Vec<Violation>) -> Longest {
    let mut longest = Longest::default();
    let slack = facts.run.slack_ms * 1000;
    let away: Vec<(u64, u64)> = without_majority(facts).collect();
    for (account, stalls) in stalls(facts) {
        for stall in stalls {
            let faults: Vec<&Fault> = near(facts, stall).collect();
            longest.add(stall.until - stall.from, &faults);
            let unexplained = unexplained(facts, &away, stall);
            if unexplained > slack {
                let (from, until) = (stall.from / 1000, stall.until / 1000);
                violations.push(Violation {
                    class: Class::Stall,
                    what: format!(
                        "{account} stood still from {from} to {until} ms, of which {} ms are not explained; \
                         faults in µs: {faults:?}",
                        unexplained / 1000
                    ),
                });
            }
        }
    }
    longest
}

impl Longest {
    /// Adds a stall: to a kind of fault if no other kind was near, so that each kind is told from
    /// the others.
    fn add(&mut self, lasted: u64, faults: &[&Fault]) {
        let longest = match faults {
            [] => &mut self.without_fault,
            [first, rest @ ..] if rest.iter().all(|fault| fault.kind == first.kind) => {
                self.by_kind.entry(first.kind).or_default()
            }
            _ => &mut self.with_several,
        };
        *longest = lasted.max(*longest);
    }
}

/// The times between two acknowledged deposits, by account.
fn stalls<'a>(facts: &Facts<'a>) -> BTreeMap<&'a str, Vec<Stall>> {
    let mut progress: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for request in &facts.requests {
        if let Asked::Deposit { account, .. } = &request.asked {
            let times = progress.entry(account).or_insert_with(|| vec![request.at]);
            if request.is_acknowledged() && request.until < facts.quiet_at {
                times.push(request.until);
            }
        }
    }
    let stalls = progress.into_iter().map(|(account, mut times)| {
        times.push(facts.quiet_at);
        times.sort_unstable();
        let between = times.windows(2).map(|pair| Stall {
            from: pair[0],
            until: pair[1],
        });
        (account, between.collect())
    });
    stalls.collect()
}

/// How much of a stall is not explained by a fault, by a missing majority or by the machine.
fn unexplained(facts: &Facts<'_>, away: &[(u64, u64)], stall: Stall) -> u64 {
    let faults = facts.faults.iter();
    let explained = faults.map(|fault| (fault.at, fault.at + bound(fault, facts.run.lease_ms)));
    let explained = explained.chain(away.iter().copied());
    let mut explained: Vec<(u64, u64)> = explained.chain(facts.lags.iter().copied()).collect();
    explained.sort_unstable();
    let (mut at, mut left) = (stall.from, 0);
    for (from, until) in explained {
        let from = from.clamp(at, stall.until.max(at));
        left += from - at;
        at = from.max(until.min(stall.until));
    }
    left + stall.until.saturating_sub(at)
}

/// The times in which two nodes of three were away at once, and the time after it in which leases
/// expire.
fn without_majority<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = (u64, u64)> + 'a {
    let is_of_node = |fault: &&&Fault| matches!(fault.kind, Kind::FreezeNode | Kind::KillNode);
    let after = facts.run.lease_ms * 1000 + NOTICED;
    facts.faults.iter().filter(is_of_node).flat_map(move |one| {
        let others = facts.faults.iter().filter(is_of_node);
        let others = others.filter(|other| other.target != one.target);
        others.filter_map(move |other| {
            let (at, until) = (one.at.max(other.at), one.until.min(other.until));
            (at < until).then_some((at, until + after))
        })
    })
}

/// How long a key may stand still because of a fault, from the beginning of that fault.
fn bound(fault: &Fault, lease_ms: u64) -> u64 {
    let (lasted, lease) = (fault.until - fault.at, lease_ms * 1000);
    match fault.kind {
        // The key of a replica that is gone is free after its lease, however long the replica stays
        // away.
        Kind::PauseReplica | Kind::KillReplica => lease + NOTICED,
        Kind::CutConnections | Kind::ForgetScripts | Kind::ForgetEverything => NOTICED,
        // No replica gets the key while the store is away; a lease whose answer was lost expires at
        // the latest.
        Kind::FreezeStore | Kind::KillStore | Kind::FillStore => lasted + lease + NOTICED,
        Kind::HoldReplies => lasted + lease + NOTICED,
        // The other nodes are a majority: the fleet goes on.
        Kind::FreezeNode | Kind::KillNode => NOTICED,
    }
}

/// The faults that a stall may have to do with.
fn near<'a>(facts: &Facts<'a>, stall: Stall) -> impl Iterator<Item = &'a Fault> {
    let lease_ms = facts.run.lease_ms;
    let is_near = move |fault: &&Fault| {
        let end = fault.until.max(fault.at + bound(fault, lease_ms));
        fault.at < stall.until && stall.from < end
    };
    facts.faults.iter().copied().filter(is_near)
}
