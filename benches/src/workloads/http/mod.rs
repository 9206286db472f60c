//! The same handler over HTTP: bare, with a lock by hand, behind the layer, idempotent, replayed.

mod by_hand;
mod load;
mod service;

use std::time::Duration;

use tokio::runtime::Runtime;

pub use self::service::serve;
use self::{
    load::Connection,
    service::{Path, Service},
};
use crate::{
    bench::Bench,
    closed_loop::{Counted, Slice, counted, timed},
    contest::{Contestant, Group},
    peers::{Awaited, Client},
};

pub const HAND_WRITTEN: &str = "hand-written lock in the handler";
pub const SPAWNED: &str = "the same, its release spawned";
pub const LAYER: &str = "DistributedLockLayer";
pub const ONCE_BY_HAND: &str = "idempotency by hand, complete, first time";
pub const ONCE: &str = "IdempotencyLayer, first time";
pub const BARE: &str = "bare handler";
pub const IN_MEMORY: &str = "HTTP, 32 connections, in memory";
pub const LAYER_IN_MEMORY: &str = "DistributedLockLayer, Locks::in_memory";

/// The commands that the service sends, the hand-written lock's included where that one is measured.
const OF_HAND_WRITTEN: &[&str] = &["set", "evalsha", "eval"];

/// What a connection asks for.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// Another account each time.
    Account(Path),
    /// A payment that has not been made.
    First(Once),
    /// A payment that has been made.
    Replay(Once),
}

/// Who makes a payment once.
#[derive(Debug, Clone, Copy)]
enum Once {
    ByHand,
    Layer,
}

impl Once {
    fn name(self) -> &'static str {
        match self {
            Self::ByHand => "once-by-hand",
            Self::Layer => "once",
        }
    }
}

const ABOUT: &str = "axum in a process of its own, HTTP/1.1 on loopback, POST with a body of one byte; client CPU and allocations \
                     are those of the service, per request.";

/// One connection, and 32; then 32 without a server.
pub(super) fn http(bench: &mut Bench) {
    let service = Service::start(bench.server.url());
    let slice = Slice::new(bench.plan.slice * 2);
    for connections in [1, 32] {
        let title = title(connections);
        let contestant = |name, ask| contestant(name, ask, connections, service.clone());
        let contestants = vec![
            contestant(HAND_WRITTEN, Ask::Account(Path::HandWritten)),
            contestant(BARE, Ask::Account(Path::Bare)),
            contestant(SPAWNED, Ask::Account(Path::Spawned)),
            contestant("the same as a middleware", Ask::Account(Path::Middleware)),
            contestant(LAYER, Ask::Account(Path::Layer)),
            contestant(ONCE_BY_HAND, Ask::First(Once::ByHand)),
            contestant(ONCE, Ask::First(Once::Layer)),
            contestant("by hand, replayed", Ask::Replay(Once::ByHand)),
            contestant("IdempotencyLayer, replayed", Ask::Replay(Once::Layer)),
        ];
        bench.contest(Group::new(title, ABOUT), slice, contestants);
    }
    let contestant = |name, path| contestant(name, Ask::Account(path), 32, service.clone());
    let contestants = vec![
        contestant(BARE, Path::Bare),
        contestant("tower's ConcurrencyLimit, one for all", Path::Limit),
        contestant(
            "DashMap of tokio's mutexes, as a middleware",
            Path::KeyedMutex,
        ),
        contestant(LAYER_IN_MEMORY, Path::LayerInMemory),
    ];
    bench.contest(Group::new(IN_MEMORY, ABOUT), slice, contestants);
}

/// The title of the group with so many connections.
pub fn title(connections: usize) -> String {
    match connections {
        1 => "HTTP, 1 connection".into(),
        connections => format!("HTTP, {connections} connections"),
    }
}

fn contestant(name: &str, ask: Ask, connections: usize, service: Service) -> Contestant {
    let again = service.clone();
    Contestant {
        name: name.into(),
        time: Box::new(move |bench, slice| {
            let actors = connect(&bench.runtime, &service, ask, connections);
            let pid = Some(service.pid());
            timed(bench, pid, actors, slice)
        }),
        count: Box::new(move |bench, slice| {
            let actors = connect(&bench.runtime, &again, ask, connections);
            let commands = match ask {
                Ask::Account(Path::HandWritten | Path::Spawned | Path::Middleware)
                | Ask::First(Once::ByHand)
                | Ask::Replay(Once::ByHand) => OF_HAND_WRITTEN,
                _ => Awaited::COMMANDS,
            };
            let what = Counted {
                commands,
                allocations: &|is_on| again.count_allocations(is_on),
            };
            // Releases go on after the response.
            let settle = || std::thread::sleep(Duration::from_millis(30));
            counted(
                &bench.runtime,
                &mut bench.server,
                what,
                actors,
                slice,
                settle,
            )
        }),
    }
}

fn connect(runtime: &Runtime, service: &Service, ask: Ask, connections: usize) -> Vec<Connection> {
    let open = async |number| Connection::open(service.address(), ask, number).await;
    let all = futures_util::future::join_all((0..connections).map(open));
    runtime.block_on(all)
}
