//! Processes of the examples `ledger` and `reports`.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
};

/// One replica, which is killed when this is dropped.
pub struct Replica {
    child: Child,
    addr: SocketAddr,
}

impl Replica {
    /// Starts a replica of the ledger with these variables, and waits until the replica listens.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_example("ledger", settings)
    }

    /// Starts a replica of an example with these variables, and waits until the replica listens.
    pub fn start_example(name: &'static str, settings: &[(&str, &str)]) -> Self {
        let replica = Self::start_program(example(name), settings, Stdio::inherit());
        replica.expect("the replica listens")
    }

    /// Starts a replica of the ledger with the standard error elsewhere. `None` if the replica ended before it listened.
    pub fn try_start(settings: &[(&str, &str)], stderr: Stdio) -> Option<Self> {
        Self::start_program(example("ledger"), settings, stderr)
    }

    fn start_program(program: PathBuf, settings: &[(&str, &str)], stderr: Stdio) -> Option<Self> {
        let mut child = Command::new(program)
            .envs(settings.iter().copied())
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the example starts");
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

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether the replica has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM. Says whether the replica ended well.
    pub fn terminate(mut self) -> bool {
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

/// Builds an example beside this test: after a `cargo test --all-features` there is nothing to be done.
fn example(name: &'static str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap();
    built.entry(name).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    let this = env::current_exe().unwrap();
    let profile = this.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--all-features", "--example", name]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the example must build");
    profile.join("examples").join(name)
}
