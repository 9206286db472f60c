//! The warnings about servers that forget leases or records.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::trace;

/// Warns once for each store that a server evicts leases. Warns once as well when both are known:
/// the store keeps records of idempotent work, and a server has no append-only file.
#[derive(Debug, Clone, Default)]
pub(super) struct Persistence(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    has_records: AtomicBool,
    /// The address of the first server without an append-only file.
    forgetful: OnceLock<Arc<str>>,
    has_warned: AtomicBool,
    has_warned_of_eviction: AtomicBool,
}

impl Persistence {
    /// See [`Store::expect_records`](crate::store::Store::expect_records).
    pub(super) fn expect_records(&self) {
        if !self.0.has_records.swap(true, SeqCst) {
            self.warn_once();
        }
    }

    /// Takes the answers of a server to INFO about its memory and its persistence. A server that
    /// denies INFO is not warned about.
    pub(super) fn connected(&self, server: &Arc<str>, infos: [Option<&str>; 2]) {
        let mut lines = infos.into_iter().flatten().flat_map(str::lines);
        let policy = lines
            .clone()
            .find_map(|it| it.strip_prefix("maxmemory_policy:"));
        if let Some(policy) = policy.filter(|policy| *policy != "noeviction")
            && !self.0.has_warned_of_eviction.swap(true, SeqCst)
        {
            trace::redis_evicts(policy);
        }
        if lines.any(|line| line == "aof_enabled:0") {
            let _ = self.0.forgetful.set(server.clone());
            self.warn_once();
        }
    }

    /// Both callers have stored their part before, so that one of them sees both.
    fn warn_once(&self) {
        if self.0.has_records.load(SeqCst)
            && let Some(server) = self.0.forgetful.get()
            && !self.0.has_warned.swap(true, SeqCst)
        {
            trace::redis_forgets(server);
        }
    }
}
