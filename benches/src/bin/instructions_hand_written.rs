//! Locks and releases `N` times, for callgrind: `instructions_hand_written redis://127.0.0.1/ N`.

use tower_distributed_lock_benches::{instructions::repeat, peers::HandWritten};

fn main() {
    repeat(HandWritten::patient);
}
