//! Shared locks and permits of several instances: what they cost, and in which order they are
//! granted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request, routing::any};
use futures_util::future::join_all;
use tokio::{task::JoinSet, time::sleep};
use tower::ServiceExt;
use tower_distributed_lock::{DistributedLockLayer, Locks, Stats, key};

use crate::{
    instance,
    support::{eventually, redis_server::RedisServer},
};

async fn idle(locks: &Locks) {
    eventually("all is released", async || {
        locks.stats() == Stats::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_reads_of_one_instance_cost_at_most_200_commands() {
    let server = RedisServer::start().await;
    let locks = instance(&server).await;
    drop(locks.lock("warm").shared().await.unwrap());
    idle(&locks).await;
    server.reset_stats().await;
    let tasks = (0..100).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let _guard = locks.lock("hot").shared().await.unwrap();
                tokio::task::yield_now().await;
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    idle(&locks).await;
    assert_eq!(locks.totals().turns, 10_001);
    let commands = server.commands().await;
    println!("10,000 reads took {commands:?}");
    assert!(commands.values().sum::<u64>() <= 200, "{commands:?}");
}

/// How a stream of turns in one mode delays one in the other.
struct Delay {
    waited: Duration,
    /// The turns of the stream that began while the other waited.
    overtaken: u64,
}

/// Eight tasks in each of two instances have one turn after another, each of `length`. Returns the
/// delays of 40 single turns in the other mode, sorted by the turns that overtook them.
async fn delays(readers_stream: bool, length: Duration) -> Vec<Delay> {
    let server = RedisServer::start().await;
    let fleet = [instance(&server).await, instance(&server).await];
    let begun = Arc::new(AtomicU64::new(0));
    let mut stream = JoinSet::new();
    for at in 0..16 {
        let (locks, begun) = (fleet[at % 2].clone(), begun.clone());
        stream.spawn(async move {
            loop {
                let guard = match readers_stream {
                    true => locks.lock("k").shared().await.unwrap(),
                    false => locks.lock("k").await.unwrap(),
                };
                begun.fetch_add(1, SeqCst);
                sleep(length).await;
                drop(guard);
            }
        });
    }
    eventually("the stream runs", async || begun.load(SeqCst) > 100).await;
    let mut delays = Vec::new();
    for at in 0..40 {
        let locks = &fleet[at % 2];
        let (asked, before) = (Instant::now(), begun.load(SeqCst));
        let guard = match readers_stream {
            true => locks.lock("k").await.unwrap(),
            false => locks.lock("k").shared().await.unwrap(),
        };
        delays.push(Delay {
            waited: asked.elapsed(),
            overtaken: begun.load(SeqCst) - before,
        });
        drop(guard);
        sleep(3 * length).await;
    }
    stream.shutdown().await;
    delays.sort_by_key(|delay| delay.overtaken);
    delays
}

/// Prints the delays. Returns the median of the numbers of turns that began while the other waited,
/// and the number that nine of ten stay within: a machine that is busy now and then keeps a hint
/// back for longer than a turn.
fn summarize(what: &str, delays: &[Delay]) -> [u64; 2] {
    let mut waited: Vec<_> = delays.iter().map(|delay| delay.waited).collect();
    waited.sort();
    let [half, most] = [delays.len() / 2, delays.len() * 9 / 10 - 1];
    let last = delays.len() - 1;
    println!(
        "{what}: p50 {:?}, longest {:?}; turns that began meanwhile: p50 {}, most {}",
        waited[half], waited[last], delays[half].overtaken, delays[last].overtaken
    );
    // About 40 turns of 1 ms, or one of 20 ms, on a machine that may be busy: no wait for the next
    // poll of an instance.
    assert!(waited[half] < Duration::from_millis(400), "{waited:?}");
    [delays[half].overtaken, delays[most].overtaken]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_readers_does_not_keep_a_writer_out() {
    let delays = delays(true, Duration::from_millis(20)).await;
    let [half, most] = summarize("a writer among 16 readers", &delays);
    // Each of the 16 begins again at most once before its instance knows of the writer.
    assert!(half <= 16, "{half}");
    assert!(most <= 32, "{most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_writers_does_not_keep_a_reader_out() {
    let delays = delays(false, Duration::from_millis(1)).await;
    let [half, most] = summarize("a reader among 16 writers", &delays);
    // The writers ahead in the reader's line, and one lease of each instance, which serves 16 turns
    // at most.
    assert!(half <= 7 + 16 + 16, "{half}");
    assert!(most <= 2 * (7 + 16 + 16), "{most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejecting_layer_answers_a_read_after_the_key_is_free_for_a_write_elsewhere() {
    let server = RedisServer::start().await;
    let mut apps = Vec::new();
    for _ in 0..2 {
        let key = key::name("report").param("id");
        let layer = DistributedLockLayer::new(instance(&server).await, key);
        let layer = layer.shared_when_safe().reject_if_held();
        let app = Router::new().route("/reports/{id}", any(async || "done"));
        apps.push(app.route_layer(layer));
    }
    for at in 0..600 {
        let request = match at % 2 {
            0 => Request::get("/reports/7"),
            _ => Request::put("/reports/7"),
        };
        let request = request.body(Body::empty()).unwrap();
        // Each write comes to another instance than the read before it.
        let instance = usize::from(matches!(at % 4, 1 | 2));
        let response = apps[instance].clone().oneshot(request).await;
        assert_eq!(response.unwrap().status(), 200, "request {at}");
    }
}
