//! A real Redis of a test's own, on a free port, gone with the test.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::{Client, Value, aio::MultiplexedConnection, cmd};
use tokio::time::sleep;

use super::eventually;

/// The server to test with: `redis-server`, or another binary by the environment variable `TDL_REDIS_SERVER`.
pub fn binary() -> String {
    std::env::var("TDL_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

pub struct RedisServer {
    child: Child,
    port: u16,
    args: Vec<String>,
    /// The directory of the server's files: a server that finds the dump of another one would not start empty.
    folder: PathBuf,
}

/// A command in INFO commandstats.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stat {
    pub calls: u64,
    pub usec_per_call: f64,
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with further arguments, as on the command line.
    pub async fn start_with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Another process may bind the port first: then another port is tried.
        for _ in 0..20 {
            let port = free_port();
            let folder = format!("tdl-redis-{}-{port}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let mut server = Self {
                child: spawn(port, &args, &folder),
                port,
                args: args.clone(),
                folder,
            };
            if server.is_up().await {
                return server;
            }
        }
        panic!(
            "{} does not start on any port with {args:?}; run it by hand to see why",
            binary()
        );
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGSTOP: the kernel still accepts connections and bytes, and no answer comes.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Starts the server again on the same port after `kill`: empty, unless its arguments say otherwise.
    pub async fn restart(&mut self) {
        self.restart_with(&[]).await;
    }

    pub async fn restart_with(&mut self, more: &[&str]) {
        self.kill();
        let mut args = self.args.clone();
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        self.child = spawn(self.port, &args, &self.folder);
        assert!(self.is_up().await, "the server does not come back");
    }

    /// A connection of the test's own, on which nothing is hidden.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.expect("the server is up")
    }

    /// A connection of the test's own, for messages.
    pub async fn subscription(&self) -> redis::aio::PubSub {
        let client = Client::open(self.url()).unwrap();
        client.get_async_pubsub().await.expect("the server is up")
    }

    /// Sends a command that must succeed.
    pub async fn send<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let (name, args) = words.split_first().unwrap();
        let mut command = cmd(name);
        command.arg(args);
        command
            .query_async(&mut self.connection().await)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Whether the server says that it is a primary. A server that is being demoted closes all connections.
    pub async fn is_primary(&self) -> bool {
        let asked = async {
            let mut connection = self.try_connection().await?;
            let info: String = cmd("INFO")
                .arg("replication")
                .query_async(&mut connection)
                .await?;
            redis::RedisResult::Ok(info.contains("role:master"))
        };
        asked.await.unwrap_or(false)
    }

    /// Closes the connections of all clients, subscriptions aside.
    pub async fn break_connections(&self) {
        let _: Value = self.send(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    }

    /// Closes all connections that wait for messages.
    pub async fn interrupt_hints(&self) {
        let _: Value = self.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }

    /// Writes are refused (NOREPLICAS), or not any more.
    pub async fn refuse_writes(&self, refused: bool) {
        // No server in these tests has so many.
        let replicas = if refused { "99" } else { "0" };
        let _: Value = self
            .send(&["CONFIG", "SET", "min-replicas-to-write", replicas])
            .await;
    }

    /// How many connections the server has accepted so far.
    pub async fn connections_received(&self) -> u64 {
        let info: String = self.send(&["INFO", "stats"]).await;
        let line = |line: &str| {
            line.strip_prefix("total_connections_received:")?
                .trim()
                .parse()
                .ok()
        };
        info.lines().find_map(line).unwrap()
    }

    /// How many replies with this error the server has sent since RESETSTAT.
    pub async fn errors(&self, code: &str) -> u64 {
        let info: String = self.send(&["INFO", "errorstats"]).await;
        let name = format!("errorstat_{code}:count=");
        let line = |line: &str| line.strip_prefix(&name)?.trim().parse().ok();
        info.lines().find_map(line).unwrap_or(0)
    }

    /// All keys, token counters aside.
    pub async fn leftovers(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.send(&["KEYS", "*"]).await;
        keys.retain(|key| !key.ends_with(":fence"));
        keys.sort();
        keys
    }

    /// Whether the server has seen nothing of the kind since RESETSTAT.
    pub async fn stats(&self) -> BTreeMap<String, Stat> {
        let info: String = self.send(&["INFO", "commandstats"]).await;
        let stat = |line: &str| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.trim().split_once(':')?;
            let field = |name: &str| {
                let mut fields = fields.split(',');
                fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            };
            Some((
                name.to_owned(),
                Stat {
                    calls: field("calls")?.parse().ok()?,
                    usec_per_call: field("usec_per_call")?.parse().ok()?,
                },
            ))
        };
        info.lines().filter_map(stat).collect()
    }

    /// How often a client sent each command since RESETSTAT; calls of scripts and of tests do not count.
    pub async fn commands(&self) -> BTreeMap<String, u64> {
        const OF_SCRIPTS_AND_TESTS: [&str; 26] = [
            "psetex",
            "incr",
            "get",
            "set",
            "del",
            "exists",
            "incrby",
            "pttl",
            "pexpire",
            "time",
            "zadd",
            "zrem",
            "zscore",
            "zrange",
            "zrangebyscore",
            "zrevrangebyscore",
            "zcard",
            "zcount",
            "zrank",
            "zremrangebyscore",
            "info",
            "config",
            "keys",
            "client",
            "hello",
            "pubsub",
        ];
        let stats = self.stats().await.into_iter();
        stats
            .map(|(name, stat)| (name, stat.calls))
            .filter(|(name, _)| {
                let name = name.split('|').next().unwrap_or_default();
                !OF_SCRIPTS_AND_TESTS.contains(&name)
            })
            .collect()
    }

    /// How often the server has read from a connection since RESETSTAT: at most once for each round trip.
    pub async fn reads(&self) -> u64 {
        let info: String = self.send(&["INFO", "stats"]).await;
        let line = |line: &str| line.strip_prefix("total_reads_processed:")?.parse().ok();
        info.lines()
            .find_map(line)
            .expect("Redis 6.2 and later say so")
    }

    pub async fn reset_stats(&self) {
        let _: Value = self.send(&["CONFIG", "RESETSTAT"]).await;
    }

    pub async fn version(&self) -> (u32, u32) {
        let info: String = self.send(&["INFO", "server"]).await;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        let mut parts = version
            .unwrap()
            .split('.')
            .map(|part| part.parse().unwrap());
        (parts.next().unwrap(), parts.next().unwrap())
    }

    async fn try_connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let client = Client::open(self.url())?;
        let config = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(20)))
            .set_connection_timeout(Some(Duration::from_secs(20)));
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// Waits until the server answers, and is the process that was started. False if that process has ended.
    async fn is_up(&mut self) -> bool {
        let mut gave_up = false;
        let pid = self.child.id().to_string();
        eventually("the server answers", async || {
            gave_up = self.child.try_wait().unwrap().is_some();
            gave_up || self.process_id().await == Some(pid.clone())
        })
        .await;
        !gave_up
    }

    async fn process_id(&self) -> Option<String> {
        let mut connection = self.try_connection().await.ok()?;
        let info: String = cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await
            .ok()?;
        info.lines()
            .find_map(|line| line.strip_prefix("process_id:"))
            .map(|pid| pid.trim().to_owned())
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.expect("`kill` is there").success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(port: u16, args: &[String], folder: &Path) -> Child {
    Command::new(binary())
        .current_dir(folder)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "cannot run `{}`: {error}. These tests need a real server: install the package `redis-server` \
                 (`apt-get install redis-server`, `brew install redis`), or name another binary by TDL_REDIS_SERVER",
                binary()
            )
        })
}

/// A port that no other test of this process is given. The kernel gives clients higher ones, and the bus of a cluster is 10,000 above.
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 10_000..20_000;
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(2_654_435_761);
    loop {
        let drawn = begin.wrapping_add(DRAWN.fetch_add(1, Ordering::Relaxed));
        let port = (PORTS.start + drawn % (PORTS.end - PORTS.start)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Lets real time pass.
pub async fn pass(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}
