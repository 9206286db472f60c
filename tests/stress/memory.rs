//! Worlds on a memory store.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tower_distributed_lock::{
    LockKey,
    store::{Fault, FaultyStore, Store, StoreFuture},
};

use super::{
    random::Random,
    world::{Instance, Setup, Subject, World, run},
};

const INSTANCES: usize = 2;

#[test]
fn memory_without_faults() {
    run("memory_without_faults", Setup::QUIET, start);
}

#[test]
fn memory_on_several_runtimes() {
    run("memory_on_several_runtimes", Setup::VISITED, start);
}

#[test]
fn memory_with_faults() {
    run("memory_with_faults", Setup::FAULTS, start);
}

#[test]
fn memory_with_losses() {
    run("memory_with_losses", Setup::LOSSES, start);
}

async fn start(setup: Setup) -> (FaultyStore, Vec<Instance>) {
    let store = FaultyStore::new();
    let instances = 0..INSTANCES + setup.guests();
    let instances = instances.map(|_| setup.instance(store.clone())).collect();
    (store, instances)
}

impl Subject for FaultyStore {
    fn play_faults(self: Arc<Self>, world: Arc<World>, mut random: Random) -> StoreFuture<()> {
        Box::pin(async move {
            let mut is_faulty = false;
            while world.setup.may_fail && !world.is_over() {
                sleep(random.millis(1..40)).await;
                if world.setup.may_lose && random.percent(10) {
                    world.witness.store_forgets();
                    if is_faulty || random.percent(50) {
                        self.restart();
                    } else {
                        drop(world.instances[0].locks.force_release("hot/1").await);
                    }
                }
                let fault = *random.pick(&[Fault::Unreachable, Fault::Hang, Fault::Mute]);
                self.set_fault(Some(fault));
                sleep(fault_lasts(&world.setup, &mut random)).await;
                // Sometimes one fault follows another.
                is_faulty = random.percent(30);
                if !is_faulty {
                    self.set_fault(None);
                }
            }
            self.set_fault(None);
        })
    }

    fn leftovers(self: Arc<Self>) -> StoreFuture<Vec<String>> {
        let left = if self.is_empty() {
            Vec::new()
        } else {
            vec!["the store is not empty".into()]
        };
        Box::pin(std::future::ready(left))
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> StoreFuture<String> {
        let seen = Store::inspect(&*self, key);
        Box::pin(async move { format!("{:?}", seen.await) })
    }
}

/// Mostly a moment; now and then longer than a lease, where leases may be lost.
pub(crate) fn fault_lasts(setup: &Setup, random: &mut Random) -> Duration {
    match random.within(0..10) {
        0 if setup.may_lose => setup.lease + random.millis(0..100),
        0 => random.millis(40..200),
        1..3 => random.millis(5..40),
        _ => random.micros(0..5_000),
    }
}
