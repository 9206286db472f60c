//! Transactions that are fenced: each test is a promise of `Fence`, or what it does not promise.

use std::time::Duration;

use tokio_postgres::{Client, Error, IsolationLevel, error::SqlState};
use tower_distributed_lock::{
    ErrorKind, LockGuard, LockKey,
    store::{Acquire, Acquired, End, Expected, Fence, Mode, Owner, PostgresStore, Store},
};

use crate::{
    start, store,
    support::{
        eventually,
        postgres::{Database, ROLE, connect},
        words::*,
    },
};

const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// A database with payments, and a key that an owner has locked.
struct World {
    database: Database,
    store: PostgresStore,
    key: LockKey,
    a: Holder,
}

/// An owner with a token of its lease.
#[derive(Clone, Copy)]
struct Holder {
    owner: Owner,
    token: i64,
}

impl World {
    async fn start() -> Self {
        let (database, store) = start().await;
        database
            .execute(
                "CREATE TABLE public.payments (payer text); GRANT ALL ON public.payments TO app",
            )
            .await;
        let key = key("accounts/1");
        let a = take(&store, &key).await;
        Self {
            database,
            store,
            key,
            a,
        }
    }

    /// The lease is over, as by its time.
    async fn end_lease(&self) {
        let taken = self
            .store
            .force_release_if(self.key.clone(), Expected::Anything);
        assert!(taken.await.unwrap());
    }

    /// Another owner asks.
    async fn ask(&self) -> Acquired {
        let other = store(&self.database);
        other.ask_for(attempt(&self.key, owner())).await.unwrap()
    }

    async fn client(&self) -> Client {
        crate::support::postgres::connect(&self.database.url_as("app")).await
    }

    async fn payments(&self) -> i64 {
        let sql = "SELECT count(*) FROM public.payments";
        self.database.number(sql).await
    }
}

async fn take(store: &PostgresStore, key: &LockKey) -> Holder {
    let owner = owner();
    let grant = granted(store.ask_for(attempt(key, owner)).await.unwrap());
    Holder {
        owner,
        token: grant.tokens.first().unwrap() as i64,
    }
}

async fn fence(
    transaction: &tokio_postgres::Transaction<'_>,
    key: &LockKey,
    holder: Holder,
) -> Result<(), Error> {
    let (key, owner) = (key.as_str(), holder.owner.to_string());
    let sql = "SELECT tdl.fence($1, $2, $3)";
    transaction
        .execute(sql, &[&key, &owner, &holder.token])
        .await?;
    Ok(())
}

async fn pay(transaction: &tokio_postgres::Transaction<'_>) {
    let sql = "INSERT INTO public.payments VALUES ('a')";
    transaction.execute(sql, &[]).await.unwrap();
}

