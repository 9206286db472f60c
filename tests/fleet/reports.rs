//! Replicas of the example `reports`: reads beside each other, writes alone, and a few exports at a
//! time.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::task::JoinSet;
use tower_distributed_lock::store::{Holder, Instance, Mode, RedisStore};

use crate::{
    processes::{LEASE, Response, send},
    support::{eventually, redis_server::RedisServer, replica::Replica, words::*},
};

/// Three replicas, and the folder that they share, which is gone with the test.
struct Fleet {
    replicas: Vec<Replica>,
    folder: PathBuf,
}

impl Fleet {
    fn start(server: &RedisServer) -> Self {
        let folder = format!("tdl-reports-{}-{}", std::process::id(), server.port());
        let folder = std::env::temp_dir().join(folder);
        let (url, lease) = (server.url(), LEASE.as_millis().to_string());
        let settings = [
            ("STORE", &*url),
            ("REPORTS", folder.to_str().unwrap()),
            ("LEASE_MS", &*lease),
            ("WAIT_MS", "25000"),
        ];
        let replica = |_| Replica::start_example("reports", &settings);
        let replicas = (0..3).map(replica).collect();
        Self { replicas, folder }
    }

    /// Does not hold the fleet, whose replicas can be killed while a request waits for its answer.
    fn send(
        &self,
        replica: usize,
        method: &'static str,
        path: &str,
    ) -> impl Future<Output = Option<Response>> + Send + use<> {
        send(self.replicas[replica].addr(), method, path.into(), "text")
    }

