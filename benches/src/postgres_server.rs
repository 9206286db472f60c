//! A PostgreSQL server of the run's own, on a free port, which ends with the run. Its data is in memory where that is possible: a commit then
//! costs no time of the disk, as on Redis.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tokio_postgres::{Client, NoTls};

use crate::cpu;

/// How long the server may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct PostgresServer {
    child: Child,
    port: u16,
    folder: PathBuf,
}

/// Keeps the server running until standard input ends, which it does with this process.
const WATCH: &str = r#""$1"/postgres -D "$2" >"$2/log" 2>&1 & server=$!; read -r _; kill -INT $server; wait $server; rm -rf "$2""#;

impl PostgresServer {
    /// `None` if no server is installed in a usual place or in the folder that `TDL_POSTGRES_BIN` names.
    pub fn start() -> Option<Self> {
        let programs = programs()?;
        let port = TcpListener::bind("127.0.0.1:0")
            .ok()?
            .local_addr()
            .ok()?
            .port();
        let memory = Path::new("/dev/shm");
        let base = if memory.exists() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let folder = base.join(format!("tdl-benches-postgres-{port}"));
        let made = as_server(&programs.join("initdb"))
            .args([
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-sync",
                "-D",
            ])
            .arg(&folder)
            .stdout(Stdio::null())
            .status();
        made.ok().filter(|status| status.success())?;
        // The writer of asynchronous commits does not come in between, so that flushes of the log are durable commits.
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 300\n\
             shared_buffers = 64MB\nwal_writer_delay = 10s\n"
        );
        let written = as_server(Path::new("sh"))
            .args(["-c", "printf %s \"$2\" >> \"$1/postgresql.conf\"", "sh"])
            .arg(&folder)
            .arg(settings)
            .status();
        written.ok().filter(|status| status.success())?;
        let child = as_server(Path::new("sh"))
            .args(["-c", WATCH, "sh"])
            .args([&programs, &folder])
            .stdin(Stdio::piped())
            .spawn()
            .ok()?;
        let server = Self {
            child,
            port,
            folder,
        };
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "PostgreSQL does not answer");
            sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// CPU time of all processes of the server, in seconds.
    pub fn cpu(&self) -> f64 {
        let file = std::fs::read_to_string(self.folder.join("postmaster.pid")).unwrap_or_default();
        let main: Option<u32> = file.lines().next().and_then(|line| line.parse().ok());
        main.map_or(0.0, cpu::of_children)
    }

    /// A connection that asks for statistics.
    pub async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    pub async fn number(&self, sql: &str) -> f64 {
        let row = self.client().await.query_one(sql, &[]).await;
        let number: i64 = row
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
            .get(0);
        number as f64
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Connects, and drives the connection in a task. A server that has just been started may not answer yet.
pub async fn connect(url: &str) -> Client {
    let until = Instant::now() + PATIENCE;
    loop {
        match tokio_postgres::connect(url, NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return client;
            }
            Err(error) if Instant::now() > until => panic!("{url}: {error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn programs() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("TDL_POSTGRES_BIN") {
        return Some(folder.into());
    }
    let folders = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<PathBuf> = folders.map(|folder| folder.path().join("bin")).collect();
    found.sort();
    found.extend(["/opt/homebrew/bin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from));
    found
        .into_iter()
        .find(|folder| folder.join("initdb").exists())
}

/// A command of a user who may run the server, which root may not.
fn as_server(program: &Path) -> Command {
    let id = Command::new("id").arg("-u").output();
    let mut command = if id.is_ok_and(|id| id.stdout == b"0\n") {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}
