//! A real PostgreSQL for tests, on a free port.
//!
//! A server takes two seconds to start, so the tests of one program share one
//! ([`PostgresServer::shared`]), each with a [`Database`] of its own: NOTIFY does not leave a
//! database, and its sessions can be ended without touching those of other tests. A test that stops
//! or freezes the server starts its own.
//!
//! PostgreSQL refuses to run as root. As root, the server runs as the user `postgres`, whom the
//! package creates.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::{eventually, redis_server::free_port};

/// Keeps the server running until standard input ends, which it does with the test's process, even
/// if that is killed.
const WATCH: &str = r#"
"$1"/postgres -D "$2" &
server=$!
read -r _
kill -QUIT $server 2>/dev/null
wait $server
[ -e "$2/keep" ] || rm -rf "$2"
"#;

/// The setting of tests that do not measure: a crash of the machine may damage the data.
const USUAL: [&str; 3] = ["fsync=off", "max_connections=300", "deadlock_timeout=200ms"];

/// A role without any rights of its own.
pub const ROLE: &str = "app";

/// A server of its own, or the one that the tests of a program share.
pub struct PostgresServer {
    watcher: Child,
    port: u16,
    folder: PathBuf,
}

/// A fresh database on a server.
pub struct Database {
    name: String,
    port: u16,
}

impl PostgresServer {
    /// The server that all tests of this program share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with further settings, as in `postgresql.conf`.
    pub async fn start_with(settings: &[&str]) -> Self {
        let server = Self::run(make_folder(), settings).await;
        let client = connect(&server.url()).await;
        let create = format!("CREATE ROLE {ROLE} LOGIN");
        client.batch_execute(&create).await.unwrap();
        server
    }

    /// Starts a replica of this server, which follows asynchronously.
    pub async fn replica(&self) -> Self {
        let folder = new_folder();
        let made = command(&programs().join("pg_basebackup"))
            .current_dir("/")
            .args(["--checkpoint=fast", "--write-recovery-conf", "-D"])
            .arg(&folder)
            .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
            .arg(self.port.to_string())
            .output()
            .expect("pg_basebackup runs");
        assert!(made.status.success(), "{made:?}");
        let primary = format!("host=127.0.0.1 port={} user=postgres", self.port);
        Self::run(folder, &[&format!("primary_conninfo='{primary}'")]).await
    }

