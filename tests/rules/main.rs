//! Redis keeps the rules of `src/store/rules`: the same calls, made on both, have the same answers
//! and tell the same instances.
//!
//! Random sequences of all calls, in all modes, by several instances, with leases that end, at one
//! key or at several, whose calls then share scripts: see
//! `sequence.rs` for the calls, and `pair.rs` for what is compared. `TDL_RULES_STEPS` says how many
//! calls are compared (default: 25,000). A failure prints the shortest sequence that still fails,
//! and the seed of its sequence: `TDL_RULES_SEED=… TDL_RULES_STEPS=1` runs that sequence again.
//!
//! Where the scripts and the rules could differ, this is what holds:
//!
//! | | decided | seen by |
//! |---|---|---|
//! | the same owner is granted the key again | its lease is written anew, with the new fingerprint | `pins.rs`, and the comparison |
//! | *not ours* at a key with a record | nobody is offered the key | the comparison |
//! | holders that are told of an attempt | a hundred, those whose leases end first | `pins.rs` |
//! | whether others wait | among the first ten attempts | `pins.rs`, and the comparison |
//! | a renewal without tokens | Redis does not look at the queue, and may say that others wait if somebody has waited since the grant; it must if they do | `pins.rs`, and the comparison |
//! | leases that have expired beside others that have not | count as none | the comparison |
//! | when the first of several leases ends | exact, also after a renewal of it | `pins.rs`, and the comparison |
//! | labels, tokens, the unit of time | the rules have no labels: Redis names one exactly if there is a holder. Tokens rise, and are not more than asked for. Times are equal up to the milliseconds of Redis and the time that the call took | the comparison |

mod call;
mod pair;
mod pins;
mod run;
mod sequence;

use test_support as support;
use test_support::random;

use self::run::{compare, number, seed_of_today};

/// Answers and hints that a run of the usual length must have seen, or it compares too little.
const EXPECTED: [&str; 18] = [
    "forced",
    "free",
    "freed",
    "granted",
    "granted several",
    "granted, others wait",
    "held",
    "inspected",
    "next",
    "not forced",
    "not ours",
    "not renewed",
    "raised",
    "recorded",
    "refused",
    "renewed",
    "renewed, others wait",
    "wanted",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_answers_and_tells_as_the_rules_do() {
    let seed = number("TDL_RULES_SEED").unwrap_or_else(seed_of_today);
    let steps = number("TDL_RULES_STEPS").unwrap_or(25_000);
    let totals = compare(steps, seed).await;
    println!("from seed {seed}: {totals:#?}");
    assert!(steps < 20_000 || totals.joint > steps / 10, "seldom: joint");
    for expected in EXPECTED.into_iter().filter(|_| steps >= 20_000) {
        let seen = totals.seen.get(expected);
        assert!(seen.is_some_and(|count| *count >= 10), "seldom: {expected}");
    }
}
