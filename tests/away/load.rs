//! The loads of the scenarios, and the thread that each of them runs on.

use std::{
    fs,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use tokio::{runtime::Builder, task::JoinSet, time::sleep};
use tower_distributed_lock::{LockGuard, Locks};

/// A scenario that takes longer than this in real time counts as one that never yields.
const STUCK: Duration = Duration::from_secs(60);
/// The pause of a task between a refusal and the next question.
const AFTER_REFUSAL: Duration = Duration::from_millis(50);
/// Tasks that pass one key on.
const PASSING: usize = 4;
/// Tasks with a key each.
const MANY: usize = 100;

/// The load of an instance while its store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// One key is held, and nothing else happens.
    Quiet,
    /// Four tasks pass one key on among themselves, and ask again when they are refused.
    Hot,
    /// A key was passed on once, and is held from then on, while other tasks wait for that key.
    Waited,
    /// A hundred tasks have a key each, and ask again when they are refused.
    Many,
}

impl Load {
    /// Starts the load, and returns once the key has been taken. The load ends when the result is
    /// dropped.
    pub(crate) async fn start(self, locks: &Locks) -> Running {
        let mut running = Running {
            _guard: None,
            _tasks: JoinSet::new(),
        };
        let guard = locks.lock("key").await.unwrap();
        let (tasks, turn) = match self {
            Self::Quiet => {
                running._guard = Some(guard);
                return running;
            }
            Self::Hot => (PASSING, Duration::from_millis(1)),
            Self::Waited => (PASSING, Duration::from_secs(60)),
            Self::Many => (MANY, Duration::from_millis(1)),
        };
        for task in 0..tasks {
            let key = match self {
                Self::Many => format!("key-{task}"),
                _ => "key".to_owned(),
            };
            running._tasks.spawn(take_turns(locks.clone(), key, turn));
        }
        // The tasks are in line by the time the key is free for them.
        sleep(Duration::from_millis(100)).await;
        drop(guard);
        sleep(Duration::from_millis(100)).await;
        running
    }
}

/// A load that goes on until this is dropped.
pub(crate) struct Running {
    _guard: Option<LockGuard>,
    _tasks: JoinSet<()>,
}

async fn take_turns(locks: Locks, key: String, turn: Duration) {
    loop {
        match locks.lock(&*key).await {
            Ok(_held) => sleep(turn).await,
            Err(_) => sleep(AFTER_REFUSAL).await,
        }
    }
}

/// Runs a scenario on a current-thread runtime of its own, so that its CPU time is that of one
/// thread, and fails if it does not end: a scheduler that never yields would otherwise hang the
/// test instead of failing it.
pub(crate) fn on_a_thread<T: Send + 'static>(
    paused: bool,
    scenario: impl AsyncFnOnce() -> T + Send + 'static,
) -> Scenario<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(paused).build().unwrap();
        let _ = sender.send(runtime.block_on(scenario()));
    });
    Scenario(receiver)
}

/// A scenario under way on its thread.
pub(crate) struct Scenario<T>(std::sync::mpsc::Receiver<T>);

impl<T> Scenario<T> {
    #[track_caller]
    pub(crate) fn result(self, name: &str) -> T {
        self.0
            .recv_timeout(STUCK)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => panic!("{name}: the runtime never got to its timers"),
                RecvTimeoutError::Disconnected => panic!("{name}: the scenario panicked"),
            })
    }
}

/// The CPU time that the calling thread has used so far.
pub(crate) fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("these tests need Linux");
    let nanos = stat.split(' ').next().unwrap();
    Duration::from_nanos(nanos.parse().unwrap())
}
