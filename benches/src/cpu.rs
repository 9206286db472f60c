//! CPU time of a process, from `/proc`.
//!
//! The kernel's `schedstat` counts in nanoseconds. `/proc/self/stat` counts in ticks of 10 ms, too coarse for slices of 100 ms,
//! and Redis' INFO needs a command that has to wait behind the load that is being measured.

use std::{fs, path::Path};

/// CPU time that the threads of a process have used, in seconds. Threads that have ended do not count.
pub fn of_process(pid: u32) -> f64 {
    sum(pid, |_| true)
}

/// CPU time of this process without the main thread, which only measures, in seconds.
pub fn of_own_workers() -> f64 {
    let pid = std::process::id();
    sum(pid, |thread| thread != pid)
}

/// CPU time of the processes that a process has started, in seconds.
pub fn of_children(parent: u32) -> f64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = processes.filter_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        // The name may contain spaces.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        (fields.nth(1)? == parent.to_string()).then_some(pid)
    });
    let tasks = |pid| format!("/proc/{pid}/task/{pid}");
    children
        .filter_map(|pid| on_cpu(Path::new(&tasks(pid))))
        .sum()
}

fn sum(pid: u32, counts: impl Fn(u32) -> bool) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.unwrap_or_else(|error| panic!("the threads of process {pid}: {error}"));
    threads
        .filter_map(|thread| {
            let thread = thread.ok()?;
            let id = thread.file_name().to_str()?.parse().ok()?;
            counts(id).then(|| on_cpu(&thread.path()))?
        })
        .sum()
}

/// Seconds on a CPU; `None` for a thread that has just ended.
fn on_cpu(thread: &Path) -> Option<f64> {
    let stat = fs::read_to_string(thread.join("schedstat")).ok()?;
    let nanoseconds: f64 = stat.split(' ').next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}
