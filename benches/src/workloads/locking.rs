//! Tasks that lock and release, one key after another.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use super::keys::{self, Sequence};
use crate::{
    bench::{Bench, runtime},
    closed_loop::{Actor, Slice},
    contest::{Contestant, Group},
    peers::{AsyncRedisLock, Awaited, Bb8, Client, Dropped, HandWritten, Rslock},
};

/// Makes the sequences of all tasks for one slice.
pub(super) type Sequences = Rc<dyn Fn() -> Vec<Sequence>>;

pub const ONE_WORKER: &str = "Spread keys, 32 tasks on one worker thread";
pub const INSTANCES: &str = "Spread keys, 64 tasks over 8 instances";
pub const HOT_ONE: &str = "One hot key, one process";
pub const HOT_TWO: &str = "One hot key, two processes";

/// The title of the group in which so many tasks lock keys of their own.
pub fn spread_title(tasks: usize) -> String {
    match tasks {
        1 => "Spread keys, 1 task".into(),
        tasks => format!("Spread keys, {tasks} tasks"),
    }
}

/// Each task locks keys that no other task locks.
pub(super) fn spread(bench: &mut Bench, tasks: usize) {
    let sequences = keys::spread(tasks);
    let group = Group::new(spread_title(tasks), "Each lock at a key of its own.");
    let peers = peers(bench, 1, Rc::new(move || sequences.clone()));
    // With many tasks a lock takes longer, and a slice must see several locks of each task.
    let slice = Slice::new(bench.plan.slice * (1 + tasks as u32 / 128));
    bench.contest(group, slice, peers);
}

/// One worker thread beside the server, so that the threads of the client do not disturb each other.
pub(super) fn one_worker(bench: &mut Bench) {
    let usual = std::mem::replace(&mut bench.runtime, runtime(1));
    let about = "Each lock at a key of its own; the server has a core to itself.";
    let (group, sequences) = (Group::new(ONE_WORKER, about), keys::spread(32));
    let peers = peers(bench, 1, Rc::new(move || sequences.clone()));
    let slice = Slice::new(bench.plan.slice);
    bench.contest(group, slice, peers);
    bench.runtime = usual;
}

/// Eight instances, whose messages have fewer calls each.
pub(super) fn instances(bench: &mut Bench) {
    let about = "Eight clients with connections of their own, eight tasks each; each lock at a key of its own.";
    let (group, sequences) = (Group::new(INSTANCES, about), keys::spread(64));
    let peers = peers(bench, 8, Rc::new(move || sequences.clone()));
    let slice = Slice::new(bench.plan.slice);
    bench.contest(group, slice, peers);
}

/// 32 tasks at one key.
pub(super) fn hot(bench: &mut Bench, instances: usize) {
    let (title, about) = match instances {
        1 => (HOT_ONE, "32 tasks."),
        _ => (
            HOT_TWO,
            "16 tasks each. Two clients with connections of their own stand for the processes: \
             the instances of this crate share nothing but the server.",
        ),
    };
    let slices = Cell::new(0);
    let sequences = move || {
        slices.set(slices.get() + 1);
        keys::hot(32, slices.get())
    };
    let peers = peers(bench, instances, Rc::new(sequences));
    let slice = Slice::cut_short(bench.plan.slice * 3);
    bench.contest(Group::new(title, about), slice, peers);
}

/// 64 tasks at keys that are not equally popular.
pub(super) fn zipf(bench: &mut Bench) {
    let slices = Cell::new(0);
    let sequences = move || {
        slices.set(slices.get() + 1);
        keys::zipf(64, 1000, slices.get())
    };
    let about = "64 tasks; the key of rank n is drawn n times more seldom than the first.";
    let group = Group::new("Zipf over 1,000 keys", about);
    let peers = peers(bench, 1, Rc::new(sequences));
    let slice = Slice::cut_short(bench.plan.slice * 3);
    bench.contest(group, slice, peers);
}

fn peers(bench: &Bench, instances: usize, sequences: Sequences) -> Vec<Contestant> {
    vec![
        contestant::<HandWritten>(bench, instances, &sequences),
        contestant::<Rslock>(bench, instances, &sequences),
        contestant::<AsyncRedisLock>(bench, instances, &sequences),
        contestant::<Bb8>(bench, instances, &sequences),
        contestant::<Awaited>(bench, instances, &sequences),
        contestant::<Dropped>(bench, instances, &sequences),
    ]
}

fn contestant<C: Client>(bench: &Bench, instances: usize, sequences: &Sequences) -> Contestant {
    let connect = async || {
        let mut clients = Vec::new();
        for _ in 0..instances {
            clients.push(C::connect(bench.server.url()).await);
        }
        clients
    };
    let clients = bench.runtime.block_on(connect());
    locking(C::NAME, clients, sequences.clone())
}

/// A contestant whose tasks take turns with the clients that they lock by.
pub(super) fn locking<C: Client>(
    name: impl Into<String>,
    clients: Vec<C>,
    sequences: Sequences,
) -> Contestant {
    let all = clients.clone();
    let actors = move |_: &tokio::runtime::Runtime| {
        let sequences = sequences().into_iter().zip(clients.iter().cycle());
        let actor = |(keys, client): (Sequence, &C)| Locker {
            client: client.clone(),
            keys,
            next: 0,
        };
        sequences.map(actor).collect()
    };
    Contestant::new(name, C::COMMANDS, actors, move |runtime| {
        for client in &all {
            runtime.block_on(client.settle());
        }
    })
}

struct Locker<C> {
    client: C,
    keys: Sequence,
    next: usize,
}

impl<C: Client> Actor for Locker<C> {
    async fn act(&mut self) -> Duration {
        let key = &self.keys[self.next];
        self.next = (self.next + 1) % self.keys.len();
        let begin = Instant::now();
        let guard = self.client.lock(key).await;
        let latency = begin.elapsed();
        self.client.release(guard).await;
        latency
    }
}
