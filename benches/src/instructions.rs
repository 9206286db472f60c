//! Client instructions per lock, as the script `instructions` finds them out with callgrind.

use std::process::{Command, Stdio};

use futures_util::future::join_all;

use crate::peers::{Client, Key};

const TASKS: usize = 32;

/// Instructions per lock.
#[derive(Debug, Clone, Copy)]
pub struct Instructions {
    pub hand_written: f64,
    /// The guard dropped.
    pub ours: f64,
}

/// Runs the script. `None` where valgrind is not installed.
pub fn measure(url: &str) -> Option<Instructions> {
    let output = Command::new("./instructions")
        .env("REDIS_URL", url)
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().parse().ok()
    };
    Some(Instructions {
        hand_written: of("hand-written:")?,
        ours: of("ours:")?,
    })
}

/// The programs that callgrind runs: as many locks as the second argument says, at the server of the first.
///
/// 32 tasks, as in the table: a write carries several commands then.
pub fn repeat<C: Client>(connect: impl AsyncFnOnce(&str) -> C) {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the server's URL");
    let locks = arguments.next().and_then(|text| text.parse().ok());
    let locks: usize = locks.expect("the number of locks");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = connect(&url).await;
        let task = |task: usize| {
            let client = client.clone();
            tokio::spawn(async move {
                let keys: Vec<Key> = (0..64)
                    .map(|n| Key::new(format!("account/{task}/{n}")))
                    .collect();
                for n in 0..locks / TASKS {
                    let guard = client.lock(&keys[n % keys.len()]).await;
                    client.release(guard).await;
                }
            })
        };
        for ended in join_all((0..TASKS).map(task)).await {
            ended.expect("a task failed");
        }
        client.settle().await;
    });
}
