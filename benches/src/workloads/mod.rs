//! What the contestants do.

mod hand_over;
mod held;
mod http;
mod keys;
mod lines;
mod locking;
mod memory;
mod once;
mod postgres;

use crate::bench::Bench;

pub use self::http::serve;
pub use self::http::{
    BARE, HAND_WRITTEN as HTTP_HAND_WRITTEN, IN_MEMORY as HTTP_IN_MEMORY, LAYER, LAYER_IN_MEMORY,
    ONCE, ONCE_BY_HAND, SPAWNED as HTTP_SPAWNED, title as http_title,
};
pub use self::lines::{TITLE as LINES, line_of};
pub use self::locking::{HOT_ONE, HOT_TWO, INSTANCES, ONE_WORKER, spread_title};
pub use self::memory::{ONE_THREAD, TITLE as MEMORY, TWO_THREADS};
pub use self::once::REPLAY;
pub use self::postgres::{
    AWAITED as POSTGRES_AWAITED, DROPPED as POSTGRES_DROPPED, HAND_OVER as POSTGRES_HAND_OVER,
    HOT as POSTGRES_HOT, REDIS_AWAITED, REDIS_DROPPED, SPREAD as POSTGRES_SPREAD,
};

/// Runs all workloads.
pub fn run(bench: &mut Bench) {
    for tasks in [1, 2, 4, 8, 32, 128, 512] {
        locking::spread(bench, tasks);
    }
    locking::one_worker(bench);
    locking::instances(bench);
    locking::hot(bench, 1);
    locking::hot(bench, 2);
    locking::zipf(bench);
    hand_over::hand_over(bench);
    lines::lines(bench);
    memory::threads(bench);
    once::replay(bench);
    once::duplicates(bench);
    http::http(bench);
    held::held(bench);
    postgres::postgres(bench);
}