    /// Runs statements as the superuser.
    pub async fn execute(&self, sql: &str) {
        let done = connect(&self.url()).await.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Writes a file into the folder of the server, as the user who runs it.
    pub fn add_file(&self, name: &str, content: &[u8]) {
        let path = self.folder.join(name);
        let mut write = command(Path::new("sh"))
            .args(["-c", "umask 077; cat > \"$1\"", "sh"])
            .arg(path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell runs");
        write.stdin.take().unwrap().write_all(content).unwrap();
        assert!(write.wait().unwrap().success());
    }

    async fn run(folder: PathBuf, settings: &[&str]) -> Self {
        // Another process may bind the port first: then another port is tried.
        for _ in 0..20 {
            let port = free_port();
            configure(&folder, port, settings);
            let mut server = Self {
                watcher: watch(&folder),
                port,
                folder: folder.clone(),
            };
            if server.is_up().await {
                return server;
            }
            std::fs::write(folder.join("keep"), "").unwrap();
            server.stop();
        }
        panic!("postgres does not start on any port with {settings:?}");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database `postgres`, as the superuser.
    pub fn url(&self) -> String {
        url(self.port, "postgres", "postgres")
    }

    /// A fresh, empty database.
    pub async fn database(&self) -> Database {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        let client = connect(&self.url()).await;
        let create = format!("CREATE DATABASE {name}");
        client.batch_execute(&create).await.unwrap();
        Database {
            name,
            port: self.port,
        }
    }

    /// The server crashes: what was committed asynchronously may be lost.
    pub fn crash(&mut self) {
        std::fs::write(self.folder.join("keep"), "").unwrap();
        self.stop();
    }

    /// Starts the server again, after a [crash](Self::crash).
    pub async fn restart(&mut self) {
        let _ = std::fs::remove_file(self.folder.join("keep"));
        self.watcher = watch(&self.folder);
        assert!(self.is_up().await, "the server does not come back");
    }

    /// SIGSTOP for all processes of the server: the kernel still accepts connections and bytes, and
    /// no answer comes.
    pub fn freeze(&self) {
        self.signal_all("-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal_all("-CONT");
    }

    /// Ends the process that watches the server, and thereby the server.
    fn stop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }

    /// Waits until the server answers, and is the one that was started. False if it has ended.
    async fn is_up(&mut self) -> bool {
        let mut ended = false;
        eventually("the server answers", async || {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            ended = log.contains("could not create any TCP/IP sockets");
            ended || self.data_directory().await.as_deref() == self.folder.to_str()
        })
        .await;
        !ended
    }

    async fn data_directory(&self) -> Option<String> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.ok()?;
        tokio::spawn(connection);
        let row = client.query_one("SHOW data_directory", &[]).await.ok()?;
        row.get(0)
    }

    fn signal_all(&self, signal: &str) {
        let file = std::fs::read_to_string(self.folder.join("postmaster.pid")).unwrap();
        let main = file.lines().next().unwrap().to_owned();
        let children = Command::new("pgrep").args(["-P", &main]).output().unwrap();
        let children = String::from_utf8(children.stdout).unwrap();
        for pid in [main.as_str()].into_iter().chain(children.lines()) {
            // A backend may have ended by itself.
            let _ = Command::new("kill").args([signal, pid]).status();
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.thaw_if_frozen();
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl PostgresServer {
    /// A frozen server would not see that it is to end.
    fn thaw_if_frozen(&self) {
        if self.folder.join("postmaster.pid").exists() {
            self.thaw();
        }
    }
}

impl Database {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL, as the superuser.
    pub fn url(&self) -> String {
        self.url_as("postgres")
    }

    /// The URL for another role.
    pub fn url_as(&self, role: &str) -> String {
        url(self.port, role, &self.name)
    }

    /// A connection of the test's own, as the superuser.
    pub async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    /// Runs statements that must succeed.
    pub async fn execute(&self, sql: &str) {
        let done = self.client().await.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs the statements of a store's tables, and lets [`ROLE`] use them.
    pub async fn migrate(&self, schema_sql: &str) {
        self.execute(schema_sql).await;
        let grant = format!(
            "GRANT USAGE ON SCHEMA tdl TO {ROLE}; \
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tdl TO {ROLE}"
        );
        self.execute(&grant).await;
    }

    /// The URL of the role with few rights, at another port.
    pub fn url_through(&self, port: u16) -> String {
        url(port, ROLE, &self.name)
    }

    /// A number that a query returns.
    pub async fn number(&self, sql: &str) -> i64 {
        let row = self.client().await.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
            .get(0)
    }

    /// Ends the sessions of this database with this `application_name`.
    pub async fn end_sessions(&self, application: &str) {
        let client = connect(&url(self.port, "postgres", "postgres")).await;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = $1 AND application_name = $2";
        let done = client.execute(sql, &[&self.name, &application]).await;
        done.unwrap();
    }
}

/// Connects to a URL, and drives the connection in a task.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .unwrap_or_else(|error| panic!("{url}: {error:?}"));
    tokio::spawn(connection);
    client
}

fn url(port: u16, role: &str, database: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{port}/{database}")
}

/// The folder of the server's programs: that of TDL_POSTGRES_BIN, or of the newest server that is
/// installed.
fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("TDL_POSTGRES_BIN") {
        return folder.into();
    }
    let installed = |base: &str| {
        let folders = std::fs::read_dir(base).into_iter().flatten().flatten();
        let found = folders.filter_map(|folder| {
            let bin = folder.path().join("bin");
            let version = folder.file_name().into_string().ok()?;
            let version = version.trim_start_matches("postgresql@").parse::<u32>();
            bin.join("initdb")
                .exists()
                .then_some((version.unwrap_or(0), bin))
        });
        found.max()
    };
    let bases = [
        "/usr/lib/postgresql",
        "/usr/libexec/postgresql",
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/usr/local",
    ];
    if let Some((_, folder)) = bases.into_iter().find_map(installed) {
        return folder;
    }
    assert!(
        Path::new("/usr/bin/initdb").exists(),
        "these tests need a real PostgreSQL server: install the package `postgresql` \
         (`apt-get install postgresql`, `brew install postgresql`), or name the folder of its \
         programs by TDL_POSTGRES_BIN"
    );
    "/usr/bin".into()
}

/// A command of a user who may run the server.
pub fn command(program: &Path) -> Command {
    let id = Command::new("id").arg("-u").output().unwrap();
    if id.stdout != b"0\n" {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

/// The path of a new server's folder.
fn new_folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tdl-postgres-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Makes the folder of a new server.
fn make_folder() -> PathBuf {
    let folder = new_folder();
    let made = command(&programs().join("initdb"))
        .current_dir("/")
        .arg("-D")
        .arg(&folder)
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8"])
        .args(["--locale=C", "--no-sync", "--no-instructions"])
        .output()
        .expect("initdb runs");
    assert!(made.status.success(), "{made:?}");
    folder
}

fn configure(folder: &Path, port: u16, settings: &[&str]) {
    let mut lines = vec![
        format!("port = {port}"),
        "listen_addresses = '127.0.0.1'".to_owned(),
        "unix_socket_directories = ''".to_owned(),
    ];
    lines.extend(USUAL.iter().chain(settings).map(|line| (*line).to_owned()));
    // The owner stays the user of the server.
    std::fs::write(folder.join("postgresql.auto.conf"), lines.join("\n") + "\n").unwrap();
}

fn watch(folder: &Path) -> Child {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    command(Path::new("sh"))
        .current_dir("/")
        .args(["-c", WATCH, "sh"])
        .args([&programs(), folder])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("a shell runs")
}
