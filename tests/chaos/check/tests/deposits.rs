//! Lost deposits, wrong entries and tokens that fall.

use super::*;

#[test]
fn an_acknowledged_deposit_without_an_entry_is_lost() {
    let mut made = good();
    made.requests
        .push(deposit("fenced", 41, 39 * SECOND / 4 + 200_000));
    assert_found(made, Class::LostUpdate);
}

#[test]
fn an_acknowledged_deposit_that_was_overwritten_is_lost() {
    // Deposit 41 went unacknowledged, and went back to deposit 39: deposit 40 is gone, although no
    // balance is there twice among those that were acknowledged.
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
