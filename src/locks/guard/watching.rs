//! The methods of a guard that wait for the loss of its lease.
//!
//! | method | holds the turn | resolves |
//! |---|---|---|
//! | [`lost`](LockGuard::lost) | yes | with the loss, which it also finds by the clock in each poll |
//! | [`watch`](LockGuard::watch) | no | with the loss |
//! | [`run`](LockGuard::run), [`run_with`](LockGuard::run_with) | yes | with the future's output, or with the end of the turn, which drops the future |

use std::{future::poll_fn, pin::pin, task::Poll};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{LockGuard, Status};
use crate::{Error, Loss, locks::line::lost_error};

impl LockGuard {
    /// Waits for the loss of the lease, and returns the reason. The future never resolves if the
    /// turn ends in any other way.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// tokio::select! {
    ///     loss = guard.lost() => println!("stop: {loss}"),
    ///     () = tokio::task::yield_now() => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. A loss is final, and a later call returns the same reason.
    pub async fn lost(&self) -> Loss {
        let mut watching = pin!(self.watch());
        // The clock is looked at in each poll: after a pause of the process, the task can be woken
        // for another reason before the watch is told.
        let watching = poll_fn(|cx| match self.loss() {
            Some(loss) => Poll::Ready(loss),
            None => watching.as_mut().poll(cx),
        });
        let loss = watching.await;
        if self.0.is_released() {
            // The lease had gone on to serve other turns, and the loss is theirs.
            std::future::pending::<()>().await;
        }
        loss
    }

    /// Runs a future for as long as the key is held.
    ///
    /// Every poll looks at the clock and checks for the loss first, so that a future which is woken
    /// after a pause of the process makes no further step. When the lease is lost, or a clone
    /// of the guard releases the turn, the future is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// let total = guard.run(async { 6 * 7 }).await?;
    /// # assert_eq!(total, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lease was lost, or when a clone of the
    /// guard has [released](LockGuard::release) the turn: the future was dropped at one of its
    /// `.await`s. Effects that the future had begun elsewhere, such as a statement that a database
    /// has received, may still happen.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`. The turn goes on.
    #[doc(alias = "leader")]
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        Self::run_with(std::slice::from_ref(self), future).await
    }

    /// Runs a future like [`run`](LockGuard::run), for as long as the keys of all `guards` are
    /// held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::LockGuard;
    ///
    /// let guards = locks.lock_all(["accounts/1", "accounts/2"]).await?;
    /// let moved = LockGuard::run_with(&guards, async { 100 }).await?;
    /// # assert_eq!(moved, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`run`](LockGuard::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](LockGuard::run).
    pub async fn run_with<F: Future>(guards: &[Self], future: F) -> Result<F::Output, Error> {
        let losses = guards.iter().map(|guard| Box::pin(guard.lost()));
        let mut losses: FuturesUnordered<_> = losses.collect();
        // `losses` polls only the futures that were woken, and so does not look at the clock in
        // each poll. A release wakes them, and is found here.
        let over = poll_fn(|_| match guards.iter().find_map(Self::error_if_over) {
            Some(error) => Poll::Ready(error),
            None => Poll::Pending,
        });
        tokio::select! {
            biased;
            error = over => Err(error),
            Some(loss) = losses.next() => Err(lost_error(Some(loss))),
            output = future => Ok(output),
        }
    }

    /// The error of a future that would run after the end of the turn.
    fn error_if_over(&self) -> Option<Error> {
        match self.status() {
            Status::Held => None,
            Status::Released => Some(lost_error(None)),
            Status::Lost(loss) => Some(lost_error(Some(loss))),
        }
    }

    /// Returns a future that resolves when the lease is lost, like [`lost`](LockGuard::lost), but
    /// that holds no clone of the guard.
    ///
    /// After a pause of the process, the future may resolve a moment later than `lost`, which looks
    /// at the clock in each poll: without a guard, a turn whose time is over cannot be told
    /// from a turn that has ended.
    ///
    /// The turn can end while the future waits. The lease may serve other local requests
    /// afterwards, and the future then resolves when the lease is lost during their turns. The
    /// future never resolves if the lease ends in any other way: drop the future when the work
    /// is done, and do not spawn it alone, as a task that would never end.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # async fn work(_: tower_distributed_lock::LockGuard) {}
    /// let guard = locks.lock("orders/42").await?;
    /// let loss = guard.watch();
    /// let working = tokio::spawn(async move {
    ///     tokio::select! {
    ///         loss = loss => println!("stop: {loss}"),
    ///         () = work(guard) => println!("done"), // `work` drops the guard, and so ends the turn
    ///     }
    /// });
    /// # working.await.unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self) -> impl Future<Output = Loss> + Send + use<> {
        let turn = self.0.clone();
        async move {
            let granted = turn.granted();
            let lease = &granted
                .expect("a guard is created after its turn has begun")
                .lease;
            loop {
                let told = lease.loss_told();
                if let Some(loss) = turn.loss() {
                    return loss;
                }
                // Looked at after `told` was made: the background may have ended with its runtime,
                // and whoever ends it wakes the watchers.
                turn.inner.scheduler.start(&turn.inner);
                told.await;
            }
        }
    }
}
