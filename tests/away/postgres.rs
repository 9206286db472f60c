//! On a real PostgreSQL that is killed or hangs. What takes the place of a killed one counts
//! connections, and closes them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::net::TcpListener;
use tower_distributed_lock::{Locks, store::PostgresStore};

use crate::{
    Cost, LEASES, assert_flat, assert_idle,
    load::{Load, cpu_time, on_a_thread},
    support::{postgres::PostgresServer, redis_server::pass},
};

/// How long each scenario is watched.
const WATCHED: Duration = Duration::from_secs(2);

/// As for Redis: a storm burns one core for all of that time.
const MOST_CPU: Duration = Duration::from_millis(500);

/// The fault of the server.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// All connections end, and new ones are closed at once.
    Killed,
    /// SIGSTOP: the kernel accepts connections, and nothing answers.
    Frozen,
}

/// Runs the scenario with all leases at the same time, each on a server and a thread of its own.
fn costs(trouble: Trouble, load: Load) -> Vec<Cost> {
    let start = |lease: Duration| {
        on_a_thread(false, async move || {
            let mut server = PostgresServer::start().await;
            let store = PostgresStore::builder(server.url()).build().unwrap();
            store.migrate().await.unwrap();
            let locks = Locks::builder(store).lease(lease).build().unwrap();
            let running = load.start(&locks).await;
            let connections = Arc::<AtomicU64>::default();
            match trouble {
                Trouble::Killed => {
                    server.crash();
                    let port = server.port();
                    let counted = connections.clone();
                    tokio::spawn(async move {
                        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
                        while listener.accept().await.is_ok() {
                            counted.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                Trouble::Frozen => server.freeze(),
            }
            let cpu = cpu_time();
            pass(WATCHED.as_millis() as u64).await;
            let cpu = cpu_time() - cpu;
            let calls = connections.load(Ordering::Relaxed);
            drop(running);
            Cost { lease, calls, cpu }
        })
    };
    let started: Vec<_> = LEASES.iter().map(|lease| start(*lease)).collect();
    let name = format!("PostgreSQL: {trouble:?}, {load:?}");
    let finished = started.into_iter().map(|scenario| scenario.result(&name));
    finished.collect()
}

/// Requires that every load costs little CPU time, and at most so many connections.
fn assert_cheap(trouble: Trouble, most: u64) {
    for load in [Load::Quiet, Load::Waited, Load::Hot, Load::Many] {
        let name = format!("PostgreSQL: {trouble:?}, {load:?}");
        let costs = costs(trouble, load);
        assert_flat(&name, &costs, most);
        assert_idle(&name, &costs, MOST_CPU);
    }
}

#[test]
fn a_postgres_that_closes_connections_gets_few_of_them() {
    assert_cheap(Trouble::Killed, 60);
}

#[test]
fn a_postgres_that_hangs_costs_little_cpu_time_with_any_lease() {
    assert_cheap(Trouble::Frozen, 0);
}
