//! The memory store on one thread and on two.

use std::rc::Rc;

use tower_distributed_lock::Locks;

use super::{keys, locking::locking};
use crate::{
    bench::{Bench, runtime},
    closed_loop::Slice,
    contest::{Contestant, Group},
    peers::Dropped,
};

pub const TITLE: &str = "Memory store";
pub const ONE_THREAD: &str = "one thread";
pub const TWO_THREADS: &str = "two threads";

/// 32 tasks with keys of their own, on runtimes with one worker thread and with two.
pub(super) fn threads(bench: &mut Bench) {
    let about = "This crate, 32 tasks, each lock at a key of its own. Ratios are to one thread.";
    let contestants = vec![on_threads(ONE_THREAD, 1), on_threads(TWO_THREADS, 2)];
    let slice = Slice::new(bench.plan.slice);
    bench.contest(Group::new(TITLE, about), slice, contestants);
}

/// A contestant on a runtime of its own, which takes the place of the usual one during each slice.
fn on_threads(name: &str, threads: usize) -> Contestant {
    let sequences = keys::spread(32);
    let clients = vec![Dropped(Locks::in_memory())];
    let usual = locking(name, clients, Rc::new(move || sequences.clone()));
    let Contestant {
        name,
        mut time,
        mut count,
    } = usual;
    let own = Rc::new(std::cell::RefCell::new(runtime(threads)));
    let again = own.clone();
    Contestant {
        name,
        time: Box::new(move |bench, slice| {
            std::mem::swap(&mut bench.runtime, &mut own.borrow_mut());
            let sample = time(bench, slice);
            std::mem::swap(&mut bench.runtime, &mut own.borrow_mut());
            sample
        }),
        count: Box::new(move |bench, slice| {
            std::mem::swap(&mut bench.runtime, &mut again.borrow_mut());
            let counts = count(bench, slice);
            std::mem::swap(&mut bench.runtime, &mut again.borrow_mut());
            counts
        }),
    }
}
