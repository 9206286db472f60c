//! Idempotent requests whose answer is written by the transaction of their data.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, Response, StatusCode},
    routing::post,
};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::error::SqlState;
use tower::ServiceExt;
use tower_distributed_lock::{
    ErrorKind, IdempotencyLayer, Locks,
    idempotency::{Claim, Keep},
    key,
    store::{List, PostgresStore, Store},
};

use crate::{
    locks, start, store,
    support::{
        eventually,
        postgres::{Database, connect},
    },
};

/// What a handler does between its steps.
#[derive(Clone)]
struct Desk {
    url: String,
    /// The handler has claimed its key.
    claimed: Arc<Notify>,
    /// The handler may go on to its transaction.
    may_pay: Arc<Semaphore>,
    ends: Ends,
    done: Arc<Notify>,
}

#[derive(Clone, Copy)]
enum Ends {
    /// Answers after the commit.
    Commit,
    /// Commits, and then hangs for ever: its process dies meanwhile.
    CommitAndHang,
    /// Keeps its answer, and rolls back.
    RollBack,
    /// Commits, and fails.
    CommitAndFail,
    /// Commits, and panics.
    CommitAndPanic,
    /// Commits, and says something else.
    CommitAndLie,
}

impl Desk {
    fn new(database: &Database, ends: Ends) -> Self {
        Self {
            url: database.url(),
            claimed: Arc::default(),
            may_pay: Arc::new(Semaphore::new(1)),
            ends,
            done: Arc::default(),
        }
    }
}

async fn pay(State(desk): State<Desk>, claim: Claim) -> Response<String> {
    desk.claimed.notify_one();
    desk.may_pay.acquire().await.unwrap().forget();
    let mut client = connect(&desk.url).await;
    let transaction = client.transaction().await.unwrap();
    let insert = "INSERT INTO payments DEFAULT VALUES RETURNING number";
    let number: i64 = transaction.query_one(insert, &[]).await.unwrap().get(0);
    let answer = Response::builder().status(StatusCode::CREATED);
    let answer = answer.header("x-receipt", format!("r-{number}"));
    let answer = answer.body(format!("payment {number}")).unwrap();
    if let Err(error) = claim.keep(&answer).unwrap().run(&transaction).await {
        let code = error.code().map_or("", SqlState::code).to_owned();
        let answer = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR);
        return answer.body(code).unwrap();
    }
    match desk.ends {
        Ends::Commit => transaction.commit().await.unwrap(),
        Ends::CommitAndHang => {
            transaction.commit().await.unwrap();
            desk.done.notify_one();
            std::future::pending::<()>().await;
        }
        Ends::RollBack => {
            transaction.rollback().await.unwrap();
            let answer = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
            return answer.body("rolled back".to_owned()).unwrap();
        }
        Ends::CommitAndFail => {
            transaction.commit().await.unwrap();
            let answer = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR);
            return answer.body("failed".to_owned()).unwrap();
        }
        Ends::CommitAndPanic => {
            transaction.commit().await.unwrap();
            panic!("after the commit");
        }
        Ends::CommitAndLie => {
            transaction.commit().await.unwrap();
            return Response::new("not what was kept".to_owned());
        }
    }
    answer
}

fn service(locks: Locks, desk: &Desk) -> Router {
    let idempotency = IdempotencyLayer::new(locks, key::request().header("x-tenant-id"));
    let idempotency = idempotency.keep(Keep::when_errors_do_nothing).required();
    behind(idempotency, desk)
}

fn behind(idempotency: IdempotencyLayer, desk: &Desk) -> Router {
    Router::new()
        .route("/payments", post(pay).route_layer(idempotency))
        .with_state(desk.clone())
}