fn code(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

#[tokio::test]
async fn while_a_fenced_transaction_is_open_nobody_else_is_granted_the_key() {
    for level in LEVELS {
        let world = World::start().await;
        let mut client = world.client().await;
        let transaction = client.build_transaction().isolation_level(level);
        let transaction = transaction.start().await.unwrap();
        fence(&transaction, &world.key, world.a).await.unwrap();
        pay(&transaction).await;
        world.end_lease().await;
        // At once, without waiting for the transaction.
        let refused = held(world.ask().await);
        assert!(refused.remaining < Duration::from_secs(1));
        transaction.commit().await.unwrap();
        granted(world.ask().await);
        assert_eq!(world.payments().await, 1);
    }
}

#[tokio::test]
async fn after_a_rollback_the_key_is_granted_and_nothing_was_paid() {
    let world = World::start().await;
    let mut client = world.client().await;
    let transaction = client.transaction().await.unwrap();
    fence(&transaction, &world.key, world.a).await.unwrap();
    pay(&transaction).await;
    world.end_lease().await;
    held(world.ask().await);
    transaction.rollback().await.unwrap();
    granted(world.ask().await);
    assert_eq!(world.payments().await, 0);
}

#[tokio::test]
async fn a_readers_grant_is_held_off_as_well() {
    let world = World::start().await;
    let mut client = world.client().await;
    let transaction = client.transaction().await.unwrap();
    fence(&transaction, &world.key, world.a).await.unwrap();
    world.end_lease().await;
    let other = store(&world.database);
    let shared = || {
        let request = tower_distributed_lock::store::Acquire {
            mode: tower_distributed_lock::store::Mode::Shared,
            ..attempt(&world.key, owner())
        };
        other.ask_for(request)
    };
    held(shared().await.unwrap());
    transaction.commit().await.unwrap();
    granted(shared().await.unwrap());
    // The reader's grant has ended what the writer could fence.
    let transaction = client.transaction().await.unwrap();
    let refused = fence(&transaction, &world.key, world.a).await.unwrap_err();
    assert_eq!(code(&refused), "TDL01");
}

#[tokio::test]
async fn the_lease_is_renewed_and_released_while_its_transaction_is_open() {
    let world = World::start().await;
    let mut client = world.client().await;
    let transaction = client.transaction().await.unwrap();
    fence(&transaction, &world.key, world.a).await.unwrap();
    let renewed = world
        .store
        .renew_one(renewal(&world.key, world.a.owner, 5))
        .await;
    assert!(is_renewed(&renewed));
    let released = world.store.free(&world.key, world.a.owner).await;
    assert_eq!(released, tower_distributed_lock::store::Released::Freed);
    held(world.ask().await);
    transaction.commit().await.unwrap();
    granted(world.ask().await);
}

#[tokio::test]
async fn a_transaction_that_begins_after_the_next_grant_is_refused() {
    for level in LEVELS {
        let world = World::start().await;
        world.end_lease().await;
        granted(world.ask().await);
        let mut client = world.client().await;
        let transaction = client.build_transaction().isolation_level(level);
        let transaction = transaction.start().await.unwrap();
        pay(&transaction).await;
        let refused = fence(&transaction, &world.key, world.a).await.unwrap_err();
        assert_eq!(code(&refused), "TDL01");
        assert!(transaction.commit().await.is_ok(), "a rollback by now");
        assert_eq!(world.payments().await, 0);
    }
}

#[tokio::test]
async fn a_snapshot_from_before_the_next_grant_does_not_help() {
    for level in LEVELS {
        let world = World::start().await;
        let mut client = world.client().await;
        let transaction = client.build_transaction().isolation_level(level);
        let transaction = transaction.start().await.unwrap();
        // Takes the snapshot of the two stricter levels.
        pay(&transaction).await;
        world.end_lease().await;
        granted(world.ask().await);
        let refused = fence(&transaction, &world.key, world.a).await.unwrap_err();
        let expected = match level {
            IsolationLevel::ReadCommitted => "TDL01",
            _ => "40001",
        };
        assert_eq!(code(&refused), expected, "{level:?}");
        drop(transaction);
        assert_eq!(world.payments().await, 0);
    }
}

/// Not promised: PostgreSQL gives up the locks of a savepoint that is rolled back.
#[tokio::test]
async fn a_fence_in_a_savepoint_that_is_rolled_back_holds_nobody_off() {
    let world = World::start().await;
    let mut client = world.client().await;
    let mut transaction = client.transaction().await.unwrap();
    let savepoint = transaction.transaction().await.unwrap();
    fence(&savepoint, &world.key, world.a).await.unwrap();
    savepoint.rollback().await.unwrap();
    world.end_lease().await;
    granted(world.ask().await);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_only_reads_cannot_fence() {
    let world = World::start().await;
    let mut client = world.client().await;
    let transaction = client.build_transaction().read_only(true);
    let transaction = transaction.start().await.unwrap();
    let refused = fence(&transaction, &world.key, world.a).await.unwrap_err();
    assert_eq!(code(&refused), "25006");
}

#[tokio::test]
async fn a_later_turn_waits_for_the_earlier_ones_transaction_and_then_keeps_it_out() {
    let world = World::start().await;
    let later = Holder {
        token: world.a.token + 1,
        ..world.a
    };
    let (mut one, mut two) = (world.client().await, world.client().await);
    let first = one.transaction().await.unwrap();
    fence(&first, &world.key, world.a).await.unwrap();
    let second = two.transaction().await.unwrap();
    {
        let mut fencing = std::pin::pin!(fence(&second, &world.key, later));
        let waits = tokio::time::timeout(Duration::from_millis(200), &mut fencing).await;
        assert!(waits.is_err(), "the first transaction is still open");
        first.commit().await.unwrap();
        fencing.await.unwrap();
    }
    second.commit().await.unwrap();
    let stale = one.transaction().await.unwrap();
    let refused = fence(&stale, &world.key, world.a).await.unwrap_err();
    assert_eq!(code(&refused), "TDL01");
}

#[tokio::test]
async fn two_transactions_of_one_turn_run_side_by_side() {
    let world = World::start().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    let (first, second) = (
        one.transaction().await.unwrap(),
        two.transaction().await.unwrap(),
    );
    fence(&first, &world.key, world.a).await.unwrap();
    fence(&second, &world.key, world.a).await.unwrap();
    first.commit().await.unwrap();
    second.commit().await.unwrap();
}

#[tokio::test]
async fn a_token_that_was_never_granted_does_not_pass_for_another_owner() {
    let world = World::start().await;
    let mut client = world.client().await;
    for (owner, token) in [(owner(), world.a.token), (world.a.owner, world.a.token - 1)] {
        let transaction = client.transaction().await.unwrap();
        let stranger = Holder { owner, token };
        let refused = fence(&transaction, &world.key, stranger).await.unwrap_err();
        assert_eq!(code(&refused), "TDL01");
    }
}

#[tokio::test]
async fn a_guard_fences_a_transaction() {
    let (database, store) = start().await;
    let locks = crate::locks(&store);
    let mut client = crate::support::postgres::connect(&database.url_as("app")).await;
    // Two turns of one lease, and two leases.
    for _ in 0..3 {
        let guard = locks.lock("accounts/1").await.unwrap();
        let fence: Fence = guard.fence().unwrap();
        assert_eq!(fence.sql(), "SELECT tdl.fence($1, $2, $3)");
        let values = (fence.key(), fence.owner(), fence.token());
        let owner = guard.owner().to_string();
        assert_eq!(values, ("accounts/1", owner.as_str(), guard.token() as i64));
        let transaction = client.transaction().await.unwrap();
        fence.run(&transaction).await.unwrap();
        transaction.commit().await.unwrap();
        guard.release().await.unwrap();
    }
    let shared = locks.lock("accounts/1").shared().await.unwrap();
    let refused = shared.fence().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let plain = PostgresStore::builder(database.url_as("app"))
        .build()
        .unwrap();
    let guard = crate::locks(&plain).lock("accounts/2").await.unwrap();
    assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_waiting_request_gets_the_key_once_the_transaction_of_the_last_holder_has_ended() {
    let (database, store_a) = start().await;
    let locks = crate::locks(&store_a);
    let mut client = crate::support::postgres::connect(&database.url_as("app")).await;
    let guard = locks.lock("accounts/1").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    guard.fence().unwrap().run(&transaction).await.unwrap();
    guard.release().await.unwrap();
    let others = crate::locks(&store(&database));
    let waiting = tokio::spawn({
        let others = others.clone();
        async move { others.lock("accounts/1").await.map(drop) }
    });
    eventually("it waits", async || others.stats().waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    transaction.commit().await.unwrap();
    waiting.await.unwrap().unwrap();
}

async fn setting(transaction: &tokio_postgres::Transaction<'_>, name: &str) -> String {
    let show = format!("SHOW {name}");
    transaction.query_one(&show, &[]).await.unwrap().get(0)
}

const IDLE: &str = "idle_in_transaction_session_timeout";

#[tokio::test]
async fn a_fence_limits_how_long_its_own_transaction_may_be_idle() {
    let world = World::start().await;
    let mut client = world.client().await;
    let transaction = client.transaction().await.unwrap();
    assert_eq!(setting(&transaction, IDLE).await, "0");
    fence(&transaction, &world.key, world.a).await.unwrap();
    assert_eq!(setting(&transaction, IDLE).await, "1min");
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert_eq!(setting(&transaction, IDLE).await, "0");
}

#[tokio::test]
async fn a_holder_that_is_stopped_loses_its_session_after_its_own_limit_and_the_key_is_granted() {
    let world = World::start().await;
    let mut client = world.client().await;
    let limit = format!("SET {IDLE} = '300ms'");
    client.batch_execute(&limit).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    fence(&transaction, &world.key, world.a).await.unwrap();
    pay(&transaction).await;
    assert_eq!(setting(&transaction, IDLE).await, "300ms");
    world.end_lease().await;
    held(world.ask().await);
    eventually("the session has ended", async || {
        matches!(world.ask().await, Acquired::Granted(_))
    })
    .await;
    transaction.commit().await.unwrap_err();
    assert_eq!(world.payments().await, 0);
}

/// The weaker fence, with tokens of a store that knows nothing of the database.
#[tokio::test]
async fn tokens_of_any_store_keep_transactions_in_order() {
    let (database, _) = start().await;
    database.execute(LockGuard::TOKEN_TABLE).await;
    let locks = tower_distributed_lock::Locks::in_memory();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let guard = locks.lock("accounts/1").await.unwrap();
        tokens.push(guard.token() as i64);
    }
    let (mut one, mut two) = (database.client().await, database.client().await);
    let first = one.transaction().await.unwrap();
    fence_by_token(&first, tokens[1]).await.unwrap();
    // The same turn again, and a later one, which waits for the open transaction.
    fence_by_token(&first, tokens[1]).await.unwrap();
    let second = two.transaction().await.unwrap();
    {
        let mut fencing = std::pin::pin!(fence_by_token(&second, tokens[2]));
        let waits = tokio::time::timeout(Duration::from_millis(200), &mut fencing).await;
        assert!(waits.is_err(), "the first transaction is still open");
        first.commit().await.unwrap();
        fencing.await.unwrap();
    }
    second.commit().await.unwrap();
    for level in LEVELS {
        let stale = one.build_transaction().isolation_level(level);
        let stale = stale.start().await.unwrap();
        let refused = fence_by_token(&stale, tokens[1]).await.unwrap_err();
        assert_eq!(code(&refused), "23502", "{level:?}");
    }
    // The snapshot is older than the last fence.
    let old = one
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let old = old.start().await.unwrap();
    old.execute("SELECT 1", &[]).await.unwrap();
    let last = two.transaction().await.unwrap();
    fence_by_token(&last, tokens[2] + 1).await.unwrap();
    last.commit().await.unwrap();
    let refused = fence_by_token(&old, tokens[2]).await.unwrap_err();
    assert_eq!(code(&refused), "40001");
}

async fn fence_by_token(
    transaction: &tokio_postgres::Transaction<'_>,
    token: i64,
) -> Result<u64, Error> {
    transaction
        .execute(LockGuard::TOKEN_FENCE, &[&"accounts/1", &token])
        .await
}

/// Faults: an attempt that found such a transaction had no place in the queue, and the owners that
/// it named stayed.
#[tokio::test]
async fn an_attempt_that_finds_a_transaction_open_waits_in_the_queue() {
    let (database, store) = start().await;
    let mut client = connect(&database.url_as(ROLE)).await;
    let (k, before) = (key("k"), owner());
    let next = attempt_of(before.instance, 2);
    let token = store.take(&k, before).await.tokens.first().unwrap();
    let transaction = client.transaction().await.unwrap();
    let fence = format!("SELECT tdl.fence('k', '{before}', {token})");
    transaction.batch_execute(&fence).await.unwrap();
    let named = Acquire {
        ends: vec![End {
            owner: before,
            mode: Mode::Exclusive,
        }],
        ..waiting(&k, next)
    };
    held(store.ask_for(named).await.unwrap());
    let seen = store.see(&k).await;
    assert_eq!((seen.holders.len(), seen.queue), (0, vec![next]));
    held(store.queue(&k, next).await);
    held(store.ask(&k, owner()).await);
    assert_eq!(store.see(&k).await.queue, [next]);
    transaction.commit().await.unwrap();
    held(store.ask(&k, owner()).await);
    granted(store.queue(&k, next).await);
}
