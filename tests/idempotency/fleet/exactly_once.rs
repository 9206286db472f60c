//! Processes of the example `exactly_once`, on a real PostgreSQL and a real Redis: one payment, and
//! its answer on a retry, whatever happens in between.
//!
//! With two threads: a process that starts is waited for on one, and has its networks on the other.

use http::StatusCode;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::process::connect;
use crate::{
    support::{
        eventually,
        postgres::{Database, PostgresServer},
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        replica::Replica,
    },
    web::Answer,
};

/// Lets a test stop all payments at their COMMIT.
const AT_COMMIT: &str = "
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON payments
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit();";

const ONE: &str = "payment 1: 5\n";

struct World {
    redis: RedisServer,
    database: Database,
    /// The networks of the processes that [`doubtful`](Self::doubtful) starts.
    to_redis: Proxy,
    to_database: Proxy,
}

impl World {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let postgres = PostgresServer::shared().await;
        Self {
            database: postgres.database().await,
            to_redis: Proxy::start(redis.port()).await,
            to_database: Proxy::start(postgres.port()).await,
            redis,
        }
    }

    /// A process whose networks may fail.
    fn doubtful(&self) -> Replica {
        let (port, name) = (self.to_database.port(), self.database.name());
        let database = format!("postgres://postgres@127.0.0.1:{port}/{name}");
        replica(&self.to_redis.url(), &database)
    }

    /// A process with good networks.
    fn sound(&self) -> Replica {
        replica(&self.redis.url(), &self.database.url())
    }

    async fn payments(&self) -> i64 {
        self.database.number("SELECT count(*) FROM payments").await
    }

    /// Stops all payments at their COMMIT.
    async fn stop_commits(&self) -> Stopped<'_> {
        let holder = self.database.client().await;
        holder.batch_execute(AT_COMMIT).await.unwrap();
        let lock = "SELECT pg_advisory_lock(1)";
        holder.batch_execute(lock).await.unwrap();
        Stopped {
            world: self,
            holder,
        }
    }

    /// Waits until a session waits for a lock of this kind.
    async fn one_waits_for(&self, kind: &str) {
        let waiting = format!(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
             WHERE datname = current_database() AND locktype = '{kind}' AND NOT granted"
        );
        eventually(kind, async || self.database.number(&waiting).await == 1).await;
    }
}

struct Stopped<'a> {
    world: &'a World,
    holder: Client,
}

impl Stopped<'_> {
    /// The payment that waits is committed.
    async fn commit(self) {
        let unlock = "SELECT pg_advisory_unlock(1)";
        self.holder.batch_execute(unlock).await.unwrap();
        eventually("the payment is committed", async || {
            self.world.payments().await == 1
        })
        .await;
    }
}

fn replica(redis: &str, database: &str) -> Replica {
    let settings = [
        ("STORE", redis),
        ("DATABASE", database),
        ("LEASE_MS", "1000"),
    ];
    Replica::start_example("exactly_once", &settings)
}

/// A payment under way; `None` if its process ends before it answers.
fn paying(replica: &Replica) -> JoinHandle<Option<Answer>> {
    let addr = replica.addr();
    tokio::spawn(async move { connect(addr).await.try_pay_once("k", "5").await.ok() })
}

/// Tries again for as long as the answer says that this may help.
async fn retry(replica: &Replica) -> Answer {
    let mut last = None;
    eventually("there is an answer", async || {
        let answer = connect(replica.addr()).await.pay_once("k", "5").await;
        let may_help = answer.status == StatusCode::SERVICE_UNAVAILABLE
            || answer.header("retry-after").is_some();
        last = Some(answer);
        !may_help
    })
    .await;
    last.unwrap()
}

#[track_caller]
fn assert_paid_before(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    assert_eq!((answer.text(), answer.is_replayed()), (ONE, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_between_commit_and_record_has_paid_once() {
    let world = World::start().await;
    let (mut doomed, heir) = (world.doubtful(), world.sound());
    let stopped = world.stop_commits().await;
    let paying = paying(&doomed);
    world.one_waits_for("advisory").await;
    world.to_redis.set(Network::BlackHole);
    stopped.commit().await;
    doomed.kill();
    assert!(paying.await.unwrap().is_none());
    assert_paid_before(&retry(&heir).await);
    assert_eq!(world.payments().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_has_paid_once() {
    let mut world = World::start().await;
    let replica = world.doubtful();
    let stopped = world.stop_commits().await;
    let paying = paying(&replica);
    world.one_waits_for("advisory").await;
    world.to_database.set(Network::RepliesHeldBack);
    stopped.commit().await;
    world.to_database.cut();
    let first = paying.await.unwrap().unwrap();
    assert_eq!(first.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_paid_before(&retry(&replica).await);
    assert_eq!(world.payments().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_stopped_past_its_lease_in_mid_commit_has_paid_once() {
    let world = World::start().await;
    let (stopped_process, other) = (world.doubtful(), world.sound());
    let stopped = world.stop_commits().await;
    let paying = paying(&stopped_process);
    world.one_waits_for("advisory").await;
    stopped_process.freeze();
    // The other process gets the claim when the lease is over, finds nothing committed, and begins.
    let addr = other.addr();
    let second = tokio::spawn(async move {
        loop {
            let answer = connect(addr).await.pay_once("k", "5").await;
            // The first one still held its lease for longer than a request waits.
            if answer.status != StatusCode::CONFLICT {
                return answer;
            }
        }
    });
    world.one_waits_for("transactionid").await;
    stopped.commit().await;
    assert_eq!(
        second.await.unwrap().status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_paid_before(&retry(&other).await);
    stopped_process.thaw();
    let first = paying.await.unwrap().unwrap();
    match first.status {
        StatusCode::CREATED => assert_eq!(first.text(), ONE),
        _ => first.assert_refused(409, "lease-lost"),
    }
    assert_paid_before(&retry(&stopped_process).await);
    assert_eq!(world.payments().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_everything_does_not_pay_again() {
    let mut world = World::start().await;
    let replica = world.doubtful();
    let first = connect(replica.addr()).await.pay_once("k", "5").await;
    assert_eq!((first.text(), first.is_replayed()), (ONE, false));

    let _: () = world.redis.send(&["FLUSHALL"]).await;
    let other = connect(replica.addr()).await.pay_once("k", "6").await;
    other.assert_refused(422, "key-reused");
    assert!(
        other.text().contains("with another body"),
        "{}",
        other.text()
    );
    assert_paid_before(&retry(&replica).await);

    // What was recalled is recorded: the database is not asked again.
    world.to_database.set(Network::Cut);
    assert_paid_before(&connect(replica.addr()).await.pay_once("k", "5").await);

    // Redis forgets while the database is away: nobody knows, and nobody pays.
    world.redis.restart().await;
    let mut asked = None;
    eventually("Redis is in use again", async || {
        let answer = connect(replica.addr()).await.pay_once("k", "5").await;
        let found = answer.text().contains("#store-unreachable");
        asked = Some(answer);
        !found
    })
    .await;
    let asked = asked.unwrap();
    asked.assert_refused(503, "recall-failed");
    assert_eq!(asked.header("retry-after"), Some("1"));
    world.to_database.set(Network::Fine);
    assert_paid_before(&retry(&replica).await);
    assert_eq!(world.payments().await, 1);
}
