//! The uptime of a server: how long the server has kept its data.
//!
//! A quorum must not count the grant of a server that has forgotten a lease. A server that keeps
//! its data in memory only has forgotten everything from before its start. The store therefore
//! needs a lower bound of the uptime, and no more:
//!
//! ```text
//! 12:00:00   INFO: run a1, uptime 3600 s              at least 3,599 s
//! 12:10:00   the same connection                      at least 4,199 s
//! 12:10:05   a new connection: run b2, uptime 3 s     at least 2 s: the server has restarted
//! ```

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::sync::Mutex;

/// The uptime of the youngest server among all connections so far. A server that restarts closes
/// its connections, so a server that answers has at least this uptime.
#[derive(Debug, Default)]
pub(crate) struct Uptime {
    youngest: Mutex<Option<Reading>>,
    /// The `run_id` of the server of the latest connection.
    last_run: Mutex<Option<Arc<str>>>,
}

/// The uptime that a server reported, and when.
#[derive(Debug, Clone)]
struct Reading {
    /// The `run_id` of the server. `None` if INFO is denied.
    run: Option<Arc<str>>,
    at: Instant,
    uptime: Duration,
}

impl Uptime {
    /// Reads the reply to INFO on a new connection. A server that denies INFO counts as started
    /// just now. Returns whether the server has not restarted since the connection before.
    pub(super) fn read(&self, info: Option<&str>) -> bool {
        let field = |name| {
            let mut lines = info?.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let seconds = field("uptime_in_seconds:").and_then(|seconds| seconds.parse().ok());
        let new = Reading {
            run: field("run_id:").map(Arc::from),
            at: Instant::now(),
            // The server subtracts two clocks of whole seconds, so the answer can be up to a second
            // too high.
            uptime: Duration::from_secs(
                seconds.map_or(0, |seconds: u64| seconds.saturating_sub(1)),
            ),
        };
        let last_run = std::mem::replace(&mut *self.last_run.lock(), new.run.clone());
        let is_last_run = last_run.is_some() && last_run == new.run;
        let mut youngest = self.youngest.lock();
        let replaces = youngest.as_ref().is_none_or(|old| {
            let is_same_run = old.run.is_some() && old.run == new.run;
            if is_same_run {
                // Each reading is a lower bound, so the higher one is closer to the truth.
                new.uptime > old.until(new.at)
            } else {
                new.uptime < old.until(new.at)
            }
        });
        if replaces {
            *youngest = Some(new);
        }
        is_last_run
    }

    /// A lower bound of the uptime now. Zero before the first connection.
    pub(super) fn get(&self) -> Duration {
        let youngest = self.youngest.lock();
        youngest
            .as_ref()
            .map_or(Duration::ZERO, |reading| reading.until(Instant::now()))
    }

    /// The `run_id` of the server, which no other server and no other run has. `None` before the
    /// first connection, and if the server denies INFO.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        self.last_run.lock().clone()
    }
}

impl Reading {
    /// The uptime at a later time.
    fn until(&self, now: Instant) -> Duration {
        self.uptime.saturating_add(now - self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn info(run: &str, seconds: u64) -> String {
        format!(
            "# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\nuptime_in_seconds:{seconds}\r\n"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn the_uptime_rises_from_the_servers_answer() {
        let uptime = Uptime::default();
        assert_eq!(uptime.get(), Duration::ZERO);
        uptime.read(Some(&info("a", 90)));
        tokio::time::advance(SECOND / 2).await;
        assert_eq!(uptime.get(), SECOND * 179 / 2);
        uptime.read(Some(&info("a", 90)));
        assert_eq!(
            uptime.get(),
            SECOND * 179 / 2,
            "the answer is in whole seconds"
        );
        uptime.read(Some(&info("a", 91)));
        assert_eq!(uptime.get(), SECOND * 90);
    }

    #[tokio::test(start_paused = true)]
    async fn the_younger_of_two_runs_counts() {
        for order in [["a", "b"], ["b", "a"]] {
            let uptime = Uptime::default();
            for run in order {
                uptime.read(Some(&info(run, if run == "a" { 90 } else { 3 })));
            }
            assert_eq!(uptime.get(), SECOND * 2);
            assert_eq!(
                uptime.server_id().as_deref(),
                Some(order[1]),
                "the last run"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_denies_info_is_as_old_as_its_connection() {
        let uptime = Uptime::default();
        for _ in 0..2 {
            uptime.read(None);
            assert_eq!(uptime.get(), Duration::ZERO);
            tokio::time::advance(SECOND).await;
            assert_eq!(uptime.get(), SECOND);
        }
    }
}
