//! Keys that stand still.

use super::*;

#[test]
fn a_stall_needs_a_fault() {
    // From 4 s to 6.5 s.
    let stalled = || good().without(4 * SECOND, 6 * SECOND + SECOND / 2);
    assert_found(stalled(), Class::Stall);
    // A frozen store explains the stall, and so does a machine that stood still.
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
    // From 3 s to 8.5 s: longer than a lease and its margin, which a pause of any length explains.
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
fn two_nodes_away_at_once_explain_a_stall_and_one_does_not() {
    let with_second_node = |target| {
        let mut made = good().without(3 * SECOND, 8 * SECOND + SECOND / 2);
        made.others
            .push(fault(Kind::FreezeNode, 3 * SECOND, 7 * SECOND));
        made.others.push(Event::Fault(Fault {
            at: 3 * SECOND,
            until: 7 * SECOND,
            kind: Kind::KillNode,
            target,
        }));
        made
    };
    assert_found(with_second_node(0), Class::Stall);
    assert_good(with_second_node(1));
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
