//! Requests that do not end, and go on after their last checkpoint.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, Response, StatusCode},
    routing::post,
};
use bytes::Bytes;
use tokio_postgres::{Client, Error, Transaction, error::SqlState};
use tower::ServiceExt;
use tower_distributed_lock::{
    IdempotencyLayer, LockKey,
    idempotency::{Claim, Keep},
    key,
    store::{Acquire, Acquired, Owner, PostgresStore, Store},
};

use crate::{
    locks, start, store,
    support::{
        postgres::{Database, ROLE, connect},
        words::{self, *},
    },
};

const PAY: &[u8] = b"pay 5";
const PAY_MORE: &[u8] = b"pay 500";

/// A request that has claimed its key.
struct Holder {
    key: LockKey,
    owner: Owner,
    token: i64,
}

impl Holder {
    async fn new(store: &PostgresStore) -> Self {
        let (key, owner) = (words::key("pay/7"), owner());
        let request = Acquire {
            fingerprint: Some(Bytes::from_static(b"digest")),
            ..attempt(&key, owner)
        };
        let granted = granted(store.ask_for(request).await.unwrap());
        let token = granted.tokens.first().unwrap() as i64;
        Self { key, owner, token }
    }

    async fn checkpoint(&self, transaction: &Transaction<'_>, point: &str) -> Result<(), Error> {
        self.checkpoint_for(transaction, point, 600_000).await
    }

    async fn checkpoint_for(
        &self,
        transaction: &Transaction<'_>,
        point: &str,
        retain_ms: i64,
    ) -> Result<(), Error> {
        let (key, owner) = (self.key.as_str(), self.owner.to_string());
        let data = point.to_uppercase().into_bytes();
        let sql = "SELECT tdl.checkpoint($1, $2, $3, $4, $5, $6, $7)";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&key, &owner, &self.token, &PAY, &point, &data, &retain_ms];
        transaction.execute(sql, &values).await?;
        Ok(())
    }

    /// The name and the data of the checkpoint that a request finds.
    async fn reached(&self, client: &mut Client, request: &[u8]) -> Option<(String, Vec<u8>)> {
        let (key, owner) = (self.key.as_str(), self.owner.to_string());
        let sql = "SELECT point, data FROM tdl.reached($1, $2, $3, $4)";
        let transaction = client.transaction().await.unwrap();
        let rows = transaction
            .query(sql, &[&key, &owner, &self.token, &request])
            .await;
        let rows = rows.unwrap();
        transaction.commit().await.unwrap();
        rows.first().map(|row| (row.get(0), row.get(1)))
    }
}

fn found(point: &str) -> Option<(String, Vec<u8>)> {
    Some((point.to_owned(), point.to_uppercase().into_bytes()))
}

fn code(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// A request with the checkpoint "charged", whose process has died, and the next owner.
async fn died() -> (Database, PostgresStore, Client, Holder) {
    let (database, store) = start().await;
    let mut client = connect(&database.url_as(ROLE)).await;
    let first = Holder::new(&store).await;
    for point in ["ordered", "charged"] {
        let transaction = client.transaction().await.unwrap();
        first.checkpoint(&transaction, point).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(first.reached(&mut client, PAY).await, found(point));
    }
    assert!(store.force_release(first.key.clone()).await.unwrap());
    let next = Holder::new(&crate::store(&database)).await;
    (database, store, client, next)
}

#[tokio::test]
async fn the_next_owner_finds_the_last_checkpoint_of_the_same_request_only() {
    let (_database, _store, mut client, next) = died().await;
    assert_eq!(next.reached(&mut client, PAY_MORE).await, None);
    assert_eq!(next.reached(&mut client, PAY).await, found("charged"));
}

#[tokio::test]
async fn a_checkpoint_is_there_if_and_only_if_its_transaction_was_committed() {
    let (_database, _store, mut client, next) = died().await;
    let transaction = client.transaction().await.unwrap();
    next.checkpoint(&transaction, "shipped").await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(next.reached(&mut client, PAY).await, found("charged"));
}

#[tokio::test]
async fn a_checkpoint_is_fenced() {
    let (database, store, mut client, next) = died().await;
    let mut other = connect(&database.url_as(ROLE)).await;
    let transaction = client.transaction().await.unwrap();
    next.checkpoint(&transaction, "shipped").await.unwrap();
    assert!(store.force_release(next.key.clone()).await.unwrap());
    held(store.ask_for(attempt(&next.key, owner())).await.unwrap());
    transaction.commit().await.unwrap();
    let last = Holder::new(&store).await;
    let stale = other.transaction().await.unwrap();
    let refused = next.checkpoint(&stale, "late").await.unwrap_err();
    assert_eq!(code(&refused), "TDL01");
    drop(stale);
    assert_eq!(last.reached(&mut client, PAY).await, found("shipped"));
}

#[tokio::test]
async fn a_checkpoint_is_gone_when_the_answer_was_kept() {
    for by_layer in [true, false] {
        let (_database, store, mut client, next) = died().await;
        if by_layer {
            store.record(&next.key, next.owner, b"paid").await;
        } else {
            let (key, owner) = (next.key.as_str(), next.owner.to_string());
            let keep = "SELECT tdl.keep($1, $2, $3, 'paid', 600000)";
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&key, &owner, &next.token];
            client.execute(keep, &values).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            let refused = next.checkpoint(&transaction, "late").await.unwrap_err();
            assert_eq!(code(&refused), "TDL02");
        }
        let recorded = store.ask_for(attempt(&next.key, owner())).await.unwrap();
        assert_eq!(recorded, Acquired::Recorded(Bytes::from_static(b"paid")));
        assert!(store.force_release(next.key.clone()).await.unwrap());
        let anew = Holder::new(&store).await;
        assert_eq!(anew.reached(&mut client, PAY).await, None);
    }
}

