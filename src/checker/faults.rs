//! What befalls the store.

use std::sync::Arc;

use super::{clock::sleep, random::Random, world::World};
use crate::store::Fault;

/// Plays a few faults, at any moment.
pub(super) async fn play(world: Arc<World>, mut random: Random) {
    let faults = match world.setup.may_fail {
        true => random.within(0..4),
        false => 0,
    };
    for _ in 0..faults {
        moment(&world, &mut random).await;
        let fault = *random.pick(&[Fault::Unreachable, Fault::Hang, Fault::Mute]);
        world.set_fault(Some(fault));
        moment(&world, &mut random).await;
        if world.setup.may_lose && random.percent(30) {
            world.forget();
            moment(&world, &mut random).await;
        }
        if random.percent(80) {
            world.set_fault(None);
        }
    }
    world.set_fault(None);
    world.finished();
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
