//! For how long a server has kept its memory.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::sync::Mutex;

/// The uptime of the youngest server that a connection led to. One that restarts closes its connections, so whoever
/// answers is at least as old as this says.
#[derive(Debug, Default)]
pub(super) struct Uptime {
    told: Mutex<Option<Told>>,
    /// Which run of a server the last connection led to; none if the server does not tell.
    server: Mutex<Option<Arc<str>>>,
}

#[derive(Debug, Clone)]
struct Told {
    /// Which run of the server; none if it does not tell.
    run: Option<Arc<str>>,
    at: Instant,
    uptime: Duration,
}

impl Uptime {
    /// What a new connection was told. A server that does not tell is as old as its connection, as far as we know.
    pub(super) fn read(&self, info: Option<&str>) {
        let field = |name| {
            let mut lines = info?.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let seconds = field("uptime_in_seconds:").and_then(|seconds| seconds.parse().ok());
        let new = Told {
            run: field("run_id:").map(Arc::from),
            at: Instant::now(),
            // The server subtracts two clocks of whole seconds, so what it tells can be up to a second too much.
            uptime: Duration::from_secs(
                seconds.map_or(0, |seconds: u64| seconds.saturating_sub(1)),
            ),
        };
        self.server.lock().clone_from(&new.run);
        let mut told = self.told.lock();
        let replaces = told.as_ref().is_none_or(|old| {
            // Each is a lower bound, so of one run the higher is the truer. Of two runs, whichever was told first, the younger
            // counts.
            match old.run.is_some() && old.run == new.run {
                true => new.uptime > old.until(new.at),
                false => new.uptime < old.until(new.at),
            }
        });
        if replaces {
            *told = Some(new);
        }
    }

    /// Nothing before the first connection.
    pub(super) fn get(&self) -> Duration {
        let told = self.told.lock();
        told.as_ref()
            .map_or(Duration::ZERO, |told| told.until(Instant::now()))
    }

    /// The `run_id` of the server, which no other server has. None before the first connection.
    pub(super) fn server_id(&self) -> Option<Arc<str>> {
        self.server.lock().clone()
    }
}

impl Told {
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
    async fn counts_on_from_what_the_server_said() {
        let uptime = Uptime::default();
        assert_eq!(uptime.get(), Duration::ZERO);
        uptime.read(Some(&info("a", 90)));
        tokio::time::advance(SECOND / 2).await;
        assert_eq!(uptime.get(), SECOND * 179 / 2);
        uptime.read(Some(&info("a", 90)));
        assert_eq!(uptime.get(), SECOND * 179 / 2, "it was rounded");
        uptime.read(Some(&info("a", 91)));
        assert_eq!(uptime.get(), SECOND * 90);
    }

    #[tokio::test(start_paused = true)]
    async fn the_younger_of_two_runs_counts() {
        for told in [["a", "b"], ["b", "a"]] {
            let uptime = Uptime::default();
            for run in told {
                uptime.read(Some(&info(run, if run == "a" { 90 } else { 3 })));
            }
            assert_eq!(uptime.get(), SECOND * 2);
            assert_eq!(uptime.server_id().as_deref(), Some(told[1]), "the last one");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_tell_is_as_old_as_its_connection() {
        let uptime = Uptime::default();
        for _ in 0..2 {
            uptime.read(None);
            assert_eq!(uptime.get(), Duration::ZERO);
            tokio::time::advance(SECOND).await;
            assert_eq!(uptime.get(), SECOND);
        }
    }
}
