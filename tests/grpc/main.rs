//! Refusals and replays over gRPC: a real tonic server, and a real tonic client.

#[allow(missing_docs, unreachable_pub)]
#[path = "../../examples/grpc/payments.rs"]
mod payments;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use payments::{
    PayReply, PayRequest,
    payments_client::PaymentsClient,
    payments_server::{Payments, PaymentsServer},
};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::ServiceBuilder;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, key,
    store::{Fault, FaultyStore},
};

/// Far more than anything here takes, also on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
const ACCOUNT: &str = "account,id=a";

/// Counts its payments. The amount decides how a payment ends.
#[derive(Debug, Clone, Default)]
struct Book(Arc<AtomicU64>);

const HANGS: u64 = 1;
const REFUSES: u64 = 2;
const FAILS: u64 = 3;

#[tonic::async_trait]
impl Payments for Book {
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
        let guard = LockGuard::from_extensions(request.extensions());
        let guard = guard.map_err(|error| Status::internal(error.to_string()))?;
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        match request.get_ref().amount {
            HANGS => std::future::pending().await,
            REFUSES => Err(Status::invalid_argument("no such payment")),
            FAILS => Err(Status::internal("the provider did not answer")),
            _ => Ok(Response::new(PayReply {
                number,
                token: guard.token(),
            })),
        }
    }
}

struct Bank {
    client: PaymentsClient<Channel>,
    book: Book,
    _serving: JoinSet<()>,
}

impl Bank {
    async fn open(locks: &Locks, set: fn(DistributedLockLayer) -> DistributedLockLayer) -> Self {
        let account = key::name("account").header("x-account-id").labelled("id");
        let layers = ServiceBuilder::new()
            .layer(IdempotencyLayer::new(locks.clone(), key::name("everybody")).any_body())
            .layer(set(DistributedLockLayer::new(locks.clone(), account)));
        let book = Book::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Server::builder()
            .layer(layers)
            .add_service(PaymentsServer::new(book.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let mut running = JoinSet::new();
        running.spawn(async move { serving.await.unwrap() });
        let client = PaymentsClient::connect(url).await.unwrap();
        Self {
            client,
            book,
            _serving: running,
        }
    }

    async fn pay(
        &mut self,
        amount: u64,
        metadata: &[(&'static str, &str)],
    ) -> Result<PayReply, Status> {
        let mut request = Request::new(PayRequest {
            account: "a".into(),
            amount,
        });
        for (name, value) in metadata {
            let value = value.parse().unwrap();
            request.metadata_mut().insert(*name, value);
        }
        let reply = timeout(PATIENCE, self.client.pay(request)).await;
        reply.expect("an answer").map(Response::into_inner)
    }

    fn payments(&self) -> u64 {
        self.book.0.load(Ordering::SeqCst)
    }
}

const TO_A: [(&str, &str); 1] = [("x-account-id", "a")];
const ONCE: [(&str, &str); 2] = [("x-account-id", "a"), ("idempotency-key", "k")];

fn metadata<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status.metadata().get(name)?.to_str().ok()
}

#[tokio::test]
async fn a_payment_is_made_under_its_lock() {
    let locks = Locks::in_memory();
    let mut bank = Bank::open(&locks, |lock| lock).await;
    let first = bank.pay(5, &TO_A).await.unwrap();
    let second = bank.pay(5, &TO_A).await.unwrap();
    assert_eq!((first.number, second.number), (1, 2));
    assert!(first.token < second.token);
}

#[tokio::test]
async fn a_held_key_is_unavailable_with_the_time_to_retry() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT).await.unwrap();
    let mut bank = Bank::open(&locks, DistributedLockLayer::reject_if_held).await;
    let status = bank.pay(5, &TO_A).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "another request holds the lock");
    assert_eq!(metadata(&status, "grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(metadata(&status, "refusal-code"), Some("held"));
    // A refusal is never kept, although its HTTP status is 200.
    let status = bank.pay(5, &ONCE).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop(_held);
    let paid = bank.pay(5, &ONCE).await;
    assert_eq!(paid.unwrap().number, 1);
}

#[tokio::test]
async fn a_request_without_its_key_is_an_invalid_argument() {
    let mut bank = Bank::open(&Locks::in_memory(), |lock| lock).await;
    let status = bank.pay(5, &[]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the header `x-account-id` is missing");
    assert_eq!(metadata(&status, "grpc-retry-pushback-ms"), Some("-1"));
    let twice = [("x-account-id", "a"), ("idempotency-key", "a b")];
    let status = bank.pay(5, &twice).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_lost_lease_is_aborted_and_its_outcome_unknown() {
    let builder = Locks::builder(FaultyStore::new()).max_hold(Duration::from_millis(300));
    let locks = builder.build().unwrap();
    let mut bank = Bank::open(&locks, |lock| lock).await;
    let status = bank.pay(HANGS, &ONCE).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let status = bank.pay(HANGS, &ONCE).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(metadata(&status, "refusal-code"), Some("outcome-unknown"));
    assert_eq!(bank.payments(), 1);
}

#[tokio::test]
async fn a_store_out_of_reach_is_unavailable() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let mut bank = Bank::open(&locks, |lock| lock).await;
    store.set_fault(Some(Fault::Unreachable));
    let status = bank.pay(5, &TO_A).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(metadata(&status, "refusal-code"), Some("store-unreachable"));
}

#[tokio::test]
async fn a_unary_answer_is_replayed() {
    let mut bank = Bank::open(&Locks::in_memory(), |lock| lock).await;
    let first = bank.pay(5, &ONCE).await.unwrap();
    let again = bank.pay(5, &ONCE).await.unwrap();
    assert_eq!(first, again);
    let status = bank.pay(6, &ONCE).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(metadata(&status, "refusal-code"), Some("key-reused"));
    assert_eq!(bank.payments(), 1);
}

#[tokio::test]
async fn a_grpc_status_decides_whether_the_answer_is_kept() {
    for (amount, code, payments) in [
        (REFUSES, Code::InvalidArgument, 2),
        (FAILS, Code::Internal, 1),
    ] {
        let mut bank = Bank::open(&Locks::in_memory(), |lock| lock).await;
        for _ in 0..2 {
            let status = bank.pay(amount, &ONCE).await.unwrap_err();
            assert_eq!(status.code(), code);
        }
        assert_eq!(bank.payments(), payments, "{code:?}");
    }
}
