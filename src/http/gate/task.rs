//! Handlers that run to their end although their client goes away.
//!
//! ```text
//! ResponseFuture of the layer ──▶ run_to_end ──▶ the task, which holds the turns of all lock layers
//!    dropped: the client is gone    dropped       goes on
//! ```

use crate::{Locks, locks::reentry, trace};

/// Runs a future as a task, which goes on when this is dropped, and which [`Locks::close`] waits
/// for. Its output is `None` if a layer further out has lost its lease, and answers.
pub(crate) async fn run_to_end<T: Send + 'static>(
    locks: &Locks,
    future: impl Future<Output = Option<T>> + Send + 'static,
) -> T {
    let busy = locks.busy();
    let task = trace::spawn(reentry::carry(async move {
        let _busy = busy;
        future.await
    }));
    match task.await {
        Ok(Some(output)) => output,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The layer whose lease was lost answers, or the runtime shuts down.
        Ok(None) | Err(_) => std::future::pending().await,
    }
}
