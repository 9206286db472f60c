//! The warning about records on a server that forgets them.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::trace;

/// Warns once for each store, when both are known: the store keeps records of idempotent work, and
/// a server has no append-only file.
#[derive(Debug, Clone, Default)]
pub(super) struct Persistence(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    has_records: AtomicBool,
    /// The address of the first server without an append-only file.
    forgetful: OnceLock<Arc<str>>,
    has_warned: AtomicBool,
}

impl Persistence {
    /// See [`Store::expect_records`](crate::store::Store::expect_records).
    pub(super) fn expect_records(&self) {
        if !self.0.has_records.swap(true, SeqCst) {
            self.warn_once();
        }
    }

    /// Takes the answer of a server to INFO. A server that denies INFO is not warned about.
    pub(super) fn connected(&self, server: &Arc<str>, info: Option<&str>) {
        let has_no_file = |info: &str| info.lines().any(|line| line == "aof_enabled:0");
        if info.is_some_and(has_no_file) {
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
