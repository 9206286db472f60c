//! Records that are written in the user's transaction, with its data or not at all.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::{Client, Error, Transaction, error::SqlState};
use tower_distributed_lock::{
    LockKey,
    store::{Acquire, Acquired, Expected, Owner, PostgresStore, Released, Store},
};

use crate::{
    start,
    support::{
        eventually,
        postgres::{Database, connect},
        words::*,
    },
};

/// A request that has claimed its key.
struct Claim {
    key: LockKey,
    owner: Owner,
    token: i64,
}

async fn claim(store: &PostgresStore) -> Claim {
    let (key, owner) = (key("pay/7"), owner());
    match ask(store, &key, owner).await {
        Acquired::Granted(grant) => Claim {
            key,
            owner,
            token: grant.tokens.first().unwrap() as i64,
        },
        other => panic!("{other:?}"),
    }
}

/// A claim has a fingerprint, and can be fenced in any store.
async fn ask(store: &PostgresStore, key: &LockKey, owner: Owner) -> Acquired {
    let request = Acquire {
        fingerprint: Some(Bytes::from_static(b"digest")),
        ..attempt(key, owner)
    };
    store.ask_for(request).await.unwrap()
}

async fn begin() -> (Database, PostgresStore, Client, Claim) {
    let (database, _) = start().await;
    let store = PostgresStore::builder(database.url_as("app"));
    let store = store.timeout(Duration::from_secs(10)).build().unwrap();
    let claim = claim(&store).await;
    let client = connect(&database.url_as("app")).await;
    (database, store, client, claim)
}

impl Claim {
    async fn fence(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let (key, owner) = (self.key.as_str(), self.owner.to_string());
        let sql = "SELECT tdl.fence($1, $2, $3)";
        transaction
            .execute(sql, &[&key, &owner, &self.token])
            .await?;
        Ok(())
    }

    async fn keep(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let (key, owner) = (self.key.as_str(), self.owner.to_string());
        let sql = "SELECT tdl.keep($1, $2, $3, $4, $5)";
        let content: &[u8] = b"paid";
        transaction
            .execute(sql, &[&key, &owner, &self.token, &content, &600_000_i64])
            .await?;
        Ok(())
    }
}

