//! What a slice has used.

use std::{collections::BTreeMap, time::Duration};

use crate::{allocations, bench::Bench, cpu, redis_server::RedisServer};

/// What one timed slice came to.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Operations a second.
    pub rate: f64,
    /// Latencies, in µs.
    pub p50: f64,
    pub p99: f64,
    /// CPU time of the client for each operation, in µs.
    pub client_cpu: f64,
    /// CPU time of the server for each operation, in µs.
    pub server_cpu: f64,
}

/// What one counted slice came to, for each operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub commands: f64,
    pub allocations: f64,
}

/// CPU time at one moment, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct CpuTimes {
    client: f64,
    server: f64,
}

impl CpuTimes {
    /// `client`: another process that does the work, where that is not this one.
    pub fn now(bench: &Bench, client: Option<u32>) -> Self {
        Self {
            client: client.map_or_else(cpu::of_own_workers, cpu::of_process),
            server: bench.server_cpu(),
        }
    }

    /// The sample of a slice that began at these times.
    pub fn sample(self, end: Self, elapsed: Duration, latencies: Vec<Duration>) -> Sample {
        let operations = latencies.len();
        self.sample_of(end, elapsed, operations, latencies)
    }

    /// As [`sample`](Self::sample), where operations have no latency or only some have one.
    pub fn sample_of(
        self,
        end: Self,
        elapsed: Duration,
        operations: usize,
        mut latencies: Vec<Duration>,
    ) -> Sample {
        latencies.sort_unstable();
        let operations = operations as f64;
        let percentile = |percent: usize| {
            let at = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
            latencies
                .get(at)
                .map_or(f64::NAN, |latency| latency.as_nanos() as f64 / 1e3)
        };
        Sample {
            rate: operations / elapsed.as_secs_f64(),
            p50: percentile(50),
            p99: percentile(99),
            client_cpu: (end.client - self.client) * 1e6 / operations,
            server_cpu: (end.server - self.server) * 1e6 / operations,
        }
    }
}

/// Counts commands and allocations while nothing else happens.
pub struct Counter<'a> {
    server: &'a mut RedisServer,
    count_allocations: CountAllocations<'a>,
    calls: BTreeMap<String, u64>,
    allocations: u64,
}

/// Turns the counting of allocations on or off, in the process that does the work, and says how many were counted so far.
pub type CountAllocations<'a> = &'a dyn Fn(bool) -> u64;

/// [`CountAllocations`] of this process.
pub fn own_allocations(is_on: bool) -> u64 {
    allocations::count(is_on);
    allocations::counted()
}

impl<'a> Counter<'a> {
    pub fn start(server: &'a mut RedisServer, count_allocations: CountAllocations<'a>) -> Self {
        Self {
            calls: server.calls(),
            allocations: count_allocations(true),
            server,
            count_allocations,
        }
    }

    /// `commands`: the commands that the client sends, as opposed to those that only its scripts call.
    pub fn stop(self, commands: &[&str], operations: usize) -> Counts {
        let allocations = (self.count_allocations)(false) - self.allocations;
        let after = self.server.calls();
        let calls = |calls: &BTreeMap<String, u64>| -> u64 {
            let sent = |name: &str| {
                let name = name.split('|').next().unwrap_or_default();
                commands.contains(&name)
            };
            let sent = calls.iter().filter(|(name, _)| sent(name));
            sent.map(|(_, calls)| calls).sum()
        };
        Counts {
            commands: (calls(&after) - calls(&self.calls)) as f64 / operations as f64,
            allocations: allocations as f64 / operations as f64,
        }
    }
}
