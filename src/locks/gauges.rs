//! The gauges of the feature `metrics`.
//!
//! The gauges are computed when they are asked for, from the state that [`Locks::stats`] reads as
//! well.

use super::Locks;
use crate::trace::{self, Gauges};

impl Locks {
    /// Sets the gauges of the feature `metrics` to the present state of `all`. Call this function
    /// right before the metrics are scraped, or every few seconds.
    ///
    /// The gauges of a process are the sums over its `Locks`, so all of them belong into one call.
    /// Gauges are counted anew each time, from the same state that [`stats`](Locks::stats)
    /// returns. They cannot drift, as sums of increments and decrements can: with a
    /// recorder that is installed late, or that forgets idle metrics.
    ///
    /// The function also gives the descriptions and units of all metrics to the recorder.
    ///
    /// ```
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::in_memory();
    /// Locks::record_gauges([&locks]);
    /// // Render the metrics now.
    /// ```
    ///
    /// The [guide](crate::guide::metrics) lists all metrics.
    pub fn record_gauges<'a>(all: impl IntoIterator<Item = &'a Self>) {
        let mut gauges = Gauges::default();
        for locks in all {
            let stats = locks.stats();
            gauges.keys += stats.keys;
            gauges.leases += stats.leases;
            gauges.waiting += stats.waiting;
            gauges.background_calls += stats.calls;
            gauges.owed_releases += stats.releases;
            locks.0.lines.each(|_, line| {
                gauges.longest_line = gauges.longest_line.max(line.waiting());
            });
        }
        trace::record_gauges(&gauges);
    }
}
