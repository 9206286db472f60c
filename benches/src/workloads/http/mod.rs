//! The same handler over HTTP: bare, with a lock by hand, behind the layer, idempotent, replayed.

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
pub const LAYER: &str = "DistributedLockLayer";

/// The commands that the service sends, the hand-written lock's included where that one is measured.
const OF_HAND_WRITTEN: &[&str] = &["set", "evalsha", "eval"];

/// What a connection asks for.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// Another account each time.
    Account(Path),
    /// A payment that has not been made.
    First,
    /// A payment that has been made.
    Replay,
}

/// One connection, and 32.
pub(super) fn http(bench: &mut Bench) {
    let service = Service::start(bench.server.url());
    for connections in [1, 32] {
        let about = "axum in a process of its own, HTTP/1.1 on loopback, POST with a body of one byte; client CPU and allocations are \
                     those of the service, per request.";
        let title = title(connections);
        let contestant = |name, ask| contestant(name, ask, connections, service.clone());
        let contestants = vec![
            contestant(HAND_WRITTEN, Ask::Account(Path::HandWritten)),
            contestant("bare handler", Ask::Account(Path::Bare)),
            contestant(LAYER, Ask::Account(Path::Layer)),
            contestant("IdempotencyLayer, first time", Ask::First),
            contestant("IdempotencyLayer, replayed", Ask::Replay),
        ];
        let slice = Slice::new(bench.plan.slice * 2);
        bench.contest(Group::new(title, about), slice, contestants);
    }
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
            timed(&bench.runtime, &bench.server, pid, actors, slice)
        }),
        count: Box::new(move |bench, slice| {
            let actors = connect(&bench.runtime, &again, ask, connections);
            let commands = match ask {
                Ask::Account(Path::HandWritten) => OF_HAND_WRITTEN,
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
