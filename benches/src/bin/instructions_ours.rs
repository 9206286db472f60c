//! Locks and drops `N` times, for callgrind: `instructions_ours redis://127.0.0.1/ N`.

use tower_distributed_lock_benches::{instructions::repeat, peers::Dropped};

fn main() {
    repeat(Dropped::patient);
}
