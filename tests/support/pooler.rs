//! PgBouncer in transaction mode, on a free port.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use super::{
    eventually,
    postgres::{Database, PostgresServer, ROLE, command},
    redis_server::free_port,
};

/// A pooler, which ends when this is dropped.
pub struct Pooler {
    watcher: Child,
    port: u16,
    folder: PathBuf,
}

/// Ends the pooler with the test's process.
const WATCH: &str = r#"pgbouncer -q "$1/pgbouncer.ini" & read -r _; kill -INT $!; wait"#;

impl Pooler {
    /// With so many connections to the server. `None` if PgBouncer is not installed.
    pub async fn start(
        database: &Database,
        server: &PostgresServer,
        connections: u32,
    ) -> Option<Self> {
        Self::before(database, server.port(), connections).await
    }

    /// With so many connections to the server behind a port.
    pub async fn before(
        database: &Database,
        server_port: u16,
        connections: u32,
    ) -> Option<Self> {
        let version = Command::new("pgbouncer").arg("--version").output();
        if version.is_err() && std::env::var_os("TDL_POOLER").is_none() {
            println!("NOT TESTED: `pgbouncer` is not installed");
            return None;
        }
        let port = free_port();
        let folder = format!("tdl-pgbouncer-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let users = folder.join("users.txt");
        std::fs::write(&users, format!("\"{ROLE}\" \"\"\n")).unwrap();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\ndefault_pool_size = {connections}\n\
             server_login_retry = 1\n",
            server_port,
            users.display()
        );
        std::fs::write(folder.join("pgbouncer.ini"), settings).unwrap();
        let watcher = command("sh".as_ref())
            .current_dir("/")
            .args(["-c", WATCH, "sh"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pooler = Self {
            watcher,
            port,
            folder,
        };
        eventually("the pooler answers", async || {
            let url = database.url_through(port);
            let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            connected.is_ok()
        })
        .await;
        Some(pooler)
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
