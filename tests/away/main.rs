//! The cost of a store that is away, refuses or hangs: the number of calls and the CPU time do not
//! depend on the lease.
//!
//! A renewal that is retried, or brought forward because the key is passed on, must not be due
//! again at once, however long the lease is. Each test runs the same scenario with each of
//! [`LEASES`].

mod load;
mod memory;
mod postgres;
mod redis;

use test_support as support;

use std::time::Duration;

/// From a lease whose retries are short to one whose retry pause is many times shorter than its
/// renewal interval.
const LEASES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(3600),
];

/// The cost of one scenario with one lease.
#[derive(Debug, Clone, Copy)]
struct Cost {
    lease: Duration,
    /// Calls to the memory store, or commands and connections that a server counted.
    calls: u64,
    cpu: Duration,
}

/// Requires that no lease costs more than `most` calls, and that no longer lease costs more than
/// the shortest does.
#[track_caller]
fn assert_flat(scenario: &str, costs: &[Cost], most: u64) {
    for cost in costs {
        println!("{scenario}: {cost:?}");
    }
    let shortest = costs[0];
    for cost in costs {
        let Cost { lease, calls, .. } = *cost;
        assert!(
            calls <= most,
            "{scenario}: a lease of {lease:?} cost {calls} calls, more than {most}"
        );
        assert!(
            calls <= shortest.calls * 3 / 2 + most / 5,
            "{scenario}: not flat: {calls} calls with a lease of {lease:?}, {} with one of {:?}",
            shortest.calls,
            shortest.lease
        );
    }
}

/// Requires that no lease used more than `most` of CPU time, and that no longer lease used much
/// more than the shortest did.
#[track_caller]
fn assert_idle(scenario: &str, costs: &[Cost], most: Duration) {
    let flat = 2 * costs[0].cpu + most / 16;
    for Cost { lease, cpu, .. } in costs {
        assert!(
            *cpu <= most,
            "{scenario}: {cpu:?} of CPU time with a lease of {lease:?}, more than {most:?}"
        );
        assert!(
            *cpu <= flat,
            "{scenario}: not flat: {cpu:?} of CPU time with a lease of {lease:?}, {:?} with one of {:?}",
            costs[0].cpu,
            costs[0].lease
        );
    }
}
