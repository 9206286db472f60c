//! The bars that the crate has set itself, and whether this run met them.

use crate::{
    contest::{Group, Row, Spread},
    instructions::Instructions,
    meter::Sample,
    peers::{Awaited, Client, Dropped, HandWritten},
    workloads,
};

/// What a figure must not be above, or below.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// A figure of this run and its limit.
#[derive(Debug, Clone)]
pub struct Bar {
    pub what: String,
    pub limit: Limit,
    pub figure: Spread,
}

impl Bar {
    pub fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.figure.median <= limit,
            Limit::AtLeast(limit) => self.figure.median >= limit,
        }
    }
}

/// All bars whose groups this run has measured.
pub fn bars(groups: &[Group], instructions: Option<Instructions>) -> Vec<Bar> {
    let find = |title: &str| groups.iter().find(|group| group.title == title);
    let mut bars = Vec::new();
    if let Some(instructions) = instructions {
        let ratio = instructions.ours / instructions.hand_written;
        let what = "client instructions, guard dropped, × hand-written";
        bars.push(exact(what, Limit::AtMost(1.2), ratio));
    }
    bars.extend(
        find(&workloads::spread_title(32))
            .map(of_spread)
            .into_iter()
            .flatten(),
    );
    for (title, awaited, dropped) in [
        (workloads::ONE_WORKER, 0.9, 1.1),
        (workloads::INSTANCES, 0.9, 0.9),
    ] {
        bars.extend(
            find(title)
                .and_then(|group| of_rates(group, awaited, dropped))
                .into_iter()
                .flatten(),
        );
    }
    for (title, limit) in [(workloads::HOT_ONE, 12.0), (workloads::HOT_TWO, 5.0)] {
        bars.extend(find(title).and_then(|group| of_hot(group, limit)));
    }
    bars.extend(find(workloads::REPLAY).and_then(of_replay));
    bars.extend(find(&workloads::http_title(1)).and_then(of_one_connection));
    bars.extend(
        find(&workloads::http_title(32))
            .and_then(of_connections)
            .into_iter()
            .flatten(),
    );
    bars.extend(find(workloads::HTTP_IN_MEMORY).and_then(of_http_in_memory));
    bars.extend(find(workloads::LINES).and_then(of_lines));
    bars.extend(find(workloads::MEMORY).and_then(of_memory));
    bars.extend(
        find(workloads::POSTGRES_SPREAD)
            .and_then(of_postgres)
            .into_iter()
            .flatten(),
    );
    bars.extend(find(workloads::POSTGRES_HOT).and_then(of_postgres_hot));
    bars.extend(find(workloads::POSTGRES_HAND_OVER).and_then(of_postgres_hand_over));
    bars
}

fn of_spread(group: &Group) -> Vec<Bar> {
    let rows = (
        group.row(HandWritten::NAME),
        group.row(Awaited::NAME),
        group.row(Dropped::NAME),
    );
    let (Some(base), Some(awaited), Some(dropped)) = rows else {
        return Vec::new();
    };
    let client = |sample: &Sample| sample.client_cpu;
    let rate = |sample: &Sample| sample.rate;
    vec![
        exact(
            "allocations, guard dropped",
            Limit::AtMost(20.0),
            dropped.counts.allocations,
        ),
        ratio(
            "client CPU, guard dropped, × hand-written",
            Limit::AtMost(1.2),
            dropped,
            base,
            client,
        ),
        ratio(
            "client CPU, release awaited, × hand-written",
            Limit::AtMost(1.5),
            awaited,
            base,
            client,
        ),
        ratio(
            "locks a second, guard dropped, × hand-written",
            Limit::AtLeast(1.15),
            dropped,
            base,
            rate,
        ),
        ratio(
            "locks a second, release awaited, × hand-written",
            Limit::AtLeast(0.9),
            awaited,
            base,
            rate,
        ),
        ratio(
            "p99 of the lock, release awaited, × hand-written",
            Limit::AtMost(1.2),
            awaited,
            base,
            |s| s.p99,
        ),
        ratio(
            "server CPU, release awaited, × hand-written",
            Limit::AtMost(1.15),
            awaited,
            base,
            |s| s.server_cpu,
        ),
        ratio(
            "server CPU, guard dropped, × hand-written",
            Limit::AtMost(1.0),
            dropped,
            base,
            |s| s.server_cpu,
        ),
    ]
}

fn of_rates(group: &Group, awaited: f64, dropped: f64) -> Option<[Bar; 2]> {
    let base = group.row(HandWritten::NAME)?;
    let rates = [(Awaited::NAME, awaited), (Dropped::NAME, dropped)];
    let [awaited, dropped] = rates.map(|(name, limit)| {
        let what = format!("{}: locks a second, {name}, × hand-written", group.title);
        Some(ratio(
            what,
            Limit::AtLeast(limit),
            group.row(name)?,
            base,
            |s| s.rate,
        ))
    });
    Some([awaited?, dropped?])
}

/// The best peer is the one with the highest rate.
fn of_hot(group: &Group, limit: f64) -> Option<Bar> {
    let ours = [Awaited::NAME, Dropped::NAME];
    let rate = |row: &&Row| row.column(|s: &Sample| s.rate).median;
    let peers = group
        .rows
        .iter()
        .filter(|row| !ours.contains(&row.name.as_str()));
    let best = peers.max_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    let what = format!(
        "{}: locks a second, release awaited, × the best peer",
        group.title
    );
    Some(ratio(
        what,
        Limit::AtLeast(limit),
        group.row(Awaited::NAME)?,
        best,
        |s| s.rate,
    ))
}

