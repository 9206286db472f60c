//! For how long a server has kept its memory.

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::Mutex;

/// The uptime of the server that the newest connection leads to. A server that restarts closes its connections, so whoever
/// answers is never younger than this says.
#[derive(Debug, Default)]
pub(super) struct Uptime(Mutex<Option<Read>>);

#[derive(Debug, Clone, Copy)]
struct Read {
    at: Instant,
    uptime: Duration,
}

impl Uptime {
    /// What a new connection was told. A server that does not tell is as old as its connection, as far as we know.
    pub(super) fn read(&self, info: Option<&str>) {
        let field = |line: &str| line.strip_prefix("uptime_in_seconds:")?.trim().parse().ok();
        let seconds = info.and_then(|info| info.lines().find_map(field));
        let uptime = Duration::from_secs(seconds.unwrap_or(0));
        let mut latest = self.0.lock();
        let at = Instant::now();
        // Another lane may have been told meanwhile of a server that is younger still.
        let known = latest.map_or(Duration::MAX, |read| read.until(at));
        *latest = Some(Read {
            at,
            uptime: uptime.min(known),
        });
    }

    /// Nothing before the first connection.
    pub(super) fn get(&self) -> Duration {
        let latest = *self.0.lock();
        latest.map_or(Duration::ZERO, |read| read.until(Instant::now()))
    }
}

impl Read {
    fn until(self, now: Instant) -> Duration {
        self.uptime.saturating_add(now - self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn counts_on_from_what_the_server_said() {
        let uptime = Uptime::default();
        assert_eq!(uptime.get(), Duration::ZERO);
        uptime.read(Some(
            "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:90\r\nuptime_in_days:0\r\n",
        ));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(uptime.get(), Duration::from_secs(95));
    }

    #[tokio::test(start_paused = true)]
    async fn the_youngest_counts() {
        let uptime = Uptime::default();
        for info in ["uptime_in_seconds:3", "uptime_in_seconds:90"] {
            uptime.read(Some(info));
            assert_eq!(uptime.get(), Duration::from_secs(3));
        }
        uptime.read(None);
        assert_eq!(uptime.get(), Duration::ZERO);
    }
}
