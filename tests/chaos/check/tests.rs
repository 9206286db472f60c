//! Made-up records: a good one, and for each class of violation the good one with that violation in it.

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

/// Forty deposits to each account, one every quarter of a second, a payment that was sent twice, and a cut connection.
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

    /// Leaves a time out of all accounts, and what the ledger has of it.
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

#[test]
fn an_acknowledged_deposit_without_an_entry_is_lost() {
    let mut made = good();
    made.requests
        .push(deposit("fenced", 41, 39 * SECOND / 4 + 200_000));
    assert_found(made, Class::LostUpdate);
}

#[test]
fn an_acknowledged_deposit_that_was_overwritten_is_lost() {
    // Deposit 41 went unacknowledged, and went back to deposit 39: deposit 40 is gone, although no balance is there twice
    // among those that were acknowledged.
    let mut made = good();
    let mut overwriting = entry("fenced", 41);
    overwriting.previous = "fenced-39".into();
    overwriting.balance = 40;
    made.fenced.push(overwriting);
    assert_eq!(
        found(&made.events()),
        [Class::LostUpdate, Class::WrongEntry]
    );
}

#[test]
fn an_overwritten_deposit_without_fencing_is_counted_and_is_no_violation() {
    let mut made = good();
    let mut overwriting = entry("unfenced", 41);
    overwriting.previous = "unfenced-37".into();
    overwriting.balance = 38;
    made.unfenced.push(overwriting);
    let report = check(&made.events());
    assert_eq!(report.violations, []);
    assert_eq!(report.unfenced.lost, 3);
}

#[test]
fn a_deposit_that_was_written_twice_is_a_wrong_entry() {
    let mut made = good();
    let mut again = entry("fenced", 41);
    again.id = "fenced-40".into();
    made.fenced.push(again);
    assert_found(made, Class::WrongEntry);
}

#[test]
fn an_acknowledgement_with_another_balance_is_a_wrong_entry() {
    let mut made = good();
    made.answer(5).balance = Some(7);
    assert_found(made, Class::WrongEntry);
}

#[test]
fn a_token_that_does_not_rise_with_the_balance_is_found() {
    let mut made = good();
    // Not acknowledged, so that only the entries tell.
    made.requests[5].answer = None;
    made.requests[5].abandoned = true;
    made.fenced[5].token = 105;
    assert_found(made, Class::TokenFell);
}

#[test]
fn a_token_that_does_not_rise_with_time_is_found_without_fencing_too() {
    let mut made = good();
    made.answer(45).token = Some(104);
    assert_found(made, Class::TokenFell);
}

#[test]
fn a_token_of_a_deposit_that_overlapped_another_may_be_lower() {
    let mut made = good();
    made.requests[45].at = made.requests[44].at;
    made.requests[44].until = made.requests[45].until;
    made.answer(45).token = Some(105);
    made.answer(44).token = Some(106);
    assert_good(made);
}

#[test]
fn two_answers_of_one_key_differ() {
    let differing = || {
        let mut made = good();
        made.requests.push(payment("k", 3 * SECOND, "two"));
        made
    };
    assert_found(differing(), Class::AnswersDiffer);
    // Not if the store has forgotten everything in between, or the first answer said that it may not be stored.
    let mut made = differing();
    let (at, until) = (2_500_000, 2_600_000);
    made.others.push(fault(Kind::ForgetEverything, at, until));
    assert_good(made);
    let mut made = differing();
    made.requests
        .last_mut()
        .unwrap()
        .answer
        .as_mut()
        .unwrap()
        .stored = Some("unknown".into());
    assert_good(made);
}

#[test]
fn a_request_that_waited_while_the_store_forgot_may_have_another_answer_than_a_later_one() {
    let mut made = good();
    let waited = made.requests.len() - 2;
    made.requests[waited].until = 4 * SECOND;
    made.answer(waited).body = "two".into();
    let (at, until) = (3 * SECOND, 3 * SECOND + 1000);
    made.others.push(fault(Kind::ForgetEverything, at, until));
    assert_good(made);
}