fn of_replay(group: &Group) -> Option<Bar> {
    let (by_hand, ours) = (group.row(HandWritten::NAME)?, group.row(Awaited::NAME)?);
    let what = "replays a second by `run_once`, × a bare GET";
    Some(ratio(what, Limit::AtLeast(0.6), ours, by_hand, |s| s.rate))
}

/// A layer answers before its release has arrived, and so does a lock by hand whose release is spawned.
fn of_one_connection(group: &Group) -> Option<Bar> {
    let base = group.row(workloads::HTTP_SPAWNED)?;
    let layer = group.row(workloads::LAYER)?;
    let what =
        "HTTP, 1 connection: p50 behind the layer, × a lock by hand whose release is spawned";
    Some(ratio(what, Limit::AtMost(1.15), layer, base, |s| s.p50))
}

fn of_connections(group: &Group) -> Option<[Bar; 4]> {
    let base = group.row(workloads::HTTP_HAND_WRITTEN)?;
    let layer = group.row(workloads::LAYER)?;
    let once = group.row(workloads::ONCE)?;
    let once_by_hand = group.row(workloads::ONCE_BY_HAND)?;
    let rate = |sample: &Sample| sample.rate;
    let cpu = |sample: &Sample| sample.client_cpu + sample.server_cpu;
    let bar = |what: &str, limit, row, base, column: fn(&Sample) -> f64| {
        ratio(
            format!("HTTP, 32 connections: {what}"),
            limit,
            row,
            base,
            column,
        )
    };
    Some([
        bar(
            "requests a second behind the layer, × a lock by hand",
            Limit::AtLeast(0.92),
            layer,
            base,
            rate,
        ),
        bar(
            "CPU of service and Redis behind the layer, × a lock by hand",
            Limit::AtMost(1.1),
            layer,
            base,
            cpu,
        ),
        bar(
            "first idempotent requests a second, × a lock by hand",
            Limit::AtLeast(0.68),
            once,
            base,
            rate,
        ),
        bar(
            "first idempotent requests a second, × complete idempotency by hand",
            Limit::AtLeast(0.85),
            once,
            once_by_hand,
            rate,
        ),
    ])
}

fn of_http_in_memory(group: &Group) -> Option<Bar> {
    let bare = group.row(workloads::BARE)?;
    let layer = group.row(workloads::LAYER_IN_MEMORY)?;
    let what = "HTTP, 32 connections, in memory: requests a second behind the layer, × bare";
    Some(ratio(what, Limit::AtLeast(0.85), layer, bare, |s| s.rate))
}

fn of_lines(group: &Group) -> Option<Bar> {
    let (short, long) = (
        group.row(&workloads::line_of(10))?,
        group.row(&workloads::line_of(1024))?,
    );
    let what = "a turn in a line of 1,024, client CPU, × a line of 10";
    Some(ratio(what, Limit::AtMost(1.5), long, short, |s| {
        s.client_cpu
    }))
}

fn of_memory(group: &Group) -> Option<Bar> {
    let (one, two) = (
        group.row(workloads::ONE_THREAD)?,
        group.row(workloads::TWO_THREADS)?,
    );
    let what = "memory store: locks a second on two threads, × one";
    Some(ratio(what, Limit::AtLeast(1.6), two, one, |s| s.rate))
}

fn of_postgres(group: &Group) -> Option<[Bar; 3]> {
    let redis = group.row(workloads::REDIS_AWAITED)?;
    let awaited = group.row(workloads::POSTGRES_AWAITED)?;
    let dropped = group.row(workloads::POSTGRES_DROPPED)?;
    Some([
        ratio(
            "PostgreSQL: server CPU, release awaited, × Redis",
            Limit::AtMost(5.0),
            awaited,
            redis,
            |s| s.server_cpu,
        ),
        ratio(
            "PostgreSQL: locks a second, release awaited, × Redis",
            Limit::AtLeast(0.4),
            awaited,
            redis,
            |s| s.rate,
        ),
        ratio(
            "PostgreSQL: locks a second, guard dropped, × Redis",
            Limit::AtLeast(0.5),
            dropped,
            group.row(workloads::REDIS_DROPPED)?,
            |s| s.rate,
        ),
    ])
}

fn of_postgres_hot(group: &Group) -> Option<Bar> {
    let redis = group.row(workloads::REDIS_DROPPED)?;
    let dropped = group.row(workloads::POSTGRES_DROPPED)?;
    let what = "PostgreSQL: one hot key, locks a second, guard dropped, × Redis";
    Some(ratio(what, Limit::AtLeast(0.9), dropped, redis, |s| s.rate))
}

/// Commits are free here, so there is no fsync that the hand-over may wait for: a millisecond is for the further round trips.
fn of_postgres_hand_over(group: &Group) -> Option<Bar> {
    let p50 = |name| Some(group.row(name)?.column(|s: &Sample| s.p50).median);
    let more = p50(workloads::POSTGRES_AWAITED)? - p50(workloads::REDIS_AWAITED)?;
    let what = "PostgreSQL: p50 of a hand-over, ms more than Redis";
    Some(exact(what, Limit::AtMost(1.0), more / 1e3))
}

fn ratio(
    what: impl Into<String>,
    limit: Limit,
    row: &Row,
    base: &Row,
    column: impl Fn(&Sample) -> f64,
) -> Bar {
    Bar {
        what: what.into(),
        limit,
        figure: row.ratio(base, column),
    }
}

pub fn exact(what: &str, limit: Limit, figure: f64) -> Bar {
    Bar {
        what: what.into(),
        limit,
        figure: Spread {
            low: figure,
            median: figure,
            high: figure,
        },
    }
}