/// The status, whether the answer is a replay, the receipt and the body.
async fn request(service: Router) -> (StatusCode, bool, Option<String>, String) {
    let request = Request::post("/payments")
        .header("x-tenant-id", "acme")
        .header("idempotency-key", "\"order-7\"")
        .body(Body::from("5"));
    let response = service.oneshot(request.unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let is_replay = parts.headers.contains_key("idempotent-replayed");
    let receipt = parts.headers.get("x-receipt");
    let receipt = receipt.map(|value| value.to_str().unwrap().to_owned());
    let body = to_bytes(body, 1_000).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (parts.status, is_replay, receipt, body)
}

async fn begin() -> (Database, PostgresStore) {
    let (database, store) = start().await;
    let table = "CREATE TABLE payments (number bigint GENERATED ALWAYS AS IDENTITY)";
    database.execute(table).await;
    (database, store)
}

async fn payments(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM payments").await
}

fn paid(is_replay: bool, number: i64) -> (StatusCode, bool, Option<String>, String) {
    let (receipt, body) = (format!("r-{number}"), format!("payment {number}"));
    (StatusCode::CREATED, is_replay, Some(receipt), body)
}

#[tokio::test]
async fn the_answer_that_the_transaction_has_kept_is_the_one_that_is_replayed() {
    let (database, first) = begin().await;
    let desk = Desk::new(&database, Ends::Commit);
    assert_eq!(request(service(locks(&first), &desk)).await, paid(false, 1));
    let second = locks(&store(&database));
    assert_eq!(request(service(second, &desk)).await, paid(true, 1));
    assert_eq!(payments(&database).await, 1);
}

#[tokio::test]
async fn a_process_that_dies_after_its_commit_has_answered_every_retry() {
    let (database, _) = begin().await;
    let desk = Desk::new(&database, Ends::CommitAndHang);
    let (other, again) = (desk.clone(), store(&database));
    let process = tokio::runtime::Builder::new_multi_thread();
    let process = { process }.worker_threads(1).enable_all().build().unwrap();
    process.spawn(async move { request(service(locks(&again), &other)).await });
    desk.done.notified().await;
    // Nothing of the process runs any more: neither a record nor a release is sent.
    process.shutdown_background();
    let desk = Desk::new(&database, Ends::Commit);
    let second = locks(&store(&database));
    assert_eq!(request(service(second, &desk)).await, paid(true, 1));
    assert_eq!(payments(&database).await, 1);
}

#[tokio::test]
async fn neither_the_data_nor_the_answer_is_there_after_a_rollback() {
    let (database, first) = begin().await;
    let desk = Desk::new(&database, Ends::RollBack);
    let (status, ..) = request(service(locks(&first), &desk)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(payments(&database).await, 0);
    let desk = Desk::new(&database, Ends::Commit);
    let (status, is_replay, ..) = request(service(locks(&first), &desk)).await;
    assert_eq!((status, is_replay), (StatusCode::CREATED, false));
    assert_eq!(payments(&database).await, 1);
}

#[tokio::test]
async fn once_it_was_committed_nothing_that_the_handler_does_changes_the_kept_answer() {
    for ends in [
        Ends::CommitAndFail,
        Ends::CommitAndPanic,
        Ends::CommitAndLie,
    ] {
        for frees in [true, false] {
            let (database, first) = begin().await;
            let desk = Desk::new(&database, ends);
            let tenant = key::request().header("x-tenant-id");
            // With the default policy, an error would be recorded.
            let mut idempotency = IdempotencyLayer::new(locks(&first), tenant).required();
            if frees {
                idempotency = idempotency.keep(Keep::when_errors_do_nothing);
            }
            let answer = tokio::spawn(request(behind(idempotency, &desk))).await;
            if let Ok((status, is_replay, ..)) = answer {
                assert_ne!((status, is_replay), (StatusCode::CREATED, true));
            }
            let desk = Desk::new(&database, Ends::Commit);
            for store in [first.clone(), store(&database)] {
                let again = request(service(locks(&store), &desk)).await;
                assert_eq!(again, paid(true, 1));
            }
            assert_eq!(payments(&database).await, 1);
        }
    }
}

/// They wait in the line of the process that runs the handler, and have asked no store so far.
#[tokio::test]
async fn duplicates_that_wait_in_the_same_process_get_the_kept_answer_too() {
    for ends in [
        Ends::CommitAndFail,
        Ends::CommitAndPanic,
        Ends::CommitAndLie,
    ] {
        for frees in [true, false] {
            let (database, store) = begin().await;
            let (desk, locks) = (Desk::new(&database, ends), locks(&store));
            let tenant = key::request().header("x-tenant-id");
            let mut idempotency = IdempotencyLayer::new(locks.clone(), tenant).required();
            if frees {
                idempotency = idempotency.keep(Keep::when_errors_do_nothing);
            }
            let service = behind(idempotency, &desk);
            let stop = desk.may_pay.acquire().await.unwrap();
            let first = tokio::spawn(request(service.clone()));
            desk.claimed.notified().await;
            let duplicates = [(); 2].map(|()| tokio::spawn(request(service.clone())));
            eventually("the duplicates wait in line", async || {
                locks.stats().waiting == 2
            })
            .await;
            drop(stop);
            // For runs that must not be.
            desk.may_pay.add_permits(2);
            // Its own client gets what the handler has answered.
            drop(first.await);
            for duplicate in duplicates {
                assert_eq!(duplicate.await.unwrap(), paid(true, 1), "frees: {frees}");
            }
            assert_eq!(payments(&database).await, 1);
        }
    }
}

/// As after a pause that was longer than the lease.
#[tokio::test]
async fn a_request_that_has_lost_its_claim_commits_nothing() {
    let (database, store) = begin().await;
    let late = Desk::new(&database, Ends::Commit);
    let stop = late.may_pay.acquire().await.unwrap();
    let first = tokio::spawn(request(service(locks(&store), &late)));
    late.claimed.notified().await;
    for key in store.list(List::all()).await.unwrap().keys {
        assert!(store.force_release(key).await.unwrap());
    }
    let desk = Desk::new(&database, Ends::Commit);
    let second = locks(&crate::store(&database));
    assert_eq!(
        request(service(second.clone(), &desk)).await,
        paid(false, 1)
    );
    drop(stop);
    let (status, _, _, body) = first.await.unwrap();
    assert_eq!(
        (status, body.as_str()),
        (StatusCode::INTERNAL_SERVER_ERROR, "TDL01")
    );
    assert_eq!(payments(&database).await, 1);
    assert_eq!(request(service(second, &desk)).await, paid(true, 1));
}

#[tokio::test]
async fn a_claim_in_another_store_names_what_to_use_instead() {
    let refused = async |claim: Claim| {
        let error = claim.keep(&Response::new("paid")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(claim.fence().unwrap_err().kind(), ErrorKind::InvalidConfig);
        error.to_string()
    };
    let idempotency =
        IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"));
    let service = Router::new().route("/payments", post(refused).route_layer(idempotency));
    let (_, _, _, body) = request(service).await;
    assert!(body.contains("recall"), "{body}");
}
