//! Redis Sentinel: three sentinels over a primary and two replicas, all gone with the test.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use redis::{Client, RedisResult, cmd};

use super::{
    eventually,
    redis_server::{RedisServer, binary, free_port},
};

/// The name of the service at the sentinels.
pub const SERVICE: &str = "mymaster";

pub struct Sentinels {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<Sentinel>,
}

impl Sentinels {
    /// Ready for a fail-over.
    pub async fn start() -> Self {
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
        let port = primary.port();
        let mut servers = vec![primary];
        for _ in 0..2 {
            servers.push(replica_of(port).await);
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Sentinel::start(port).await);
        }
        let topology = Self { servers, sentinels };
        for sentinel in &topology.sentinels {
            eventually("a sentinel knows all the others", async || {
                let [replicas, others] = ["num-slaves", "num-other-sentinels"];
                sentinel.field(replicas).await == Some("2".into())
                    && sentinel.field(others).await == Some("2".into())
            })
            .await;
        }
        topology
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::url).collect()
    }

    /// Which of the servers the sentinels take for the primary.
    pub async fn primary(&self) -> usize {
        for sentinel in &self.sentinels {
            let port = sentinel.field("port").await;
            let is_it = |server: &RedisServer| Some(server.port().to_string()) == port;
            if let Some(at) = self.servers.iter().position(is_it) {
                return at;
            }
        }
        panic!("no sentinel knows a primary");
    }

    /// Waits until all sentinels name another server, and that one takes itself for the primary. Returns which.
    pub async fn failed_over(&self, from: usize) -> usize {
        let old = self.servers[from].port().to_string();
        for sentinel in &self.sentinels {
            eventually("the fail-over is done", async || {
                sentinel.field("port").await.is_some_and(|port| port != old)
            })
            .await;
        }
        let to = self.primary().await;
        eventually("it knows of it", async || {
            self.servers[to].is_primary().await
        })
        .await;
        to
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        // Before the servers: a sentinel that is left would make a replica of whatever is started on the same port next.
        self.sentinels.clear();
    }
}

/// Starts a replica, and waits until the replica has all data.
pub async fn replica_of(port: u16) -> RedisServer {
    let replica = RedisServer::start_with(&[
        "--replicaof",
        &format!("127.0.0.1 {port}"),
        "--repl-diskless-sync-delay",
        "0",
    ])
    .await;
    eventually("the replica is in sync", async || {
        let info: String = replica.send(&["INFO", "replication"]).await;
        info.contains("master_link_status:up")
    })
    .await;
    replica
}

pub struct Sentinel {
    child: Child,
    port: u16,
    directory: PathBuf,
}

impl Sentinel {
    async fn start(primary: u16) -> Self {
        // Another process may bind the port first: then another port is tried.
        for _ in 0..20 {
            let mut sentinel = Self::spawn(primary);
            if sentinel.is_up().await {
                return sentinel;
            }
        }
        panic!("no sentinel starts on any port; run `redis-server FILE --sentinel` to see why");
    }

    /// Whether the process runs that was started, and watches its primary.
    async fn is_up(&mut self) -> bool {
        let mut gave_up = false;
        eventually("a sentinel watches its primary", async || {
            gave_up = self.child.try_wait().unwrap().is_some();
            gave_up || self.field("port").await.is_some()
        })
        .await;
        !gave_up
    }

    fn spawn(primary: u16) -> Self {
        let port = free_port();
        let name = format!("tdl-sentinel-{}-{port}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        // A sentinel writes to its file.
        let file = directory.join("sentinel.conf");
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 10000\n",
            directory.display()
        );
        std::fs::write(&file, config).unwrap();
        let child = Command::new(binary())
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server that starts can be a sentinel, too");
        Self {
            child,
            port,
            directory,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The answer of a sentinel about the service.
    async fn field(&self, name: &str) -> Option<String> {
        let fields: std::collections::HashMap<String, String> =
            self.send(&["SENTINEL", "MASTER", SERVICE]).await.ok()?;
        fields.get(name).cloned()
    }

    pub async fn send<T: redis::FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let client = Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut connection)
            .await
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