#[test]
fn a_node_of_a_quorum_that_dies_explains_no_differing_answers_but_two_nodes_do() {
    let mut made = good();
    made.requests.push(payment("k", 5 * SECOND, "two"));
    let (at, until) = (2 * SECOND + 500_000, 3 * SECOND);
    made.others.push(fault(Kind::KillNode, at, until));
    let mut both = Made {
        others: made.others.clone(),
        requests: made.requests.clone(),
        ..good()
    };
    assert_found(made, Class::AnswersDiffer);
    both.others.push(Event::Fault(Fault {
        at: until,
        until: until + SECOND,
        kind: Kind::KillNode,
        target: 1,
    }));
    assert_good(both);
}

#[test]
fn a_second_payment_needs_a_fault_that_loses_leases() {
    let twice = |kind| {
        let mut made = good();
        made.paid.push("k".into());
        made.others.push(fault(kind, SECOND, SECOND + 1000));
        check(&made.events())
    };
    for kind in [Kind::CutConnections, Kind::ForgetScripts, Kind::FreezeNode] {
        let report = twice(kind);
        assert_eq!(report.violations[0].class, Class::PaidTwice);
        assert_eq!(report.paid_twice, PaidTwice::default());
    }
    for kind in [Kind::KillReplica, Kind::PauseReplica, Kind::FreezeStore] {
        let report = twice(kind);
        assert_eq!(report.violations, []);
        assert_eq!(report.paid_twice.lease_lost, 1);
    }
    for kind in [Kind::ForgetEverything, Kind::KillStore] {
        let report = twice(kind);
        assert_eq!(report.violations, []);
        assert_eq!(report.paid_twice.forgotten, 1);
    }
}

#[test]
fn a_request_without_an_answer_needs_a_client_that_left_or_a_killed_replica() {
    let silent = || {
        let mut made = good();
        made.requests[20].answer = None;
        made
    };
    assert_found(silent(), Class::NoAnswer);
    let mut made = silent();
    made.requests[20].abandoned = true;
    assert_good(made);
    let mut made = silent();
    let at = made.requests[20].at;
    made.others.push(fault(Kind::KillReplica, at, at + 1000));
    assert_good(made);
    let mut made = silent();
    made.others.push(fault(Kind::PauseReplica, at, at + 1000));
    assert_found(made, Class::NoAnswer);
}

#[test]
fn an_undocumented_status_is_found() {
    let mut made = good();
    made.requests[20].answer = Some(Answer {
        status: 500,
        ..Answer::default()
    });
    assert_found(made, Class::WrongStatus);
}

#[test]
fn a_stall_needs_a_fault() {
    // From 4 s to 6.5 s.
    let stalled = || good().without(4 * SECOND, 6 * SECOND + SECOND / 2);
    assert_found(stalled(), Class::Stall);
    // A store that was frozen meanwhile explains it, and so does a machine that stood still.
    let (at, until) = (4 * SECOND, 5 * SECOND);
    let mut made = stalled();
    made.others.push(fault(Kind::FreezeStore, at, until));
    assert_good(made);
    let mut made = stalled();
    let until = 6 * SECOND + SECOND / 2;
    made.others.push(Event::Lag { at, until });
    assert_good(made);
    // A fault long before does not.
    let mut made = stalled();
    made.others.push(fault(Kind::FreezeStore, SECOND, SECOND));
    assert_found(made, Class::Stall);
}

