//! Work that is done once: results that are given again, and duplicates that come at once.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use redis::cmd;
use tokio::{runtime::Runtime, time::sleep};
use tower_distributed_lock::{LockGuard, Locks};

use crate::{
    bench::Bench,
    closed_loop::{Actor, Slice},
    contest::{Contestant, Group},
    peers::{Awaited, Client, HandWritten, Key},
};

const RETAIN: Duration = Duration::from_secs(60);
const TASKS: usize = 32;
pub const REPLAY: &str = "Replay";
const DUPLICATES: usize = 64;

/// A contestant that does work once for each key.
trait RunOnce: Client {
    /// Does the work, or gets its result.
    fn run_once(&self, key: &Key) -> impl Future<Output = String> + Send;
}

impl RunOnce for Awaited {
    async fn run_once(&self, key: &Key) -> String {
        let work = async |_: LockGuard| Ok::<_, Infallible>(String::from("paid"));
        let locks: &Locks = &self.0;
        let once = locks.run_once(&key.lock_key, RETAIN, work).await;
        once.expect("the work is done once").value
    }
}

impl RunOnce for HandWritten {
    /// GET the result; else SET NX the key, do the work and SET the result; else ask again every 10 ms.
    async fn run_once(&self, key: &Key) -> String {
        let mut connection = self.connection();
        let result = format!("{}:result", key.text);
        loop {
            let mut get = cmd("GET");
            let found: Option<String> = get
                .arg(&result)
                .query_async(&mut connection)
                .await
                .expect("GET");
            if let Some(found) = found {
                return found;
            }
            let mut take = cmd("SET");
            take.arg(&key.text).arg("1").arg("NX").arg("PX").arg(30_000);
            if take.query_async(&mut connection).await.expect("SET NX") {
                let mut keep = cmd("SET");
                keep.arg(&result)
                    .arg("paid")
                    .arg("PX")
                    .arg(RETAIN.as_millis() as u64);
                let () = keep.query_async(&mut connection).await.expect("SET");
                return "paid".into();
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Results that are there already.
pub(super) fn replay(bench: &mut Bench) {
    let about = "32 tasks ask for a result that is kept: `run_once` here, GET by hand.";
    let contestants = vec![
        replaying::<HandWritten>(bench, &["get"]),
        replaying::<Awaited>(bench, ours()),
    ];
    let slice = Slice::new(bench.plan.slice);
    bench.contest(Group::new(REPLAY, about), slice, contestants);
}

/// 64 duplicates of work that has not been done yet.
pub(super) fn duplicates(bench: &mut Bench) {
    let about = "An operation is 64 calls at once for one new key: the work is done once, and all get its result. By hand: SET NX, and GET \
                 every 10 ms.";
    let contestants = vec![
        duplicating::<HandWritten>(bench, &["get", "set"]),
        duplicating::<Awaited>(bench, ours()),
    ];
    let slice = Slice::cut_short(bench.plan.slice * 3);
    bench.contest(
        Group::new("64 duplicates at once", about),
        slice,
        contestants,
    );
}

fn ours() -> &'static [&'static str] {
    Awaited::COMMANDS
}

fn replaying<C: RunOnce>(bench: &Bench, commands: &'static [&'static str]) -> Contestant {
    let client = bench.runtime.block_on(C::connect(bench.server.url()));
    let actors = move |runtime: &Runtime| {
        let key = |task| Key::new(format!("replay/{task}"));
        let actor = |task| Replay {
            client: client.clone(),
            key: key(task),
        };
        let actors: Vec<Replay<C>> = (0..TASKS).map(actor).collect();
        // The first call does the work; the slice sees only what comes after it.
        runtime.block_on(join_all(
            actors.iter().map(|actor| actor.client.run_once(&actor.key)),
        ));
        actors
    };
    Contestant::new(C::NAME, commands, actors, |_| {})
}

struct Replay<C> {
    client: C,
    key: Key,
}

impl<C: RunOnce> Actor for Replay<C> {
    async fn act(&mut self) -> Duration {
        let begin = Instant::now();
        assert_eq!(self.client.run_once(&self.key).await, "paid");
        begin.elapsed()
    }
}

fn duplicating<C: RunOnce>(bench: &Bench, commands: &'static [&'static str]) -> Contestant {
    let client = bench.runtime.block_on(C::connect(bench.server.url()));
    let settled = client.clone();
    let actors = move |_: &Runtime| {
        let client = client.clone();
        vec![Duplicates { client }]
    };
    Contestant::new(C::NAME, commands, actors, move |runtime| {
        runtime.block_on(settled.settle());
    })
}

struct Duplicates<C> {
    client: C,
}

impl<C: RunOnce> Actor for Duplicates<C> {
    async fn act(&mut self) -> Duration {
        let key = Key::new(format!("duplicates/{}", uuid::Uuid::new_v4()));
        let begin = Instant::now();
        let calls = (0..DUPLICATES).map(|_| {
            let (client, key) = (self.client.clone(), key.clone());
            tokio::spawn(async move { client.run_once(&key).await })
        });
        for result in join_all(calls).await {
            assert_eq!(result.expect("a duplicate gets the result"), "paid");
        }
        begin.elapsed()
    }
}
