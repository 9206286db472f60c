//! Made-up records: a good one, and for each class of violation the good one with that violation in
//! it.

mod deposits;
mod payments;
mod remains;
mod stalls;

use super::*;
use crate::record::{Answer, Entry, Sample};

const SECOND: u64 = 1_000_000;

/// The times of a run of ten seconds with a lease of one.
const QUIET: u64 = 10 * SECOND;

fn settings() -> Run {
    Run {
        seed: 1,
        store: "single".into(),
        seconds: 10,
        replicas: 1,
        lease_ms: 1000,
        slack_ms: 500,
    }
}

fn deposit(account: &str, number: u64, at: u64) -> Request {
    Request {
        at,
        until: at + SECOND / 10,
        replica: 0,
        asked: Asked::Deposit {
            account: account.into(),
            fenced: account == "fenced",
            id: format!("{account}-{number}"),
        },
        abandoned: false,
        answer: Some(Answer {
            status: 200,
            token: Some(100 + number),
            balance: Some(number as i64),
            ..Answer::default()
        }),
    }
}

fn payment(key: &str, at: u64, body: &str) -> Request {
    Request {
        asked: Asked::Payment { key: key.into() },
        answer: Some(Answer {
            status: 201,
            body: body.into(),
            ..Answer::default()
        }),
        ..deposit("fenced", 0, at)
    }
}

fn entry(account: &str, number: u64) -> Entry {
    let id = |number| match number {
        0 => String::new(),
        number => format!("{account}-{number}"),
    };
    Entry {
        id: id(number),
        previous: id(number - 1),
        token: 100 + number,
        balance: number as i64,
    }
}

fn fault(kind: Kind, at: u64, until: u64) -> Event {
    Event::Fault(Fault {
        at,
        until,
        kind,
        target: 0,
    })
}

fn sample(at: u64, memory_kb: u64, descriptors: u64) -> Event {
    Event::Sample(Sample {
        at,
        process: 7,
        memory_kb,
        descriptors,
    })
}

/// A made-up record, in parts that a test can change.
struct Made {
    requests: Vec<Request>,
    fenced: Vec<Entry>,
    unfenced: Vec<Entry>,
    paid: Vec<String>,
    /// Faults, samples, and whatever a test adds.
    others: Vec<Event>,
}

/// Forty deposits to each account, one every quarter of a second, a payment that was sent twice,
/// and a cut connection.
fn good() -> Made {
    let numbers = 1..=40;
    let mut requests = Vec::new();
    for account in ["fenced", "unfenced"] {
        let deposits = numbers.clone();
        requests.extend(deposits.map(|n| deposit(account, n, (n - 1) * SECOND / 4)));
    }
    requests.push(payment("k", SECOND, "one"));
    requests.push(payment("k", 2 * SECOND, "one"));
    let samples = (0..40).map(|n| sample(n * SECOND / 4, 20_000, 30));
    let faults = [fault(Kind::CutConnections, SECOND, SECOND)];
    Made {
        requests,
        fenced: numbers.clone().map(|n| entry("fenced", n)).collect(),
        unfenced: numbers.map(|n| entry("unfenced", n)).collect(),
        paid: vec!["k".into()],
        others: faults.into_iter().chain(samples).collect(),
    }
}

impl Made {
    fn events(self) -> Vec<Event> {
        let entries = |account: &str, entries| Event::Entries {
            account: account.into(),
            fenced: account == "fenced",
            entries,
        };
        let mut events = vec![Event::Run(settings())];
        events.extend(self.requests.into_iter().map(Event::Request));
        events.push(Event::Quiet { at: QUIET });
        events.extend(self.others);
        events.push(entries("fenced", self.fenced));
        events.push(entries("unfenced", self.unfenced));
        events.push(Event::Payments { keys: self.paid });
        events.push(Event::Stats {
            replica: 0,
            keys: 0,
            waiting: 0,
            leases: 0,
            calls: 0,
        });
        events.push(Event::Ended {
            replica: 0,
            well: true,
        });
        events.push(Event::End { at: QUIET });
        events
    }

    fn answer(&mut self, request: usize) -> &mut Answer {
        self.requests[request].answer.as_mut().unwrap()
    }

    /// Leaves a time out of all accounts, and its entries out of the ledger.
    fn without(mut self, from: u64, until: u64) -> Self {
        let is_out = |request: &Request| from <= request.until && request.until < until;
        for request in self.requests.iter_mut().filter(|request| is_out(request)) {
            request.answer.as_mut().unwrap().status = 503;
        }
        self
    }
}

/// The classes that were found, each once.
fn found(events: &[Event]) -> Vec<Class> {
    let mut classes: Vec<Class> = check(events).violations.iter().map(|v| v.class).collect();
    classes.sort();
    classes.dedup();
    classes
}

#[track_caller]
fn assert_found(made: Made, class: Class) {
    assert_eq!(found(&made.events()), [class]);
}

#[track_caller]
fn assert_good(made: Made) {
    assert_eq!(check(&made.events()).violations, []);
}

#[test]
fn a_good_record_has_no_violation() {
    let report = check(&good().events());
    assert_eq!(report.violations, []);
    assert_eq!((report.turns, report.requests), (81, 82));
    assert_eq!(report.faults[&Kind::CutConnections], 1);
    let unfenced = Unfenced {
        acknowledged: 40,
        lost: 0,
    };
    assert_eq!(report.unfenced, unfenced);
}

#[test]
fn a_record_without_its_settings_or_its_end_proves_nothing() {
    let events = good().events();
    assert_eq!(found(&events[1..]), [Class::Incomplete]);
    assert_eq!(found(&events[..events.len() - 1]), [Class::Incomplete]);
    assert_eq!(found(&[]), [Class::Incomplete]);
}

#[test]
fn a_record_without_entries_last_words_or_faults_proves_nothing() {
    let without = |out: fn(&Event) -> bool| {
        let mut events = good().events();
        events.retain(|event| !out(event));
        found(&events)
    };
    assert_eq!(
        without(|event| matches!(event, Event::Entries { .. })),
        [Class::Incomplete]
    );
    assert_eq!(
        without(|event| matches!(event, Event::Stats { .. })),
        [Class::Incomplete]
    );
    assert_eq!(
        without(|event| matches!(event, Event::Fault(_))),
        [Class::Incomplete]
    );
}
