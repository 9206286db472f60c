//! What a turn costs in a short line and in a long one.

use std::rc::Rc;

use tower_distributed_lock::{Locks, store::RedisStore};

use super::{keys, locking::locking};
use crate::{bench::Bench, closed_loop::Slice, contest::Group, peers::Dropped};

pub const TITLE: &str = "Lines";

/// The name of the row of a line of so many.
pub fn line_of(waiters: usize) -> String {
    format!("a line of {waiters}")
}

/// One key and so many tasks that the line behind its holder is always so long.
pub(super) fn lines(bench: &mut Bench) {
    let about =
        "This crate, one process, one key. An operation is a turn. Ratios are to the line of 10.";
    let contestants = [10, 32, 128, 512, 1024].map(|waiters| {
        let client = bench.runtime.block_on(client(bench.server.url()));
        let sequences = move || keys::hot(waiters + 1, waiters);
        locking(line_of(waiters), vec![client], Rc::new(sequences))
    });
    let slice = Slice::new(bench.plan.slice);
    bench.contest(Group::new(TITLE, about), slice, contestants.into());
}

/// Before the first grant all tasks wait, the later holder too: one more than the default allows.
async fn client(url: &str) -> Dropped {
    let store = RedisStore::connect(url).await.expect("the server is up");
    let locks = Locks::builder(store).longest_line(2048).build();
    Dropped(locks.expect("valid settings"))
}