#[test]
fn a_stall_is_bounded_by_the_kind_of_its_fault() {
    // From 3 s to 8.5 s, more than a lease and what comes on top, however long the replica was paused.
    let stalled = || good().without(3 * SECOND, 8 * SECOND + SECOND / 2);
    for kind in [Kind::PauseReplica, Kind::KillReplica, Kind::FreezeNode] {
        let mut made = stalled();
        made.others.push(fault(kind, 3 * SECOND, 8 * SECOND));
        assert_found(made, Class::Stall);
    }
    // A store that is away for all this time is another matter.
    let mut made = stalled();
    made.others
        .push(fault(Kind::FreezeStore, 3 * SECOND, 7 * SECOND));
    let report = check(&made.events());
    assert_eq!(report.violations, []);
    let longest = report.longest.by_kind[&Kind::FreezeStore];
    assert!((5 * SECOND..6 * SECOND).contains(&longest), "{longest}");
}

#[test]
fn the_longest_stall_is_told_by_kind_of_fault() {
    let mut made = good().without(4 * SECOND, 4 * SECOND + SECOND / 2);
    made.others
        .push(fault(Kind::FillStore, 4 * SECOND, 4 * SECOND));
    made.others
        .push(fault(Kind::FreezeNode, 8 * SECOND, 8 * SECOND));
    made.others
        .push(fault(Kind::KillNode, 8 * SECOND, 8 * SECOND));
    let longest = check(&made.events()).longest;
    assert_eq!(longest.by_kind[&Kind::FillStore], 3 * SECOND / 4);
    assert_eq!(longest.by_kind[&Kind::CutConnections], SECOND / 4);
    assert!(!longest.by_kind.contains_key(&Kind::KillNode));
    assert_eq!(longest.with_several, SECOND / 4);
    // From the beginning of the first deposit to its end, and from each end to the next.
    assert_eq!(longest.without_fault, SECOND / 4);
}

#[test]
fn a_key_that_stands_still_until_the_end_is_a_stall() {
    assert_found(good().without(7 * SECOND, QUIET + SECOND), Class::Stall);
}

#[test]
fn locks_and_queues_that_are_left_are_found_counters_and_records_are_not() {
    let with = |name: &str, ttl_ms| {
        let mut made = good();
        made.others.push(Event::InStore {
            node: 0,
            name: name.into(),
            ttl_ms,
        });
        made
    };
    let day = Some(23 * 3600 * 1000);
    assert_found(with("tdl:{b1}:lock:a", Some(900)), Class::LeftInStore);
    assert_found(with("tdl:{b1}:lock:a", None), Class::LeftInStore);
    assert_found(with("tdl:{b1}:queue:a", day), Class::LeftInStore);
    assert_good(with("tdl:{b1}:lock:a", day));
    assert_good(with("tdl:{b1}:fence", None));
}

#[test]
fn work_that_is_left_in_a_replica_is_found() {
    for busy in 0..4 {
        let is = |field| u64::from(busy == field);
        let mut made = good();
        made.others.push(Event::Stats {
            replica: 0,
            keys: is(0),
            waiting: is(1),
            leases: is(2),
            calls: is(3),
        });
        assert_found(made, Class::LeftInProcess);
    }
}

#[test]
fn panics_and_bad_ends_are_found() {
    let mut made = good();
    let line = "thread 'main' panicked at src/lib.rs".into();
    made.others.push(Event::Stderr { line });
    assert_found(made, Class::Panic);
    let mut made = good();
    made.others.push(Event::Ended {
        replica: 0,
        well: false,
    });
    assert_found(made, Class::BadEnd);
}

#[test]
fn growth_is_found() {
    let growing = |size: fn(u64) -> Event| {
        let mut made = good();
        made.others
            .retain(|event| !matches!(event, Event::Sample(_)));
        made.others.extend((0..40).map(size));
        made
    };
    let memory = growing(|n| sample(n * SECOND / 4, 20_000 + n * 1_000, 30));
    assert_found(memory, Class::MemoryGrew);
    let descriptors = growing(|n| sample(n * SECOND / 4, 20_000, 30 + n));
    assert_found(descriptors, Class::DescriptorsGrew);
}
