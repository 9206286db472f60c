//! The time of one call to a server.

#[cfg(feature = "metrics")]
use super::metrics;
use super::{StoreOperation, StoreResult, record};
#[cfg(feature = "metrics")]
use crate::time::{Instant, now};

/// A call that was started and is to be answered. Empty without the feature `metrics`.
#[derive(Debug)]
pub(crate) struct StoreCall {
    #[cfg(feature = "metrics")]
    operation: StoreOperation,
    #[cfg(feature = "metrics")]
    began: Instant,
}

impl StoreCall {
    pub(crate) fn begin(operation: StoreOperation) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            operation,
            #[cfg(feature = "metrics")]
            began: now(),
        }
    }

    /// Records the time of the call. A call that has no end, because its caller has left, is not
    /// recorded.
    pub(crate) fn end(self, result: StoreResult) {
        record!({
            let took = now().saturating_duration_since(self.began);
            metrics::STORE_CALLS.record(took, &[self.operation as usize, result as usize]);
        });
    }
}
