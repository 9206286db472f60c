//! What it costs to keep many leases.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tower_distributed_lock::{Locks, store::RedisStore};

use crate::{
    bench::Bench,
    contest::{Group, Row},
    meter::{Counter, CpuTimes, own_allocations},
    peers::{AsyncRedisLock, Awaited, Client, Key, LEASE},
};

/// Measures one interval between two renewals with so many leases.
pub(super) fn held(bench: &mut Bench) {
    let lease = bench.plan.held_lease;
    let about = format!(
        "An operation is a renewal. Leases of {} s, renewed at a third of that, are measured for one such interval; the last column says what share of \
         a core they take with the default lease of 30 s. Not interleaved: one measurement each.",
        lease.as_secs()
    );
    let mut group = Group::new("Held leases", about);
    if !bench.is_wanted(&group.title) {
        return;
    }
    // The short lease of a quick run makes five times as many renewals: with 50,000 leases the server would be busy with nothing else.
    let sizes: &[usize] = match bench.plan.is_quick {
        true => &[10_000],
        false => &[10_000, 50_000, 100_000],
    };
    for &leases in sizes {
        let locks = bench.runtime.block_on(ours(bench.server.url(), lease));
        group
            .rows
            .push(holding(bench, "this crate", Awaited(locks), leases));
    }
    let peer = AsyncRedisLock::with_lease(bench.server.url(), lease);
    let peer = bench.runtime.block_on(peer);
    group
        .rows
        .push(holding(bench, AsyncRedisLock::NAME, peer, 10_000));
    bench.groups.push(group);
}

async fn ours(url: &str, lease: Duration) -> Locks {
    let store = RedisStore::connect(url).await.expect("the server is up");
    let locks = Locks::builder(store).lease(lease).build();
    locks.expect("valid settings")
}

fn holding<C: Client>(bench: &mut Bench, name: &str, client: C, leases: usize) -> Row {
    bench.progress(&format!("Held leases: {name}, {leases}"));
    let take = stream::iter(0..leases)
        .map(|n| {
            let client = client.clone();
            async move { client.lock(&Key::new(format!("held/{n}"))).await }
        })
        .buffer_unordered(256)
        .collect::<Vec<_>>();
    let guards = bench.runtime.block_on(take);

    let interval = bench.plan.held_lease / 3;
    let counter = Counter::start(&mut bench.server, &own_allocations);
    std::thread::sleep(interval);
    let counts = counter.stop(C::COMMANDS, leases);
    let (begin, before) = (Instant::now(), CpuTimes::now(bench, None));
    std::thread::sleep(interval);
    let (elapsed, after) = (begin.elapsed(), CpuTimes::now(bench, None));
    let sample = before.sample_of(after, elapsed, leases, Vec::new());

    // Dropped, not released one by one: a release that has to wait for a round of renewals may time out on a busy machine.
    let inside = bench.runtime.enter();
    drop(guards);
    drop(inside);
    bench.runtime.block_on(client.settle());
    bench.server.clear();
    let percent = |micros: f64| micros * leases as f64 / (LEASE / 3).as_micros() as f64 * 100.0;
    Row {
        name: format!("{name}, {leases} leases"),
        samples: vec![sample],
        counts,
        note: format!(
            "client {:.1} %, server {:.1} % of a core",
            percent(sample.client_cpu),
            percent(sample.server_cpu)
        ),
    }
}
