//! Processes of the example `ledger`.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

/// One replica, which is killed when this is dropped.
pub(crate) struct Replica {
    child: Child,
    addr: SocketAddr,
}

impl Replica {
    /// Starts a replica with these variables, and waits until the replica listens.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::try_start(settings, Stdio::inherit()).expect("the replica listens")
    }

    /// The same, with the standard error elsewhere. `None` if the replica ended before that.
    pub(crate) fn try_start(settings: &[(&str, &str)], stderr: Stdio) -> Option<Self> {
        let mut child = Command::new(ledger())
            .envs(settings.iter().copied())
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the ledger example starts");
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let Some(addr) = line
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|addr| addr.parse().ok())
        else {
            let _ = child.wait();
            return None;
        };
        Some(Self { child, addr })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether the replica has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM. Says whether the replica ended well.
    pub(crate) fn terminate(mut self) -> bool {
        self.signal("-TERM");
        self.child.wait().is_ok_and(|status| status.success())
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.expect("`kill` is there").success());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Builds the example beside this test, with the same features: after a `cargo test` there is nothing to be done.
fn ledger() -> &'static PathBuf {
    static LEDGER: OnceLock<PathBuf> = OnceLock::new();
    LEDGER.get_or_init(|| {
        let this = env::current_exe().unwrap();
        let profile = this.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--example",
            "ledger",
            "--no-default-features",
        ]);
        cargo.arg("--features").arg(features());
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        cargo
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example must build");
        profile.join("examples").join("ledger")
    })
}

fn features() -> String {
    let features = [
        ("axum", cfg!(feature = "axum")),
        ("redis", cfg!(feature = "redis")),
        ("tracing", cfg!(feature = "tracing")),
        ("json", cfg!(feature = "json")),
        ("tls-rustls", cfg!(feature = "tls-rustls")),
    ];
    let on = features.iter().filter(|(_, on)| *on).map(|(name, _)| *name);
    on.collect::<Vec<_>>().join(",")
}
