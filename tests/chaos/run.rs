//! One run: load and faults, then quiet, then a last look at everything; all of it into the record.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep},
};

use crate::{
    Settings, check,
    clients::{ACCOUNTS, Client, get},
    faults::inject,
    fleet::Fleet,
    plan::plan,
    random::Random,
    record::{Entry, Event, Recorder},
};

/// How often the test looks at the processes, and at its own clock.
const TICK: Duration = Duration::from_millis(100);
/// The test was kept from running for longer than this: a busy machine, not the locks.
const LAG: Duration = Duration::from_millis(300);

/// Runs, and returns where the record is.
pub(crate) async fn run(settings: &Settings) -> PathBuf {
    let folder = std::env::temp_dir().join("tdl-chaos");
    std::fs::create_dir_all(&folder).unwrap();
    let name = format!(
        "{}-{}-{}",
        settings.store(),
        settings.seed,
        std::process::id()
    );
    let path = folder.join(format!("{name}.jsonl"));
    let stderr = folder.join(format!("{name}.stderr"));
    let fleet = Arc::new(Fleet::start(settings, stderr.clone()).await);
    let record = Arc::new(Recorder::create(&path));
    record.add(&Event::Run(settings.recorded()));

    let mut watching = JoinSet::new();
    watching.spawn(watch(fleet.clone(), record.clone()));
    let stopped = Arc::new(AtomicBool::new(false));
    let mut clients = start_clients(settings, &fleet, &record, &stopped);
    let until = Instant::now() + settings.time;
    let faults = plan(settings.seed, settings.quorum, settings.lease);
    inject(&fleet, &record, faults, until).await;
    // The last fault is over: see that everything goes on.
    sleep(settings.lease + Duration::from_secs(1)).await;
    record.add(&Event::Quiet { at: record.now() });
    stopped.store(true, Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    watching.shutdown().await;
    look_around(settings, &fleet, &record).await;
    let fleet = Arc::into_inner(fleet).expect("nobody else has the fleet");
    let events = fleet.terminate().await;
    let errors = std::fs::read_to_string(&stderr).unwrap();
    let errors = errors
        .lines()
        .map(|line| Event::Stderr { line: line.into() });
    for event in events.into_iter().chain(errors) {
        record.add(&event);
    }
    record.add(&Event::End { at: record.now() });
    path
}

/// One client for each account at each replica, and one that pays at each.
fn start_clients(
    settings: &Settings,
    fleet: &Arc<Fleet>,
    record: &Arc<Recorder>,
    stopped: &Arc<AtomicBool>,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let mut number = 0;
    let mut client = |replica| {
        number += 1;
        Client {
            fleet: fleet.clone(),
            record: record.clone(),
            replica,
            random: Random::stream(settings.seed, number),
            stopped: stopped.clone(),
        }
    };
    let sent = Arc::new(AtomicU64::new(0));
    for replica in 0..settings.replicas {
        for (account, fenced) in ACCOUNTS {
            clients.spawn(client(replica).deposit(account, fenced));
        }
        clients.spawn(client(replica).pay(sent.clone()));
    }
    clients
}

/// Records how large the replicas are, and when the machine did not let this test run.
async fn watch(fleet: Arc<Fleet>, record: Arc<Recorder>) {
    let mut ticks = interval(TICK);
    let (mut last, mut count) = (record.now(), 0u64);
    loop {
        ticks.tick().await;
        let now = record.now();
        if now - last > (TICK + LAG).as_micros() as u64 {
            record.add(&Event::Lag {
                at: last,
                until: now,
            });
        }
        last = now;
        count += 1;
        if count.is_multiple_of(5) {
            for event in fleet.samples(now).await {
                record.add(&event);
            }
        }
    }
}

/// The last look, once nothing moves any more: the ledger, and the leftovers.
async fn look_around(settings: &Settings, fleet: &Fleet, record: &Recorder) {
    let until = Instant::now() + 2 * settings.lease + Duration::from_secs(5);
    let left = loop {
        let mut left = fleet.names().await;
        left.extend(stats(fleet).await);
        let busy = |event: &Event| match event {
            Event::InStore { name, ttl_ms, .. } => check::is_left_over(name, *ttl_ms),
            Event::Stats {
                keys,
                waiting,
                leases,
                calls,
                ..
            } => keys + waiting + leases + calls > 0,
            _ => false,
        };
        if Instant::now() >= until || !left.iter().any(busy) {
            break left;
        }
        sleep(TICK).await;
    };
    left.iter().for_each(|event| record.add(event));
    let addr = fleet.addr(0).expect("the first replica never dies");
    for (account, fenced) in ACCOUNTS {
        let entries = get(addr, &format!("/accounts/{account}/entries")).await;
        let entries: Vec<Entry> = serde_json::from_value(entries).unwrap();
        let account = account.to_owned();
        record.add(&Event::Entries {
            account,
            fenced,
            entries,
        });
    }
    let payments = get(addr, "/payments").await;
    let keys = serde_json::from_value(payments["accounts"].clone()).unwrap();
    record.add(&Event::Payments { keys });
}

async fn stats(fleet: &Fleet) -> Vec<Event> {
    let mut all = Vec::new();
    for replica in 0..fleet.size() {
        let addr = fleet.addr(replica).expect("all replicas are back");
        let stats = get(addr, "/stats").await;
        let number = |name: &str| stats[name].as_u64().unwrap();
        all.push(Event::Stats {
            replica,
            keys: number("keys"),
            waiting: number("waiting"),
            leases: number("leases"),
            calls: number("calls"),
        });
    }
    all
}
