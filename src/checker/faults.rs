//! What befalls the store.

use std::sync::Arc;

use super::{clock::sleep, random::Random, world::World};
use crate::store::Fault;

/// Plays the faults of a world.
pub(super) async fn play(world: Arc<World>, mut random: Random) {
    match world.setup.forgets {
        true => forget_under_way(&world, &mut random).await,
        false => any(&world, &mut random).await,
    }
    world.set_fault(None);
    world.finished();
}

/// The store forgets its leases between a renewal and the answer to it.
async fn forget_under_way(world: &World, random: &mut Random) {
    let renewed_after = world.setup.lease / 3;
    sleep(random.millis(0..1_000)).await;
    world.set_fault(Some(Fault::Mute));
    sleep(renewed_after + random.millis(0..1_000)).await;
    world.forget();
    sleep(random.millis(1..3_000)).await;
}

/// Plays a few faults, at any moment.
async fn any(world: &World, random: &mut Random) {
    let faults = match world.setup.may_fail {
        true => random.within(0..4),
        false => 0,
    };
    for _ in 0..faults {
        moment(world, random).await;
        let fault = *random.pick(&[Fault::Unreachable, Fault::Hang, Fault::Mute]);
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

/// Some steps of other tasks, or some time.
async fn moment(world: &World, random: &mut Random) {
    match random.percent(50) {
        true => {
            for _ in 0..random.within(0..60) {
                shuttle::future::yield_now().await;
            }
        }
        false => sleep(world.setup.fault(random)).await,
    }
}
