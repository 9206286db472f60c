//! Payments: the answers of one idempotency key are equal, and second payments have a documented
//! cause. Also: each request of any kind is answered, with a status that is documented.

use std::collections::{HashMap, HashSet};

use super::{Class, Facts, PaidTwice, Violation};
use crate::record::{Answer, Asked, Event, Fault, Kind, Request};

/// Returns how many payments were made a second time for a documented cause.
pub(super) fn check(facts: &Facts<'_>, violations: &mut Vec<Violation>) -> PaidTwice {
    every_request_is_answered(facts, violations);
    let mut by_key: HashMap<&str, Vec<&Request>> = HashMap::new();
    for request in &facts.requests {
        if let Asked::Payment { key } = &request.asked {
            by_key.entry(key).or_default().push(request);
        }
    }
    for (key, requests) in &by_key {
        answers_are_equal(facts, key, requests, violations);
    }
    second_payments(facts, &by_key, violations)
}

fn answers_are_equal(
    facts: &Facts<'_>,
    key: &str,
    requests: &[&Request],
    violations: &mut Vec<Violation>,
) {
    // An answer that is marked as possibly not stored may differ from a later one.
    let stored = requests.iter().filter_map(|request| {
        let answer = request.answer.as_ref()?;
        (request.is_acknowledged() && answer.stored.is_none()).then_some((request, answer))
    });
    let stored: Vec<(&&Request, &Answer)> = stored.collect();
    // The run that has made an answer had begun with the first of the requests that got it.
    let began = |body: &str| {
        let mut made = stored.iter().filter(|(_, answer)| answer.body == body);
        made.next().map_or(u64::MAX, |(request, _)| request.at)
    };
    for (at, (request, answer)) in stored.iter().enumerate() {
        for (earlier, expected) in &stored[..at] {
            let from = began(&expected.body).min(began(&answer.body));
            let until = earlier.until.max(request.until);
            if answer.body != expected.body && !has_forgotten(facts, from, until) {
                violations.push(Violation {
                    class: Class::AnswersDiffer,
                    what: format!("{key}: {} and then {}", expected.body, answer.body),
                });
            }
        }
    }
}

/// Whether the store has lost its records in this time: the only server, all servers, two nodes one
/// after another; or all three copies of one record: one node was silent when the record was
/// written, another one restarted empty, and the third one was silent when the record was asked
/// for.
fn has_forgotten(facts: &Facts<'_>, from: u64, until: u64) -> bool {
    let lease = facts.run.lease_ms * 1000;
    let silent_when_written = silent_nodes(facts, from, from + lease);
    let silent_when_asked = silent_nodes(facts, until.saturating_sub(lease), until);
    let mut emptied = HashSet::new();
    facts.faults.iter().any(|fault| {
        let within = fault.at <= until && from <= fault.until;
        within
            && match fault.kind {
                Kind::ForgetEverything | Kind::KillStore => true,
                Kind::KillNode => {
                    emptied.insert(fault.target);
                    let is_other = |node: &usize| *node != fault.target;
                    let mut others = silent_when_written.iter().filter(|node| is_other(node));
                    emptied.len() > 1
                        || others.any(|first| {
                            let mut last = silent_when_asked.iter().filter(|node| is_other(node));
                            last.any(|last| last != first)
                        })
                }
                _ => false,
            }
    })
}

/// The nodes that did not answer at some time within these bounds.
fn silent_nodes(facts: &Facts<'_>, from: u64, until: u64) -> HashSet<usize> {
    let is_silent = |fault: &&&Fault| {
        matches!(fault.kind, Kind::FreezeNode | Kind::HoldReplies)
            && fault.at <= until
            && from <= fault.until
    };
    let silent = facts.faults.iter().filter(is_silent);
    silent.map(|fault| fault.target).collect()
}

/// A handler that has begun is run again if its process ends or stops, or if its lease is lost
/// otherwise, and after the store has forgotten its record: then a key is paid twice. Returns the
/// number of those second payments.
fn second_payments(
    facts: &Facts<'_>,
    by_key: &HashMap<&str, Vec<&Request>>,
    violations: &mut Vec<Violation>,
) -> PaidTwice {
    let mut paid = HashSet::new();
    let mut twice = PaidTwice::default();
    let lists = facts.events.iter().filter_map(|event| match event {
        Event::Payments { keys } => Some(keys),
        _ => None,
    });
    for key in lists.flatten() {
        if paid.insert(key) {
            continue;
        }
        let requests = by_key.get(&**key).map_or(&[][..], |requests| requests);
        let from = requests.iter().map(|request| request.at).min().unwrap_or(0);
        let until = requests.iter().map(|request| request.until).max();
        let until = until.unwrap_or(0);
        if has_forgotten(facts, from, until) {
            twice.forgotten += 1;
        } else if loses_leases(facts, from, until) {
            twice.lease_lost += 1;
        } else {
            violations.push(Violation {
                class: Class::PaidTwice,
                what: format!("{key}, and no fault explains it"),
            });
        }
    }
    twice
}

/// Whether a lease may have been lost within this time.
fn loses_leases(facts: &Facts<'_>, from: u64, until: u64) -> bool {
    let lease = facts.run.lease_ms * 1000;
    let fault = facts.faults.iter().any(|fault| {
        let loses = match fault.kind {
            Kind::CutConnections | Kind::ForgetScripts | Kind::FreezeNode | Kind::KillNode => false,
            Kind::PauseReplica
            | Kind::KillReplica
            | Kind::HoldReplies
            | Kind::FreezeStore
            | Kind::FillStore => true,
            // See `has_forgotten`.
            Kind::KillStore | Kind::ForgetEverything => false,
        };
        loses && fault.at <= until && from <= fault.until + lease
    });
    // A lease is renewed every third of its length, and again at once after a connection was cut. A
    // machine that stands still for half of it leaves no time for that.
    let lagged = |(at, end): &(u64, u64)| end - at > lease / 2 && *at <= until && from <= *end;
    fault || facts.lags.iter().any(lagged)
}

/// A request ends with an answer, unless its client left, or its replica was killed in the
/// meantime.
fn every_request_is_answered(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for request in &facts.requests {
        let Some(answer) = &request.answer else {
            let killed = facts.faults.iter().any(|fault| {
                fault.kind == Kind::KillReplica
                    && fault.target == request.replica
                    && fault.at <= request.until
                    && request.at <= fault.until
            });
            if !request.abandoned && !killed {
                violations.push(Violation {
                    class: Class::NoAnswer,
                    what: format!("{request:?}"),
                });
            }
            continue;
        };
        // Granted, lost or stale, held, unreachable.
        if !matches!(answer.status, 200 | 201 | 409 | 423 | 503) {
            violations.push(Violation {
                class: Class::WrongStatus,
                what: format!("{request:?}"),
            });
        }
    }
}
