//! On the memory store with paused time: the calls can be counted exactly.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::{Instant, sleep};
use tower_distributed_lock::{
    Locks, Loss,
    store::{Calls, Fault, FaultyStore},
};

use crate::{
    Cost, LEASES, assert_flat,
    load::{Load, cpu_time, on_a_thread},
};

/// How long each scenario is watched, in the runtime's time.
const WATCHED: Duration = Duration::from_secs(10);

fn total(calls: Calls) -> u64 {
    calls.acquires + calls.renewals + calls.releases
}

/// The calls that one instance makes under a fault, for ten seconds. The fault begins shortly
/// before a renewal is due, so that this renewal fails and is retried.
fn cost(lease: Duration, load: Load, fault: Option<Fault>) -> Cost {
    let name = format!("{load:?} under {fault:?} with a lease of {lease:?}");
    let scenario = on_a_thread(true, async move || {
        let store = FaultyStore::new();
        // The renewal of a lease of an hour is due after the default of `max_hold`.
        let builder = Locks::builder(store.clone()).lease(lease);
        let locks = builder.max_hold(Duration::MAX).build().unwrap();
        let _running = load.start(&locks).await;
        if load == Load::Quiet {
            sleep(lease / 3 - (lease / 100).min(Duration::from_secs(1))).await;
        }
        store.set_fault(fault);
        let (before, cpu) = (total(store.calls()), cpu_time());
        sleep(WATCHED).await;
        Cost {
            lease,
            calls: total(store.calls()) - before,
            cpu: cpu_time() - cpu,
        }
    });
    scenario.result(&name)
}

fn costs(load: Load, fault: Option<Fault>) -> Vec<Cost> {
    let costs = LEASES.iter().map(|lease| cost(*lease, load, fault));
    costs.collect()
}

#[test]
fn a_quiet_lock_costs_a_few_calls_a_second_at_most_under_any_fault() {
    // With a lease of 1 s, a renewal is due every 333 ms, and is retried every 42 ms until the
    // lease is over.
    let faults = [Fault::Unreachable, Fault::Hang, Fault::Mute];
    for fault in [None].into_iter().chain(faults.map(Some)) {
        assert_flat(&format!("quiet, {fault:?}"), &costs(Load::Quiet, fault), 40);
    }
}

#[test]
fn a_key_that_is_passed_on_costs_no_more_with_a_long_lease() {
    // A key that is passed on is renewed every poll interval, 1 s, or every third of a shorter
    // lease; and some thousand turns need more tokens a few hundred times.
    assert_flat("hot, no fault", &costs(Load::Hot, None), 600);
}

#[test]
fn a_hot_key_costs_as_much_as_its_callers_ask_while_the_store_is_unreachable() {
    // Four callers that ask again every 50 ms make 800 acquires in ten seconds; renewals and
    // releases come on top.
    let unreachable = Some(Fault::Unreachable);
    assert_flat("hot, unreachable", &costs(Load::Hot, unreachable), 1_000);
}

#[test]
fn a_hot_key_costs_a_few_calls_while_the_store_hangs() {
    for fault in [Fault::Hang, Fault::Mute] {
        assert_flat(
            &format!("hot, {fault:?}"),
            &costs(Load::Hot, Some(fault)),
            100,
        );
    }
}

#[test]
fn a_key_that_is_waited_for_costs_a_few_calls_a_second_at_most_under_any_fault() {
    let faults = [Fault::Unreachable, Fault::Hang, Fault::Mute];
    for fault in [None].into_iter().chain(faults.map(Some)) {
        // The waiting callers ask again every 50 ms once the store is unreachable and the lease of
        // 1 s is over.
        let most = if fault == Some(Fault::Unreachable) {
            1_000
        } else {
            60
        };
        assert_flat(
            &format!("waited for, {fault:?}"),
            &costs(Load::Waited, fault),
            most,
        );
    }
}

#[test]
fn a_short_poll_interval_costs_no_storm_either() {
    // Below a 96th of the lease, a renewal that was brought forward used to be due again at once.
    let calls = on_a_thread(true, async || {
        let store = FaultyStore::new();
        let builder = Locks::builder(store.clone()).poll_interval(Duration::from_millis(100));
        let locks = builder.build().unwrap();
        let _running = Load::Hot.start(&locks).await;
        sleep(WATCHED).await;
        total(store.calls())
    });
    let calls = calls.result("poll interval of 100 ms");
    // Ten a second, and some for more tokens.
    assert!(calls <= 700, "{calls} calls in {WATCHED:?}");
}

#[test]
fn an_endless_lease_is_hardly_ever_renewed() {
    let calls = on_a_thread(true, async || {
        let store = FaultyStore::new();
        let builder = Locks::builder(store.clone()).lease(Duration::MAX);
        let locks = builder.max_hold(Duration::MAX).build().unwrap();
        let _running = Load::Quiet.start(&locks).await;
        sleep(WATCHED).await;
        total(store.calls())
    });
    let calls = calls.result("an endless lease");
    assert!(calls <= 2, "{calls} calls in {WATCHED:?}");
}

#[test]
fn giving_up_after_five_failed_renewals_takes_five_pauses() {
    let lost_after = on_a_thread(true, async || {
        let store = FaultyStore::new();
        let locks = Locks::builder(store.clone())
            .lease(Duration::from_secs(120))
            .give_up_after(NonZeroU32::new(5).unwrap())
            .build()
            .unwrap();
        let guard = locks.lock("key").await.unwrap();
        store.set_fault(Some(Fault::Unreachable));
        let mut failed = store.calls().renewals;
        while store.calls().renewals == failed {
            sleep(Duration::from_millis(10)).await;
        }
        failed = store.calls().renewals - failed;
        let first_failure = Instant::now();
        let loss: Loss = guard.lost().await;
        (loss, failed, first_failure.elapsed())
    });
    let (loss, failed, after) = lost_after.result("giving up");
    assert!(
        after >= Duration::from_secs(3),
        "{loss:?} {after:?} after {failed} failed renewals"
    );
}
