//! A Redis server of the run's own, on a free port, which ends with the run.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// How long the server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server, and a connection that only asks for statistics.
pub struct RedisServer {
    child: Child,
    url: String,
    folder: PathBuf,
    connection: redis::Connection,
}

impl RedisServer {
    /// Starts `redis-server`, or the program that `TDL_REDIS_SERVER` names, and waits until it answers.
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let folder = std::env::temp_dir().join(format!("tdl-benches-{port}"));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let program = std::env::var("TDL_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut child = Command::new(&program)
            .current_dir(&folder)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot run `{program}`: {error}; install redis-server")
            });
        let url = format!("redis://127.0.0.1:{port}/");
        let connection = connect(&url, &mut child);
        Self {
            child,
            url,
            folder,
            connection,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What INFO says under a name, such as `redis_version`.
    pub fn info(&mut self, name: &str) -> Option<String> {
        let info = self.section("server");
        let mut values = info
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.next().map(str::to_owned)
    }

    /// How often each command has run, commands that scripts call included.
    pub fn calls(&mut self) -> BTreeMap<String, u64> {
        let calls_of = |line: &str| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = fields.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), calls))
        };
        self.section("commandstats")
            .lines()
            .filter_map(calls_of)
            .collect()
    }

    /// Deletes all keys and waits until their memory is free.
    pub fn clear(&mut self) {
        let cleared: redis::RedisResult<()> = redis::cmd("FLUSHALL")
            .arg("SYNC")
            .query(&mut self.connection);
        cleared.expect("FLUSHALL");
    }

    fn section(&mut self, section: &str) -> String {
        let asked = redis::cmd("INFO").arg(section).query(&mut self.connection);
        asked.unwrap_or_else(|error| panic!("INFO {section}: {error}"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn connect(url: &str, child: &mut Child) -> redis::Connection {
    let client = redis::Client::open(url).expect("the URL is well formed");
    let until = Instant::now() + PATIENCE;
    loop {
        match client.get_connection() {
            Ok(connection) => return connection,
            Err(error) if Instant::now() > until => panic!("the server does not answer: {error}"),
            Err(_) => sleep(Duration::from_millis(10)),
        }
        if let Ok(Some(status)) = child.try_wait() {
            panic!("the server has ended: {status}");
        }
    }
}
