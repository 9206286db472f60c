//! Removes the rows of keys that are not used any more.
//!
//! A row stays after its key was released, because the next lock of that key is then an update in
//! place. A key that is not used again leaves its row behind, until this task finds it.

use std::{sync::Weak, time::Duration};

use tokio::time::sleep;
use tokio_postgres::types::Type;

use super::{Wire, connect::Param};
use crate::{
    store::engine::EngineStore,
    sync::random,
    time::{later, now},
};

/// The time between two sweeps, whichever process makes them.
const EVERY: Duration = Duration::from_secs(5 * 60);
/// How long a row is left alone after its last use. A swap that is older than that does not exist
/// any more: after that time, a row that was deleted and written again may have its token only.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// The rows of one statement, which are locked until it ends.
const ROWS: i32 = 100;
/// Between two statements of a sweep.
const PAUSE: Duration = Duration::from_millis(5);

/// The task that sweeps. It does not keep the store.
#[derive(Debug)]
pub(super) struct Sweeper(pub(super) Weak<EngineStore<Wire>>);

impl Sweeper {
    pub(super) async fn run(self) {
        while self.0.strong_count() > 0 {
            sleep(EVERY.mul_f64(0.2 + random() / 5.0)).await;
            if self.is_due().await {
                // What is left is swept the next time.
                let _ = self.sweep(IDLE).await;
            }
        }
    }

    /// Whether no process has swept lately.
    async fn is_due(&self) -> bool {
        let Some(store) = self.0.upgrade() else {
            return false;
        };
        let every = EVERY.as_micros() as i64;
        let sql = format!("SELECT {}.sweep_due_1($1)", store.engine.schema());
        let params: [Param<'_>; 1] = [(&every, Type::INT8)];
        let due = store.engine.server.query(&sql, &params).await;
        let due = due.unwrap_or_default();
        due.first().is_some_and(|row| row.get(0))
    }

    /// Deletes the rows that have been idle for so long. `None` if it was interrupted.
    pub(super) async fn sweep(&self, idle: Duration) -> Option<()> {
        let server = self.0.upgrade()?.engine.server.clone();
        let sql = format!("SELECT {}.sweep_1($1, $2, $3)", server.schema);
        let idle = idle.as_micros() as i64;
        let mut session = server.connect().await.ok()?;
        let mut after = String::new();
        while self.0.strong_count() > 0 {
            let params: [Param<'_>; 3] = [
                (&after, Type::TEXT),
                (&ROWS, Type::INT4),
                (&idle, Type::INT8),
            ];
            let until = later(now(), server.limit);
            let swept = server.query_on(session, &sql, &params, until).await;
            let (open, rows) = swept.ok()?;
            session = open;
            match rows.first()?.get(0) {
                Some(last) => after = last,
                None => return Some(()),
            }
            sleep(PAUSE).await;
        }
        None
    }
}
