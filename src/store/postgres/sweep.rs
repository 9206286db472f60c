//! Removes the rows of keys that are not used any more.
//!
//! A row stays after its key was released, because the next lock of that key is then an update in
//! place. A key that is not used again leaves its row behind, until this task finds it.

use std::{sync::Weak, time::Duration};

use tokio::time::sleep;
use tokio_postgres::types::Type;

use super::Wire;
use crate::{store::engine::EngineStore, sync::random};

/// The time between two sweeps, whichever process makes them.
const EVERY: Duration = Duration::from_secs(5 * 60);
/// How long a row is left alone after its last use. A swap that is older than that does not exist
/// any more: after that time, a row that was deleted and written again may have its token only.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// The rows of one statement.
const ROWS: i32 = 1000;
/// Between two statements of a sweep.
const PAUSE: Duration = Duration::from_millis(20);

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
        let every = (Box::new(EVERY.as_micros() as i64) as _, Type::INT8);
        let sql = format!("SELECT {}.sweep_due_1($1)", store.engine.schema());
        let due = store.engine.query(sql, vec![every], store.deadline()).await;
        let due = due.into_result().unwrap_or_default();
        due.first().is_some_and(|row| row.get(0))
    }

    /// Deletes the rows that have been idle for so long. `None` if it was interrupted.
    pub(super) async fn sweep(&self, idle: Duration) -> Option<()> {
        let mut after = String::new();
        loop {
            let store = self.0.upgrade()?;
            let sql = format!("SELECT {}.sweep_1($1, $2, $3)", store.engine.schema());
            let params = vec![
                (Box::new(after) as _, Type::TEXT),
                (Box::new(ROWS) as _, Type::INT4),
                (Box::new(idle.as_micros() as i64) as _, Type::INT8),
            ];
            let swept = store.engine.query(sql, params, store.deadline()).await;
            let rows = swept.into_result().ok()?;
            match rows.first()?.get(0) {
                Some(last) => after = last,
                None => return Some(()),
            }
            drop(store);
            sleep(PAUSE).await;
        }
    }
}
