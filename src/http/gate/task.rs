//! Handlers that run to their end although their client goes away.
//!
//! ```text
//! ResponseFuture of the layer ──▶ run_to_end ──▶ the task, which holds the turns of all lock layers
//!    dropped: the client is gone    dropped       goes on
//! ```

use crate::{Locks, locks::reentry, trace};

/// Runs a future as a task, which goes on when this is dropped, and which [`Locks::close`] waits
/// for. Its output is `None` if a layer further out has lost its lease, and answers.
pub(crate) fn run_to_end<T, F>(locks: &Locks, future: F) -> impl Future<Output = T> + use<T, F>
where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    // In a box: a task is moved a dozen times until it runs, and this one is large.
    let (busy, future) = (locks.busy(), Box::pin(future));
    let task = trace::spawn(reentry::carry(async move {
        let _busy = busy;
        future.await
    }));
    async {
        match task.await {
            Ok(Some(output)) => output,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The layer whose lease was lost answers, or the runtime shuts down.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}
