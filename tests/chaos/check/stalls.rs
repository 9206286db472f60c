//! Stalls: each account always has clients on every replica, so that a time without an acknowledged deposit means that its
//! key stood still. Faults explain a part of that time, each up to a bound; what is left must be short.

use std::collections::BTreeMap;

use super::{Class, Facts, FaultCount, Violation};
use crate::record::{Asked, Fault, Kind};

/// The time in which an instance notices by itself: a poll interval, or a reconnect with its back-off.
const NOTICED: u64 = 1_000_000;

/// A time in which an account was not changed.
#[derive(Debug, Clone, Copy)]
struct Stall {
    from: u64,
    until: u64,
}

/// Returns the faults by kind, each with the longest stall during that kind.
pub(super) fn check(
    facts: &Facts<'_>,
    violations: &mut Vec<Violation>,
) -> BTreeMap<Kind, FaultCount> {
    let mut counts: BTreeMap<Kind, FaultCount> = BTreeMap::new();
    for fault in &facts.faults {
        counts.entry(fault.kind).or_default().count += 1;
    }
    let slack = facts.run.slack_ms * 1000;
    for (account, stalls) in stalls(facts) {
        for stall in stalls {
            for fault in &facts.faults {
                // The longest stall of a kind is of those that began during the fault, or had begun shortly before.
                let begins = stall.from <= fault.at && fault.at < stall.until;
                if begins || (fault.at <= stall.from && stall.from < fault.until) {
                    let count = counts.entry(fault.kind).or_default();
                    count.longest_stall = count.longest_stall.max(stall.until - stall.from);
                }
            }
            let unexplained = unexplained(facts, stall);
            if unexplained > slack {
                let (from, until) = (stall.from / 1000, stall.until / 1000);
                let faults: Vec<_> = near(facts, stall).collect();
                violations.push(Violation {
                    class: Class::Stall,
                    what: format!(
                        "{account} stood still from {from} to {until} ms, of which {} ms are not explained; \
                         faults: {faults:?}",
                        unexplained / 1000
                    ),
                });
            }
        }
    }
    counts
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

/// How much of a stall lies outside of what the faults and the machine explain.
fn unexplained(facts: &Facts<'_>, stall: Stall) -> u64 {
    let faults = facts.faults.iter();
    let explained = faults.map(|fault| (fault.at, fault.at + bound(fault, facts.run.lease_ms)));
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

/// How long a key may stand still because of a fault, from the beginning of that fault.
fn bound(fault: &Fault, lease_ms: u64) -> u64 {
    let (lasted, lease) = (fault.until - fault.at, lease_ms * 1000);
    match fault.kind {
        // The key of a replica that is gone is free after its lease, however long the replica stays away.
        Kind::PauseReplica | Kind::KillReplica => lease + NOTICED,
        Kind::CutConnections | Kind::ForgetScripts | Kind::ForgetEverything => NOTICED,
        // Nobody gets the key while the store is away; a lease whose answer was lost ends by itself at the latest.
        Kind::FreezeStore | Kind::KillStore | Kind::FillStore => lasted + lease + NOTICED,
        Kind::HoldReplies => lasted + lease + NOTICED,
        // The other nodes are a majority: the fleet goes on.
        Kind::FreezeNode | Kind::KillNode => NOTICED,
    }
}

fn near<'a>(facts: &'a Facts<'_>, stall: Stall) -> impl Iterator<Item = (Kind, usize, u64, u64)> {
    let near = facts.faults.iter().filter(move |fault| {
        fault.at < stall.until && stall.from < fault.until + bound(fault, facts.run.lease_ms)
    });
    let describe = |fault: &&Fault| {
        (
            fault.kind,
            fault.target,
            fault.at / 1000,
            fault.until / 1000,
        )
    };
    near.map(describe)
}
