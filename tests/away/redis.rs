//! On a real Redis: the server counts commands and connections.

use std::time::Duration;

use redis::{Value, aio::MultiplexedConnection, cmd};
use tower_distributed_lock::{Locks, store::RedisStore};

use crate::{
    Cost, LEASES, assert_flat, assert_idle,
    load::{Load, cpu_time, on_a_thread},
    support::redis_server::{RedisServer, pass},
};

/// How long each scenario is watched.
const WATCHED: Duration = Duration::from_secs(2);

/// The fault of the server.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// SIGKILL: connections are refused by the kernel.
    Killed,
    /// The server is out of memory and refuses writes.
    Full,
    /// The server has too few replicas and refuses writes.
    NoReplicas,
    /// SIGSTOP: the kernel accepts connections, and nothing answers.
    Frozen,
    /// Each connection is closed, and new ones are refused for want of a password.
    WrongPassword,
}

impl Trouble {
    async fn begin(self, server: &mut RedisServer, connection: &mut MultiplexedConnection) {
        match self {
            Self::Killed => server.kill(),
            Self::Full => {
                ask(connection, "CONFIG SET maxmemory 1").await;
                close_all(connection).await;
            }
            Self::NoReplicas => {
                ask(connection, "CONFIG SET min-replicas-to-write 1").await;
                close_all(connection).await;
            }
            Self::Frozen => server.freeze(),
            Self::WrongPassword => {
                ask(connection, "CONFIG SET requirepass secret").await;
                close_all(connection).await;
            }
        }
    }

    /// The commands and connections that the server has counted; none if the server is dead.
    async fn count(self, server: &RedisServer, connection: &mut MultiplexedConnection) -> u64 {
        match self {
            Self::Killed => return 0,
            Self::Frozen => {
                server.thaw();
                // Commands that were sent to the frozen server are executed now.
                pass(300).await;
            }
            _ => {}
        }
        let mut info = cmd("INFO");
        let info: String = info.arg("all").query_async(connection).await.unwrap();
        let lines = info.lines().filter_map(|line| {
            if let Some(connections) = line.strip_prefix("total_connections_received:") {
                return connections.trim().parse::<u64>().ok();
            }
            if matches!(self, Self::WrongPassword) {
                // The only commands are those from before all connections were closed.
                return None;
            }
            let evalsha = line.strip_prefix("cmdstat_evalsha:calls=")?;
            evalsha.split(',').next()?.parse().ok()
        });
        lines.sum()
    }
}

/// Closes all other connections: after the reconnect all leases are asked for at once.
async fn close_all(connection: &mut MultiplexedConnection) {
    ask(connection, "CLIENT KILL TYPE normal SKIPME yes").await;
    ask(connection, "CLIENT KILL TYPE pubsub").await;
}

async fn ask(connection: &mut MultiplexedConnection, words: &str) {
    let mut words = words.split(' ');
    let mut command = cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command.query_async::<Value>(connection).await.unwrap();
}

/// Runs the scenario with all leases at the same time, each on a server and a thread of its own.
fn costs(trouble: Trouble, load: Load) -> Vec<Cost> {
    let start = |lease: Duration| {
        on_a_thread(false, async move || {
            let mut server = RedisServer::start().await;
            let mut connection = server.connection().await;
            let store = RedisStore::connect(server.url()).await.unwrap();
            let locks = Locks::builder(store).lease(lease).build().unwrap();
            let running = load.start(&locks).await;
            ask(&mut connection, "CONFIG RESETSTAT").await;
            trouble.begin(&mut server, &mut connection).await;
            let cpu = cpu_time();
            pass(WATCHED.as_millis() as u64).await;
            let cpu = cpu_time() - cpu;
            let calls = trouble.count(&server, &mut connection).await;
            drop(running);
            Cost { lease, calls, cpu }
        })
    };
    let started: Vec<_> = LEASES.iter().map(|lease| start(*lease)).collect();
    let name = format!("{trouble:?}, {load:?}");
    let finished = started.into_iter().map(|scenario| scenario.result(&name));
    finished.collect()
}

/// A storm burns one core for all of that time; a debug build of the callers' own questions takes
/// 150 ms.
const MOST_CPU: Duration = Duration::from_millis(500);

/// Requires that a held key, one that is waited for and a hot one cost at most so many commands and
/// connections within [`WATCHED`].
fn assert_cheap(trouble: Trouble, most: u64) {
    for load in [Load::Quiet, Load::Waited, Load::Hot] {
        let name = format!("{trouble:?}, {load:?}");
        let costs = costs(trouble, load);
        assert_flat(&name, &costs, most);
        assert_idle(&name, &costs, MOST_CPU);
    }
}

#[test]
fn a_server_that_was_killed_costs_little_cpu_time_with_any_lease() {
    assert_cheap(Trouble::Killed, 0);
}

#[test]
fn a_server_that_refuses_writes_gets_few_commands_with_any_lease() {
    // Four callers that ask again every 50 ms could send 160 acquires; they share most of them.
    assert_cheap(Trouble::Full, 200);
    assert_cheap(Trouble::NoReplicas, 200);
}

#[test]
fn a_server_that_hangs_gets_few_commands_with_any_lease() {
    assert_cheap(Trouble::Frozen, 60);
}

#[test]
fn a_server_that_refuses_connections_gets_few_of_them() {
    // At most 50 connections a second from one process, the subscription's included, under any
    // load.
    for load in [Load::Quiet, Load::Hot, Load::Many] {
        let costs = costs(Trouble::WrongPassword, load);
        assert_flat(&format!("wrong password, {load:?}"), &costs, 100);
    }
}
