//! Locks in PostgreSQL beside those in Redis, and beside what people write by hand.

use std::{cell::Cell, convert::Infallible, rc::Rc, time::Duration};

use axum::{Router, body::Body, extract::State, http::Response, routing::post};
use futures_util::future::join_all;
use tower::ServiceExt;
use tower_distributed_lock::{
    IdempotencyLayer, Locks, idempotency::Claim, key, store::PostgresStore,
};

use super::{
    hand_over, keys,
    locking::{Sequences, locking},
};
use crate::{
    bars::{self, Bar, Limit},
    bench::Bench,
    closed_loop::Slice,
    contest::{Contestant, Group},
    peers::{AdvisoryLock, Awaited, Client, Dropped, Key, LeaseRow},
    postgres_server::connect,
};

pub const SPREAD: &str = "PostgreSQL: spread keys, 32 tasks";
pub const HOT: &str = "PostgreSQL: one hot key, one process";
pub const HAND_OVER: &str = "PostgreSQL: hand-over";
const FIGURES: &str = "PostgreSQL: figures";

pub const REDIS_AWAITED: &str = "Redis, release awaited";
pub const REDIS_DROPPED: &str = "Redis, guard dropped";
pub const AWAITED: &str = "PostgreSQL, release awaited";
pub const DROPPED: &str = "PostgreSQL, guard dropped";

const ABOUT: &str = "The first two rows are this crate on Redis, the next two the same on PostgreSQL. The server has its data in memory: a \
                     commit waits for no disk. Locks by hand have a pool of ten connections.";

pub(super) fn postgres(bench: &mut Bench) {
    if ![SPREAD, HOT, HAND_OVER, FIGURES]
        .iter()
        .any(|title| bench.is_wanted(title))
    {
        return;
    }
    let Some(url) = bench.start_postgres() else {
        return bench.progress("NOT MEASURED: no PostgreSQL server is installed");
    };
    let spread = keys::spread(32);
    lock(
        bench,
        &url,
        SPREAD,
        Slice::new(bench.plan.slice),
        Rc::new(move || spread.clone()),
    );
    let slices = Cell::new(0);
    let hot = move || {
        slices.set(slices.get() + 1);
        keys::hot(32, slices.get())
    };
    lock(
        bench,
        &url,
        HOT,
        Slice::cut_short(bench.plan.slice * 3),
        Rc::new(hot),
    );
    hand_overs(bench, &url);
    if bench.is_wanted(FIGURES) {
        bench.progress(FIGURES);
        let figures = [heap(bench, &url), durable_commits(bench, &url)];
        bench.figures.extend(figures);
    }
}

async fn locks(url: &str) -> Locks {
    let store = PostgresStore::builder(url).build().expect("a URL");
    store.migrate().await.expect("the server is up");
    Locks::builder(store).build().expect("valid settings")
}

fn lock(bench: &mut Bench, url: &str, title: &str, slice: Slice, sequences: Sequences) {
    let (redis, runtime) = (bench.server.url().to_owned(), &bench.runtime);
    let here = runtime.block_on(async {
        (
            Awaited::connect(&redis).await,
            Dropped::connect(&redis).await,
        )
    });
    let there = runtime.block_on(async { (Awaited(locks(url).await), Dropped(locks(url).await)) });
    let by_hand = runtime.block_on(async {
        (
            AdvisoryLock::connect(url).await,
            LeaseRow::connect(url).await,
        )
    });
    let contestants = vec![
        locking(REDIS_AWAITED, vec![here.0], sequences.clone()),
        locking(REDIS_DROPPED, vec![here.1], sequences.clone()),
        on_postgres(locking(AWAITED, vec![there.0], sequences.clone())),
        on_postgres(locking(DROPPED, vec![there.1], sequences.clone())),
        on_postgres(locking(
            AdvisoryLock::NAME,
            vec![by_hand.0],
            sequences.clone(),
        )),
        on_postgres(locking(LeaseRow::NAME, vec![by_hand.1], sequences)),
    ];
    bench.contest(Group::new(title, ABOUT), slice, contestants);
}

fn hand_overs(bench: &mut Bench, url: &str) {
    let (redis, runtime) = (bench.server.url().to_owned(), &bench.runtime);
    let ours = runtime.block_on(async {
        let here = (
            Awaited::connect(&redis).await,
            Awaited::connect(&redis).await,
        );
        (here, (Awaited(locks(url).await), Awaited(locks(url).await)))
    });
    let advisory = runtime.block_on(async {
        (
            AdvisoryLock::connect(url).await,
            AdvisoryLock::connect(url).await,
        )
    });
    let rows =
        runtime.block_on(async { (LeaseRow::connect(url).await, LeaseRow::connect(url).await) });
    let contestants = vec![
        hand_over::between(REDIS_AWAITED, ours.0),
        on_postgres(hand_over::between(AWAITED, ours.1)),
        on_postgres(hand_over::between(AdvisoryLock::NAME, advisory)),
        on_postgres(hand_over::between(LeaseRow::NAME, rows)),
    ];
    let slice = Slice::cut_short(bench.plan.slice * 5);
    let about = "As *Hand-over*, from one instance to another. The server has its data in memory.";
    bench.contest(Group::new(HAND_OVER, about), slice, contestants);
}

