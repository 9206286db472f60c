//! Injects the planned faults, one after another or two at once.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    fleet::Fleet,
    plan::Planned,
    record::{Event, Fault, Kind, Recorder},
    support::proxy::Network,
};

/// Injects faults until a moment, and returns when the last one is over.
pub(crate) async fn inject(
    fleet: &Fleet,
    record: &Recorder,
    plan: impl Iterator<Item = Planned>,
    until: Instant,
) {
    let mut under_way = FuturesUnordered::new();
    for planned in plan {
        let begins = Instant::now() + planned.pause;
        if begins >= until {
            break;
        }
        let mut begun = std::pin::pin!(sleep_until(begins));
        loop {
            tokio::select! {
                () = &mut begun => break,
                Some(()) = under_way.next() => {}
            }
        }
        let overlaps = planned.overlaps;
        under_way.push(one(fleet, record, planned));
        // Two at once, not three: then no fault could be told from another.
        while under_way.len() > usize::from(overlaps) {
            under_way.next().await;
        }
    }
    while let Some(()) = under_way.next().await {}
}

/// Injects one fault, and records that fault after its end.
async fn one(fleet: &Fleet, record: &Recorder, planned: Planned) {
    let Planned {
        kind,
        target,
        lasts,
        ..
    } = planned;
    let at = record.now();
    let target = match kind {
        Kind::PauseReplica => target % fleet.size(),
        Kind::KillReplica => fleet.mortal(target),
        _ => target % fleet.nodes.len(),
    };
    match kind {
        Kind::PauseReplica => fleet.pause(target, lasts).await,
        Kind::KillReplica => fleet.kill(target, lasts).await,
        Kind::CutConnections => cut(fleet),
        Kind::HoldReplies => hold_replies(fleet, target, lasts).await,
        Kind::FreezeNode => freeze(fleet, &[target], lasts).await,
        Kind::FreezeStore => {
            let majority: Vec<usize> = (0..fleet.nodes.len() / 2 + 1).collect();
            freeze(fleet, &majority, lasts).await;
        }
        Kind::KillNode | Kind::KillStore => {
            let mut server = fleet.nodes[target].server.lock().await;
            server.kill();
            sleep(lasts).await;
            server.restart().await;
        }
        Kind::FillStore => {
            tell_all(fleet, &["CONFIG", "SET", "maxmemory", "1"]).await;
            sleep(lasts).await;
            tell_all(fleet, &["CONFIG", "SET", "maxmemory", "0"]).await;
        }
        Kind::ForgetScripts => tell_all(fleet, &["SCRIPT", "FLUSH"]).await,
        Kind::ForgetEverything => tell_all(fleet, &["FLUSHALL"]).await,
    }
    record.add(&Event::Fault(Fault {
        at,
        until: record.now(),
        kind,
        target,
    }));
}

fn cut(fleet: &Fleet) {
    for node in &fleet.nodes {
        node.proxy.lock().unwrap().cut();
    }
}

async fn hold_replies(fleet: &Fleet, node: usize, lasts: Duration) {
    let proxy = &fleet.nodes[node].proxy;
    proxy.lock().unwrap().set(Network::RepliesHeldBack);
    sleep(lasts).await;
    proxy.lock().unwrap().cut();
}

/// Locks the servers in their order, so that two faults cannot wait for each other.
async fn freeze(fleet: &Fleet, nodes: &[usize], lasts: Duration) {
    let mut servers = Vec::new();
    for node in nodes {
        servers.push(fleet.nodes[*node].server.lock().await);
    }
    servers.iter().for_each(|server| server.freeze());
    sleep(lasts).await;
    servers.iter().for_each(|server| server.thaw());
}

async fn tell_all(fleet: &Fleet, words: &[&str]) {
    for node in &fleet.nodes {
        let server = node.server.lock().await;
        server.send::<Value>(words).await;
    }
}