fn code(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

#[tokio::test]
async fn the_record_is_there_if_and_only_if_the_transaction_was_committed() {
    for commits in [true, false] {
        let (_database, store, mut client, claim) = begin().await;
        let transaction = client.transaction().await.unwrap();
        claim.fence(&transaction).await.unwrap();
        claim.keep(&transaction).await.unwrap();
        // The lease is over before the commit, and the holder is gone.
        assert!(store.force_release(claim.key.clone()).await.unwrap());
        held(ask(&store, &claim.key, owner()).await);
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let next = ask(&store, &claim.key, owner()).await;
        if commits {
            assert_eq!(next, Acquired::Recorded(Bytes::from_static(b"paid")));
        } else {
            granted(next);
        }
    }
}

#[tokio::test]
async fn the_release_after_a_kept_record_is_answered_with_freed() {
    let (_database, store, mut client, claim) = begin().await;
    let transaction = client.transaction().await.unwrap();
    claim.keep(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    // As the layer does: the record once more, or a plain release.
    store.record(&claim.key, claim.owner, b"other words").await;
    let seen = store.see(&claim.key).await;
    assert_eq!(seen.record, Some(Bytes::from_static(b"paid")));
    assert_eq!(store.free(&claim.key, claim.owner).await, Released::Freed);
    let next = ask(&store, &claim.key, owner()).await;
    assert_eq!(next, Acquired::Recorded(Bytes::from_static(b"paid")));
    // Operators can take it away.
    let taken = store.force_release_if(claim.key.clone(), Expected::Record);
    assert!(taken.await.unwrap());
    granted(ask(&store, &claim.key, owner()).await);
}

#[tokio::test]
async fn a_second_record_of_a_claim_is_refused_in_its_own_words() {
    let (_database, _store, mut client, claim) = begin().await;
    let transaction = client.transaction().await.unwrap();
    claim.keep(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    for keeps in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let refused = match keeps {
            true => claim.keep(&transaction).await,
            false => claim.fence(&transaction).await,
        };
        assert_eq!(code(&refused.unwrap_err()), "TDL02");
    }
}

#[tokio::test]
async fn an_answer_is_durable_even_if_the_user_has_switched_that_off() {
    let (_database, _store, mut client, claim) = begin().await;
    let setting = async |transaction: &Transaction<'_>| -> String {
        let show = "SHOW synchronous_commit";
        transaction.query_one(show, &[]).await.unwrap().get(0)
    };
    let off = "SET synchronous_commit = off";
    client.batch_execute(off).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    claim.fence(&transaction).await.unwrap();
    assert_eq!(setting(&transaction).await, "off");
    claim.keep(&transaction).await.unwrap();
    assert_eq!(setting(&transaction).await, "on");
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert_eq!(setting(&transaction).await, "off");
}

#[tokio::test]
async fn a_claim_that_was_lost_keeps_nothing() {
    let (_database, store, mut client, claim) = begin().await;
    assert!(store.force_release(claim.key.clone()).await.unwrap());
    granted(ask(&store, &claim.key, owner()).await);
    let transaction = client.transaction().await.unwrap();
    let refused = claim.keep(&transaction).await.unwrap_err();
    assert_eq!(code(&refused), "TDL01");
    drop(transaction);
    assert_eq!(store.see(&claim.key).await.record, None);
}

#[tokio::test]
async fn of_two_transactions_of_one_claim_that_keep_one_survives() {
    let (database, store, mut one, claim) = begin().await;
    let mut two = connect(&database.url_as("app")).await;
    let (first, second) = (
        one.transaction().await.unwrap(),
        two.transaction().await.unwrap(),
    );
    claim.fence(&first).await.unwrap();
    claim.fence(&second).await.unwrap();
    let (a, b) = tokio::join!(
        async {
            let kept = claim.keep(&first).await;
            finish(first, kept).await
        },
        async {
            let kept = claim.keep(&second).await;
            finish(second, kept).await
        },
    );
    let failed = match (a, b) {
        (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
        other => panic!("{other:?}"),
    };
    assert!(["40P01", "TDL02"].contains(&code(&failed)), "{failed:?}");
    assert!(store.see(&claim.key).await.record.is_some());
}

async fn finish(transaction: Transaction<'_>, kept: Result<(), Error>) -> Result<(), Error> {
    match kept {
        Ok(()) => transaction.commit().await,
        Err(error) => {
            transaction.rollback().await?;
            Err(error)
        }
    }
}

#[tokio::test]
async fn a_record_waits_for_the_open_transaction_of_its_own_claim() {
    let (_database, store, mut client, claim) = begin().await;
    let transaction = client.transaction().await.unwrap();
    claim.fence(&transaction).await.unwrap();
    let recording = tokio::spawn({
        let (store, key, owner) = (store.clone(), claim.key.clone(), claim.owner);
        async move { store.record(&key, owner, b"by the layer").await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!recording.is_finished());
    transaction.commit().await.unwrap();
    recording.await.unwrap();
    eventually("the record is there", async || {
        store.see(&claim.key).await.record.is_some()
    })
    .await;
}

async fn wait(polls: i32) {
    for _ in 0..polls * 10 {
        tokio::task::yield_now().await;
    }
}

/// A connection that breaks at COMMIT, at whatever moment: the payment and its record are both
/// there, or neither is, and the retry finds out which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_known_by_asking_again() {
    let (database, _) = start().await;
    let sql = "CREATE TABLE public.payments (id int); GRANT ALL ON public.payments TO app";
    database.execute(sql).await;
    let store = PostgresStore::builder(database.url_as("app"));
    let store = store.timeout(Duration::from_secs(10)).build().unwrap();
    let killer = database.client().await;
    let (mut committed, mut lost) = (0, 0);
    for payment in 0..40_i32 {
        let key = key(&format!("pay/{payment}"));
        loop {
            let me = owner();
            let grant = match ask(&store, &key, me).await {
                Acquired::Granted(grant) => grant,
                Acquired::Recorded(_) => break,
                // The server is still about to end the last transaction.
                Acquired::Held(_) => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
            };
            let claim = Claim {
                key: key.clone(),
                owner: me,
                token: grant.tokens.first().unwrap() as i64,
            };
            let mut client = connect(&database.url_as("app")).await;
            let session: i32 = client
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0);
            let transaction = client.transaction().await.unwrap();
            claim.fence(&transaction).await.unwrap();
            let insert = "INSERT INTO public.payments VALUES ($1)";
            transaction.execute(insert, &[&payment]).await.unwrap();
            claim.keep(&transaction).await.unwrap();
            // A few polls earlier or later: before, within and after the commit.
            let (first, second) = (payment / 2 % 10, (40 - payment) / 2 % 10);
            let commit = async {
                wait(first).await;
                transaction.commit().await
            };
            let kill = async {
                wait(second).await;
                let kill = "SELECT pg_terminate_backend($1)";
                killer.execute(kill, &[&session]).await
            };
            let (answer, _) = tokio::join!(commit, kill);
            match answer {
                Ok(()) => committed += 1,
                Err(_) => lost += 1,
            }
            // The holder is gone. Its lease would run for a minute.
            store
                .force_release_if(key.clone(), Expected::Holder(me))
                .await
                .unwrap();
        }
    }
    println!("{committed} commits were answered, {lost} were not");
    assert!(lost > 0, "no connection has broken in time");
    let paid = "SELECT count(*) FROM public.payments";
    let once = "SELECT count(DISTINCT id) FROM public.payments";
    assert_eq!(database.number(paid).await, 40);
    assert_eq!(database.number(once).await, 40);
}

/// Fault: a handler that works on after its COMMIT lost its guard, as soon as a duplicate had asked
/// another process.
#[tokio::test]
async fn a_lease_whose_answer_was_kept_is_renewed() {
    for is_asked_elsewhere in [false, true] {
        let (database, store, mut client, claim) = begin().await;
        let transaction = client.transaction().await.unwrap();
        claim.keep(&transaction).await.unwrap();
        transaction.commit().await.unwrap();
        if is_asked_elsewhere {
            let asked = ask(&crate::store(&database), &claim.key, owner()).await;
            assert!(matches!(asked, Acquired::Recorded(_)), "{asked:?}");
        }
        for refill in [0, 5] {
            let renewed = store.renew_one(renewal(&claim.key, claim.owner, refill));
            assert!(is_renewed(&renewed.await));
        }
        let other = store.renew_one(renewal(&claim.key, owner(), 0)).await;
        assert!(!is_renewed(&other));
        assert!(store.see(&claim.key).await.record.is_some());
        assert_eq!(store.free(&claim.key, claim.owner).await, Released::Freed);
    }
}
