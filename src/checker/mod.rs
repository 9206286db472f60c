//! The core as shipped, under a model checker that chooses every interleaving from a seed.
//!
//! `Locks`, lines, contenders, releases, renewals, the scheduler, guards and the memory store run
//! unchanged. Only the items of [`sync`](crate::sync) and [`time`](crate::time) come from shuttle
//! and from a virtual clock. The world uses nothing but the public API: requests lock, try to lock,
//! claim, are cancelled at any poll, panic and release explicitly, while the store delays, fails,
//! mutes and forgets, runtimes end, and time jumps.
//!
//! The witness of the stress test checks the properties that always hold. In addition, every wait
//! must end, a free key must not stand still while requests wait, and nothing may be left at the
//! end.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --lib --release --no-default-features checker
//! ```
//!
//! `TDL_CHECKER_SECONDS` sets how long each scheduler runs (default: 25).
//!
//! A failure prints `failing schedule persisted to file: FILE`. The same command with
//! `TDL_CHECKER_REPLAY=FILE` runs that one execution again, step by step, as long as the code is
//! the same; both tests then fail with the report of that failure.

mod clock;
mod faults;
#[allow(dead_code)] // the stress test uses all of it
#[path = "../../tests/stress/patience.rs"]
mod patience;
#[allow(dead_code)]
#[allow(unreachable_pub)] // a file of the crate for tests, where it is public
#[path = "../../tests/support/random.rs"]
mod random;
mod requests;
mod setup;
#[path = "../../tests/stress/turns.rs"]
mod turns;
#[allow(dead_code)]
#[path = "../../tests/stress/witness.rs"]
mod witness;
mod world;

use std::time::{Duration, SystemTime};

use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler},
};

/// The items of the crate that `turns` and the witness use, under the names that the stress test
/// gives them.
mod subject {
    pub(crate) use crate::{
        Error, ErrorKind, LockGuard, Loss, Status,
        idempotency::RunOnceError,
        store::Mode,
        sync::Mutex,
        time::{Instant, now},
    };
}

/// Enough stack for the deepest future.
const STACK: usize = 256 * 1024;
/// More steps than any execution takes, unless a task spins.
const STEPS: usize = 400_000;

#[test]
fn checker_random() {
    check(RandomScheduler::new_from_seed(seed(), usize::MAX));
}

#[test]
fn checker_pct() {
    check(PctScheduler::new_from_seed(seed(), 4, usize::MAX));
}

fn check(scheduler: impl Scheduler + 'static) {
    let seconds = std::env::var("TDL_CHECKER_SECONDS").map_or(25, |text| {
        text.parse()
            .expect("TDL_CHECKER_SECONDS is a number of seconds")
    });
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.max_time = Some(Duration::from_secs(seconds));
    config.failure_persistence = FailurePersistence::File(Some(std::env::temp_dir()));
    config.silence_warnings = true;
    let _failure = clock::RemembersFailure;
    let execution = || shuttle::future::block_on(world::run());
    if let Ok(schedule) = std::env::var("TDL_CHECKER_REPLAY") {
        config.failure_persistence = FailurePersistence::None;
        let scheduler = ReplayScheduler::new_from_file(schedule).expect("the file of a schedule");
        Runner::new(clock::Watched::new(scheduler), config).run(execution);
        return;
    }
    let executions = Runner::new(clock::Watched::new(scheduler), config).run(execution);
    println!("{executions} executions in {seconds} s");
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
