//! Replicas of the ledger under load, while processes are paused and killed, connections cut, and
//! the store freezes, dies, fills up and forgets. Every request goes into a record, and the checker
//! reads that record alone.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `TDL_CHAOS_SEED` | from the clock | determines all faults and all that the clients ask |
//! | `TDL_CHAOS_SECONDS` | 10; 1800 for the long run | how long faults are injected, on each store |
//! | `TDL_CHAOS_REPLICAS` | 3 | processes of the ledger |
//! | `TDL_CHAOS_LEASE_MS` | 1000 | the lease |
//! | `TDL_CHAOS_SLACK_MS` | 2000 | how long a key may stand still for no other reason than a busy machine |
//! | `TDL_CHAOS_TURNS` | 0 | fewer turns than this fail the long run |
//! | `TDL_CHAOS_STORE` | `single,quorum` | the stores of the long run |
//! | `TDL_CHAOS_RECORD` | none | a record that `a_record_by_hand` checks again |
//!
//! The seed determines the faults, their order and their length; the processes' own timing differs
//! from run to run. `tests/chaos/long` is the long run.

mod check;
mod clients;
mod faults;
mod fleet;
mod plan;
mod record;
mod run;
mod summary;

use test_support as support;
use test_support::random;

use std::{
    env,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::Mutex;

use crate::check::{Report, check};

/// The settings of one run.
#[derive(Debug, Clone)]
struct Settings {
    seed: u64,
    quorum: bool,
    time: Duration,
    replicas: usize,
    lease: Duration,
    slack: Duration,
}

impl Settings {
    fn from_env(quorum: bool, seconds: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let millis = |name, default| Duration::from_millis(setting(name, default));
        Self {
            seed: setting("TDL_CHAOS_SEED", now.as_millis() as u64),
            quorum,
            time: Duration::from_secs(setting("TDL_CHAOS_SECONDS", seconds)),
            replicas: setting("TDL_CHAOS_REPLICAS", 3).max(2) as usize,
            lease: millis("TDL_CHAOS_LEASE_MS", 1000),
            slack: millis("TDL_CHAOS_SLACK_MS", 2000),
        }
    }

    fn store(&self) -> &'static str {
        if self.quorum { "quorum" } else { "single" }
    }

    fn nodes(&self) -> usize {
        if self.quorum { 3 } else { 1 }
    }

    fn recorded(&self) -> record::Run {
        record::Run {
            seed: self.seed,
            store: self.store().to_owned(),
            seconds: self.time.as_secs(),
            replicas: self.replicas,
            lease_ms: self.lease.as_millis() as u64,
            slack_ms: self.slack.as_millis() as u64,
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = env::var(name) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|error| panic!("{name}={text}: {error}"))
}

/// Two runs at once would be each other's busy machine.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Runs, checks the record, and prints the table.
async fn chaos(settings: Settings) -> Report {
    let _alone = ALONE.lock().await;
    println!("TDL_CHAOS_SEED={} on {}", settings.seed, settings.store());
    let path = run::run(&settings).await;
    let report = check(&record::read(&path));
    println!("{report}record: {}", path.display());
    if report.violations.is_empty() {
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_file(path.with_extension("stderr"));
    }
    report
}

#[track_caller]
fn assert_kept(report: &Report) {
    assert!(
        report.violations.is_empty(),
        "promises were broken:\n{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_run_on_one_redis_breaks_no_promise() {
    assert_kept(&chaos(Settings::from_env(false, 10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_run_on_a_quorum_breaks_no_promise() {
    assert_kept(&chaos(Settings::from_env(true, 10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half an hour on each store: tests/chaos/long"]
async fn a_long_run_breaks_no_promise() {
    let stores = env::var("TDL_CHAOS_STORE").unwrap_or_else(|_| "single,quorum".into());
    let mut reports = Vec::new();
    for store in stores.split(',') {
        reports.push(chaos(Settings::from_env(store == "quorum", 1800)).await);
    }
    let least = setting("TDL_CHAOS_TURNS", 0);
    for report in &reports {
        assert_kept(report);
        assert!(report.turns >= least, "{} turns only", report.turns);
    }
}

#[test]
#[ignore = "needs TDL_CHAOS_RECORD"]
fn a_record_by_hand() {
    let path = env::var("TDL_CHAOS_RECORD").expect("the path of a record");
    let mut events = record::read(Path::new(&path));
    for event in &mut events {
        if let record::Event::Run(run) = event {
            run.slack_ms = setting("TDL_CHAOS_SLACK_MS", run.slack_ms);
        }
    }
    let report = check(&events);
    println!("{report}");
    assert_kept(&report);
}
