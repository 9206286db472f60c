//! One run: its server, its runtime, its plan, and what has been measured so far.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::{
    bars::Bar, contest::Group, cpu, postgres_server::PostgresServer, redis_server::RedisServer,
};

/// How long a run takes.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Slices of each contestant.
    pub rounds: usize,
    /// The length of a slice.
    pub slice: Duration,
    /// Lease of the locks that are held for long, which are measured for one interval between two renewals.
    pub held_lease: Duration,
    pub is_quick: bool,
}

impl Plan {
    /// About a minute and a half.
    pub const QUICK: Self = Self {
        rounds: 5,
        slice: Duration::from_millis(60),
        held_lease: Duration::from_secs(6),
        is_quick: true,
    };

    /// Less than fifteen minutes.
    pub const FULL: Self = Self {
        rounds: 13,
        slice: Duration::from_millis(250),
        held_lease: Duration::from_secs(30),
        is_quick: false,
    };
}

pub struct Bench {
    pub server: RedisServer,
    pub runtime: Runtime,
    pub plan: Plan,
    pub groups: Vec<Group>,
    /// What was counted once, without a table.
    pub figures: Vec<Bar>,
    /// Whether the server of the slice is PostgreSQL.
    pub measures_postgres: bool,
    postgres: Option<PostgresServer>,
    /// Only groups whose title contains this text are measured.
    filter: String,
    started: Instant,
}

impl Bench {
    pub fn new(plan: Plan, filter: &str) -> Self {
        Self {
            server: RedisServer::start(),
            runtime: runtime(2),
            plan,
            groups: Vec::new(),
            figures: Vec::new(),
            measures_postgres: false,
            postgres: None,
            filter: filter.to_owned(),
            started: Instant::now(),
        }
    }

    /// Tells whoever watches how far the run is.
    pub fn progress(&self, text: &str) {
        eprintln!("[{:>4} s] {text}", self.started.elapsed().as_secs());
    }

    pub fn is_wanted(&self, title: &str) -> bool {
        title.contains(&self.filter)
    }

    /// Starts PostgreSQL, if it is installed.
    pub fn start_postgres(&mut self) -> Option<String> {
        self.postgres = PostgresServer::start();
        self.postgres.as_ref().map(PostgresServer::url)
    }

    pub fn postgres(&self) -> &PostgresServer {
        self.postgres.as_ref().expect("PostgreSQL was started")
    }

    /// CPU time of the server that is measured, in seconds.
    pub fn server_cpu(&self) -> f64 {
        if self.measures_postgres {
            self.postgres().cpu()
        } else {
            cpu::of_process(self.server.pid())
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A runtime with so many worker threads; the thread that measures is not one of them.
pub fn runtime(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime")
}