    /// What the replicas have noted, in order.
    fn journal(&self) -> Vec<Note> {
        let journal = std::fs::read_to_string(self.folder.join("journal")).unwrap_or_default();
        journal.lines().map(Note::parse).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The begin or the end of a handler's work, in a line of the journal.
struct Note {
    begins: bool,
    kind: String,
    process: u32,
}

impl Note {
    fn parse(line: &str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        Self {
            begins: words[0] == "begin",
            kind: words[1].to_owned(),
            process: words[2].parse().unwrap(),
        }
    }
}

/// The works of each kind that are under way, as the journal goes on.
#[derive(Default)]
struct UnderWay {
    count: BTreeMap<String, usize>,
    /// The most at any time.
    most: BTreeMap<String, usize>,
}

impl UnderWay {
    fn follow<'a>(notes: impl IntoIterator<Item = &'a Note>, check: impl Fn(&Self)) -> Self {
        let mut under_way = Self::default();
        for note in notes {
            let count = under_way.count.entry(note.kind.clone()).or_default();
            *count = if note.begins { *count + 1 } else { *count - 1 };
            let most = under_way.most.entry(note.kind.clone()).or_default();
            *most = (*most).max(*count);
            check(&under_way);
        }
        under_way
    }

    fn of(&self, kind: &str) -> usize {
        self.count.get(kind).copied().unwrap_or(0)
    }

    fn most(&self, kind: &str) -> usize {
        self.most.get(kind).copied().unwrap_or(0)
    }
}

/// The chapters' tokens, and the token of the turn itself.
fn tokens(response: &Response) -> (BTreeSet<u64>, u64) {
    let report: Value = serde_json::from_str(&response.body).unwrap();
    let chapters = report["chapters"].as_array().unwrap();
    assert!(chapters.len() == 3 || chapters.is_empty(), "{report}");
    let written = chapters.iter().map(|it| it["token"].as_u64().unwrap());
    (written.collect(), report["token"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_read_by_200_and_written_by_10_at_once_is_never_read_while_it_is_written() {
    let server = RedisServer::start().await;
    let fleet = Fleet::start(&server);
    let (mut reads, mut writes) = (JoinSet::new(), JoinSet::new());
    for at in 0..210 {
        if at % 21 == 10 {
            writes.spawn(fleet.send(at % 3, "PUT", "/reports/7?work_ms=5"));
        } else {
            reads.spawn(fleet.send(at % 3, "GET", "/reports/7?work_ms=3"));
        }
    }
    let mut written = BTreeSet::new();
    for response in writes.join_all().await {
        let response = response.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let (chapters, token) = tokens(&response);
        // The write was downgraded before it was read back, and no other write came in between.
        assert_eq!(chapters, [token].into());
        assert!(written.insert(token), "two writes have one token");
    }
    for response in reads.join_all().await {
        let response = response.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let (chapters, token) = tokens(&response);
        // A read sees the last write whose token is lower than its own, and nothing else.
        let last = written.range(..token).next_back();
        assert_eq!(chapters, last.copied().into_iter().collect());
    }
    let journal = fleet.journal();
    let under_way = UnderWay::follow(&journal, |now| {
        assert!(now.of("write") <= 1, "two writes at once");
        assert!(
            now.of("write") == 0 || now.of("read") == 0,
            "a read beside a write"
        );
    });
    let most = under_way.most("read");
    println!("{} notes, at most {most} reads at once", journal.len());
    assert_eq!(journal.len(), 2 * (200 + 2 * 10));
    assert_eq!(under_way.of("read") + under_way.of("write"), 0);
    assert!(most > 10, "reads run beside each other");
    eventually("no lock is left", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}

fn permits_of(held: &[Holder], instance: Instance) -> usize {
    let is_same = |it: &&Holder| it.owner.instance == instance;
    held.iter().filter(is_same).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_four_exports_run_also_after_a_replica_with_three_of_them_was_killed() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let mut fleet = Fleet::start(&server);
    let exports = key("exports");
    let holders = async || store.see(&exports).await.holders;
    let mut long = JoinSet::new();
    for replica in [0, 0, 0, 1] {
        long.spawn(fleet.send(replica, "POST", "/exports?work_ms=60000"));
        // One after another, so that the first replica has three permits for certain.
        let count = long.len();
        eventually("an export runs", async || fleet.journal().len() == count).await;
    }
    let held = holders().await;
    assert!(
        held.iter().all(|it| it.mode == Mode::Permit { of: 4 }),
        "{held:?}"
    );
    let mut next = JoinSet::new();
    for at in 0..12 {
        next.spawn(fleet.send(1 + at % 2, "POST", "/exports?work_ms=300"));
    }
    eventually("two replicas are queued", async || {
        store.see(&exports).await.queue.len() == 2
    })
    .await;
    let dead = fleet.replicas[0].process();
    fleet.replicas[0].kill();
    let killed = Instant::now();
    // The killed replica's permits are those of the instance with three of them.
    let held = holders().await;
    let doomed = held.iter().map(|it| it.owner.instance);
    let doomed = doomed.max_by_key(|it| permits_of(&held, *it)).unwrap();
    assert_eq!(permits_of(&held, doomed), 3, "{held:?}");
    let mut freed = None;
    while !next.is_empty() {
        // In this order: the permits of the killed replica only become fewer.
        let journal = fleet.journal();
        let held = holders().await;
        let alive = journal.iter().filter(|note| note.process != dead);
        let running = UnderWay::follow(alive, |_| ()).of("export");
        let still_held = permits_of(&held, doomed);
        assert!(
            running + still_held <= 4,
            "{running} run, {still_held} were not freed"
        );
        assert!(held.len() <= 4, "{held:?}");
        if still_held == 0 {
            freed.get_or_insert_with(|| killed.elapsed());
        }
        while let Some(done) = next.try_join_next() {
            assert_eq!(done.unwrap().unwrap().status, 200);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let freed = freed.expect("the leases of the killed replica have expired");
    println!("the permits of the killed replica were free after {freed:?}");
    // The lease was renewed at most a third of its time before the kill; the machine may be busy.
    assert!(freed >= LEASE / 3, "{freed:?}");
    assert!(freed <= LEASE + Duration::from_secs(3), "{freed:?}");
    let journal = fleet.journal();
    let alive = journal.iter().filter(|note| note.process != dead);
    let most = UnderWay::follow(alive, |now| assert!(now.of("export") <= 4)).most("export");
    assert_eq!(most, 4, "the permits of the killed replica came back");
}
