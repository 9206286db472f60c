//! Deposits: nothing that was acknowledged is lost, and tokens rise.

use std::collections::{HashMap, HashSet};

use super::{Class, Facts, Unfenced, Violation};
use crate::record::{Answer, Asked, Entry, Event, Request};

/// A deposit that was acknowledged.
struct Acknowledged<'a> {
    request: &'a Request,
    answer: &'a Answer,
    id: &'a str,
}

pub(super) fn check(facts: &Facts<'_>, violations: &mut Vec<Violation>) -> Unfenced {
    let mut unfenced = Unfenced::default();
    let mut accounts = acknowledged(facts);
    for event in facts.events {
        let Event::Entries {
            account,
            fenced,
            entries,
        } = event
        else {
            continue;
        };
        let deposits = accounts.remove(account.as_str()).unwrap_or_default();
        let mut report = |class, what: String| {
            let what = format!("{account}: {what}");
            violations.push(Violation { class, what });
        };
        tokens_rise_with_time(&deposits, &mut report);
        let lost = lost(&deposits, entries);
        if *fenced {
            for id in lost {
                report(Class::LostUpdate, format!("deposit {id} was acknowledged"));
            }
            entries_are_right(&deposits, entries, &mut report);
        } else {
            unfenced.acknowledged += deposits.len() as u64;
            unfenced.lost += lost.len() as u64;
        }
    }
    for account in accounts.keys() {
        violations.push(Violation {
            class: Class::Incomplete,
            what: format!("{account}: the record does not have its entries"),
        });
    }
    unfenced
}

fn acknowledged<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Vec<Acknowledged<'a>>> {
    let mut accounts: HashMap<&str, Vec<_>> = HashMap::new();
    for request in &facts.requests {
        let (Asked::Deposit { account, id, .. }, Some(answer)) = (&request.asked, &request.answer)
        else {
            continue;
        };
        if request.is_acknowledged() {
            accounts.entry(account).or_default().push(Acknowledged {
                request,
                answer,
                id,
            });
        }
    }
    accounts
}

/// The acknowledged deposits that the last balance does not contain: each entry names the deposit
/// that it was added to, and those that the last one does not go back to were overwritten.
fn lost<'a>(deposits: &[Acknowledged<'a>], entries: &[Entry]) -> Vec<&'a str> {
    let mut contained = HashSet::new();
    let mut wanted = entries.last().map_or("", |entry| &entry.id);
    // An entry was written after its predecessor.
    for entry in entries.iter().rev() {
        if entry.id == wanted {
            contained.insert(&*entry.id);
            wanted = &entry.previous;
        }
    }
    let ids = deposits.iter().map(|deposit| deposit.id);
    ids.filter(|id| !contained.contains(id)).collect()
}

/// With fencing, each entry follows the one before, with one more on the balance and a higher
/// token; and an acknowledgement agrees with the entry.
fn entries_are_right(
    deposits: &[Acknowledged<'_>],
    entries: &[Entry],
    report: &mut impl FnMut(Class, String),
) {
    let mut by_id = HashMap::new();
    let (mut previous, mut token, mut balance) = ("", 0, 0);
    for entry in entries {
        if by_id.insert(&*entry.id, entry).is_some() {
            report(
                Class::WrongEntry,
                format!("deposit {} was written twice", entry.id),
            );
        }
        if entry.previous != previous || entry.balance != balance + 1 {
            report(
                Class::WrongEntry,
                format!("{entry:?} follows {previous:?} with a balance of {balance}"),
            );
        }
        if entry.token <= token {
            report(Class::TokenFell, format!("{entry:?} follows token {token}"));
        }
        (previous, token, balance) = (&entry.id, entry.token, entry.balance);
    }
    for Acknowledged { answer, id, .. } in deposits {
        let Some(entry) = by_id.get(id) else {
            continue;
        };
        if (answer.token, answer.balance) != (Some(entry.token), Some(entry.balance)) {
            report(
                Class::WrongEntry,
                format!("{entry:?} was acknowledged as {answer:?}"),
            );
        }
    }
}

/// A deposit that began after another was acknowledged has the higher token. This holds without
/// fencing, too.
fn tokens_rise_with_time(deposits: &[Acknowledged<'_>], report: &mut impl FnMut(Class, String)) {
    // Requests are sorted by their beginning.
    let mut ended: Vec<&Acknowledged<'_>> = deposits.iter().collect();
    ended.sort_by_key(|deposit| deposit.request.until);
    let mut ended = ended.into_iter().peekable();
    let mut highest = 0;
    for deposit in deposits {
        while let Some(earlier) = ended.next_if(|other| other.request.until < deposit.request.at) {
            highest = highest.max(earlier.answer.token.unwrap_or(0));
        }
        let token = deposit.answer.token.unwrap_or(0);
        if token <= highest {
            report(
                Class::TokenFell,
                format!(
                    "deposit {} began after token {highest} and has {token}",
                    deposit.id
                ),
            );
        }
    }
}