#[tokio::test]
async fn a_checkpoint_outlasts_the_sweep_until_its_time_is_over() {
    let (database, store, mut client, next) = died().await;
    assert!(store.force_release(next.key.clone()).await.unwrap());
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(Duration::ZERO).await.unwrap();
    let next = Holder::new(&store).await;
    assert_eq!(next.reached(&mut client, PAY).await, found("charged"));
    let transaction = client.transaction().await.unwrap();
    next.checkpoint_for(&transaction, "shipped", 20)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!(next.reached(&mut client, PAY).await, None);
    assert!(store.force_release(next.key.clone()).await.unwrap());
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(Duration::ZERO).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM tdl.claims").await, 0);
}

/// A provider that charges, and a process that may die right after.
#[derive(Clone)]
struct Shop {
    url: String,
    charges: Arc<AtomicU32>,
    /// The first so many runs fail after their checkpoint.
    fails: Arc<AtomicU32>,
}

async fn pay(State(shop): State<Shop>, claim: Claim) -> Response<String> {
    let mut client = connect(&shop.url).await;
    let phase = client.transaction().await.unwrap();
    let reached = claim.reached().unwrap().run(&phase).await.unwrap();
    phase.commit().await.unwrap();
    let receipt = match reached {
        Some((point, receipt)) if point == "charged" => String::from_utf8(receipt).unwrap(),
        Some(_) | None => {
            let receipt = format!("receipt {}", shop.charges.fetch_add(1, Relaxed));
            let phase = client.transaction().await.unwrap();
            let charged = claim.checkpoint("charged", &receipt).unwrap();
            charged.run(&phase).await.unwrap();
            phase.commit().await.unwrap();
            receipt
        }
    };
    if shop.fails.fetch_sub(1, Relaxed) > 0 {
        let answer = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
        return answer.body(String::new()).unwrap();
    }
    let phase = client.transaction().await.unwrap();
    let answer = Response::new(receipt);
    claim.keep(&answer).unwrap().run(&phase).await.unwrap();
    phase.commit().await.unwrap();
    answer
}

#[tokio::test]
async fn a_request_that_is_begun_again_goes_on_after_its_checkpoint() {
    let (database, first) = start().await;
    let shop = Shop {
        url: database.url(),
        charges: Arc::default(),
        fails: Arc::new(AtomicU32::new(2)),
    };
    for (store, body, status) in [
        (first.clone(), "5", StatusCode::SERVICE_UNAVAILABLE),
        (store(&database), "5", StatusCode::SERVICE_UNAVAILABLE),
        (store(&database), "5", StatusCode::OK),
        (first, "5", StatusCode::OK),
    ] {
        let tenant = key::request().header("x-tenant-id");
        let idempotency = IdempotencyLayer::new(locks(&store), tenant);
        let idempotency = idempotency.keep(Keep::when_errors_do_nothing).required();
        let service = Router::new().route("/payments", post(pay).route_layer(idempotency));
        let service = service.with_state(shop.clone());
        let request = Request::post("/payments")
            .header("x-tenant-id", "acme")
            .header("idempotency-key", "order-7")
            .body(Body::from(body));
        let response = service.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        if status == StatusCode::OK {
            let body = axum::body::to_bytes(response.into_body(), 100).await;
            assert_eq!(&body.unwrap()[..], b"receipt 0");
        }
    }
    assert_eq!(shop.charges.load(Relaxed), 1);
}
