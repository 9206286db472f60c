//! Answers that differ, second payments, requests without an answer.

use super::*;

#[test]
fn two_answers_of_one_key_differ() {
    let differing = || {
        let mut made = good();
        made.requests.push(payment("k", 3 * SECOND, "two"));
        made
    };
    assert_found(differing(), Class::AnswersDiffer);
    // No violation if the store forgot everything in between, or if the first answer was marked as
    // possibly not stored.
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

/// The store forgets during a run, a duplicate that comes after that gets the answer of that run, and
/// the record of a second run stays.
#[test]
fn the_answer_of_a_run_that_the_store_has_forgotten_may_differ_for_a_duplicate_that_came_later() {
    let made = |forgot_at| {
        let mut made = good();
        let mut run = payment("forked", 3 * SECOND, "one");
        run.until = 4 * SECOND;
        let duplicate = payment("forked", 3 * SECOND + SECOND / 2, "one");
        let later = payment("forked", 5 * SECOND, "two");
        made.requests.extend([run, duplicate, later]);
        let fault = fault(Kind::ForgetEverything, forgot_at, forgot_at + 1000);
        made.others.push(fault);
        made
    };
    assert_good(made(3 * SECOND + SECOND / 4));
    // Before the run, it explains nothing.
    assert_found(made(2 * SECOND), Class::AnswersDiffer);
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
fn a_record_that_all_three_nodes_miss_explains_differing_answers_and_two_do_not() {
    let node = |kind, target, at, until| {
        Event::Fault(Fault {
            at,
            until,
            kind,
            target,
        })
    };
    let silent = |when_written, when_asked| {
        let mut made = good();
        made.requests.push(payment("k", 5 * SECOND, "two"));
        made.others.extend([
            node(Kind::FreezeNode, when_written, SECOND, 5 * SECOND / 2),
            node(Kind::KillNode, 0, 3 * SECOND, 4 * SECOND),
            node(Kind::HoldReplies, when_asked, 9 * SECOND / 2, 6 * SECOND),
        ]);
        made
    };
    for (when_written, when_asked) in [(1, 1), (0, 1), (1, 0)] {
        assert_found(silent(when_written, when_asked), Class::AnswersDiffer);
    }
    assert_good(silent(1, 2));
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
fn a_machine_that_stands_still_for_half_a_lease_explains_a_second_payment() {
    let lagging = |lag, cut| {
        let mut made = good();
        made.paid.push("k".into());
        // The fault of a good run happens long after the payment.
        for event in &mut made.others {
            if let Event::Fault(fault) = event {
                (fault.at, fault.until) = (8 * SECOND, 8 * SECOND);
            }
        }
        let (at, until) = (2 * SECOND, 2 * SECOND + lag);
        made.others.push(Event::Lag { at, until });
        if cut {
            made.others.push(fault(Kind::CutConnections, at, at));
        }
        made
    };
    // A connection that was cut explains nothing more: its leases are renewed at once.
    for cut in [false, true] {
        assert_found(lagging(2 * SECOND / 5, cut), Class::PaidTwice);
        assert_good(lagging(3 * SECOND / 5, cut));
    }
}