/// The CPU time of the server is PostgreSQL's, and commands are not counted.
fn on_postgres(mut contestant: Contestant) -> Contestant {
    let (mut time, mut count) = (contestant.time, contestant.count);
    contestant.time = Box::new(move |bench, slice| {
        bench.measures_postgres = true;
        let sample = time(bench, slice);
        bench.measures_postgres = false;
        sample
    });
    contestant.count = Box::new(move |bench, slice| {
        let mut counts = count(bench, slice);
        counts.commands = f64::NAN;
        counts
    });
    contestant
}

/// The size of the table after many locks of few keys.
fn heap(bench: &Bench, url: &str) -> Bar {
    const KEYS: usize = 2_000;
    let cycles = if bench.plan.is_quick { 20_000 } else { 100_000 };
    let megabytes = bench.runtime.block_on(async {
        let locks = locks(url).await;
        let tasks = (0..32).map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for cycle in 0..cycles / 32 {
                    let key = Key::new(format!("heap/{}", (cycle * 32 + task) % KEYS));
                    let guard = locks
                        .lock(&key.lock_key)
                        .await
                        .expect("the lock is granted");
                    guard.release().await.expect("the lock was held");
                }
            })
        });
        join_all(tasks).await;
        let size = "SELECT pg_relation_size('tdl.keys')";
        bench.postgres().number(size).await / 1024.0 / 1024.0
    });
    let what = format!(
        "PostgreSQL: MB of the table after {cycles} locks of {KEYS} keys (and those of the tables above)"
    );
    bars::exact(&what, Limit::AtMost(2.0), megabytes)
}

/// Flushes of the log for an idempotent request whose handler keeps its answer, less the one of its own transaction.
fn durable_commits(bench: &Bench, url: &str) -> Bar {
    const REQUESTS: usize = 200;
    let commits = bench.runtime.block_on(async {
        let table =
            "CREATE TABLE IF NOT EXISTS payments (number bigint GENERATED ALWAYS AS IDENTITY)";
        bench
            .postgres()
            .client()
            .await
            .batch_execute(table)
            .await
            .expect("a table");
        let app = |locks: Locks| {
            let idempotency = IdempotencyLayer::new(locks, key::request().header("x-tenant-id"));
            let handler = post(pay).route_layer(idempotency.required());
            Router::new().route("/", handler).with_state(url.to_owned())
        };
        let version = "SELECT current_setting('server_version_num')::bigint";
        let flushes = if bench.postgres().number(version).await < 180_000.0 {
            "SELECT wal_sync FROM pg_stat_wal"
        } else {
            "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
        };
        let before = settled(bench, flushes).await;
        let locks = locks(url).await;
        for request in 0..REQUESTS {
            let request = axum::http::Request::post("/")
                .header("x-tenant-id", "acme")
                .header(
                    "idempotency-key",
                    format!("{request}-{}", uuid::Uuid::new_v4()),
                )
                .body(Body::empty())
                .expect("a request");
            let answer: Result<_, Infallible> = app(locks.clone()).oneshot(request).await;
            assert_eq!(answer.map(|answer| answer.status().as_u16()), Ok(200));
        }
        locks.close(Duration::from_secs(5)).await;
        drop(locks);
        settled(bench, flushes).await - before
    });
    let what = "PostgreSQL: durable commits of an idempotent request with `keep`, beside the handler's own";
    bars::exact(what, Limit::AtMost(1.1), commits / REQUESTS as f64 - 1.0)
}

/// Sessions tell their statistics when they end, or after a second.
async fn settled(bench: &Bench, sql: &str) -> f64 {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    bench.postgres().number(sql).await
}

async fn pay(State(url): State<String>, claim: Claim) -> Response<String> {
    let mut client = connect(&url).await;
    let transaction = client.transaction().await.expect("a transaction");
    let insert = "INSERT INTO payments DEFAULT VALUES";
    transaction.execute(insert, &[]).await.expect("a payment");
    let answer = Response::new("paid".to_owned());
    let keep = claim.keep(&answer).expect("a claim in PostgreSQL");
    keep.run(&transaction).await.expect("the claim is held");
    transaction.commit().await.expect("a commit");
    answer
}
