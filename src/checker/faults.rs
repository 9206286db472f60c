//! The faults of the store, and the ends of runtimes.

use std::sync::Arc;

use super::{clock::sleep, random::Random, setup::Forgetting, world::World};
use crate::store::Fault;

/// Runs the faults of a world.
pub(super) async fn play(world: Arc<World>, mut random: Random) {
    match world.setup.forgets {
        Some(forgetting) => forget_under_way(&world, forgetting).await,
        None => any(&world, &mut random).await,
    }
    world.set_fault(None);
    world.finished();
}

/// Lets the store forget its leases between a renewal and the answer to that renewal.
async fn forget_under_way(world: &World, forgetting: Forgetting) {
    sleep(forgetting.muted).await;
    world.set_fault(Some(Fault::Mute));
    sleep(forgetting.forgotten - forgetting.muted).await;
    world.forget();
    sleep(forgetting.over - forgetting.forgotten).await;
}

/// Runs a few faults at random moments.
async fn any(world: &World, random: &mut Random) {
    for _ in 0..random.within(0..4) {
        moment(world, random).await;
        if random.percent(20) {
            world.end_runtime();
            // The next use of each instance, without which nobody repeats what has failed before.
            sleep(random.millis(0..500)).await;
            world.use_all();
            continue;
        }
        if !world.setup.may_fail {
            continue;
        }
        if world.setup.may_lose && random.percent(20) {
            world.force_release();
        }
        let fault = *random.pick(&[
            Fault::Unreachable,
            Fault::Hang,
            Fault::Mute,
            Fault::Late,
            Fault::Late,
        ]);
        world.set_fault(Some(fault));
        moment(world, random).await;
        if world.setup.may_lose && random.percent(30) {
            world.forget();
            moment(world, random).await;
        }
        if random.percent(80) {
            world.set_fault(None);
        }
    }
}

/// Waits for some steps of other tasks, or for some time.
async fn moment(world: &World, random: &mut Random) {
    if random.percent(50) {
        for _ in 0..random.within(0..60) {
            shuttle::future::yield_now().await;
        }
    } else {
        sleep(world.setup.fault(random)).await;
    }
}
