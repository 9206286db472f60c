//! A gRPC service (tonic) whose payments are locked by account and made once. The example runs a
//! server and a client, and prints the answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use payments::{
    PayReply, PayRequest,
    payments_client::PaymentsClient,
    payments_server::{Payments, PaymentsServer},
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    service::LayerExt,
    transport::{Server, server::TcpIncoming},
};
use tower::ServiceBuilder;
use tower_distributed_lock::{DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, key};

/// Generated from `payments.proto`.
#[allow(missing_docs, unreachable_pub)]
#[path = "payments.rs"]
mod payments;

/// Pays, and numbers its payments.
#[derive(Debug, Clone, Default)]
struct Book(Arc<AtomicU64>);

#[tonic::async_trait]
impl Payments for Book {
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
        let guard = LockGuard::from_extensions(request.extensions());
        let guard = guard.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(PayReply {
            number: self.0.fetch_add(1, Ordering::Relaxed) + 1,
            token: guard.token(), // a ledger would refuse a lower one
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = Locks::in_memory(); // one process; `Locks::redis(url)` for a fleet
    let tenant = key::request().header("x-tenant-id"); // a real service takes it from its authentication
    // The message names the account as well. A real service checks that both agree.
    let account = key::name("account").header("x-account-id");

    let layers = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(locks.clone(), tenant).any_body())
        .layer(DistributedLockLayer::new(locks, account));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    // Around this service alone: health checks beside it have no key.
    let serving = Server::builder()
        .add_service(layers.named_layer(PaymentsServer::new(Book::default())))
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(serving);

    let mut client = PaymentsClient::connect(url).await?;
    for (key, amount) in [
        ("order-17", 5),
        ("order-17", 5),
        ("order-17", 6),
        ("order-18", 6),
    ] {
        let mut request = Request::new(PayRequest {
            account: "a".into(),
            amount,
        });
        for (name, value) in [
            ("x-tenant-id", "acme"),
            ("x-account-id", "a"),
            ("idempotency-key", key),
        ] {
            request.metadata_mut().insert(name, value.parse()?);
        }
        match client.pay(request).await {
            Ok(reply) => println!("{key} for {amount}: {:?}", reply.into_inner()),
            Err(status) => println!(
                "{key} for {amount}: {:?}: {}",
                status.code(),
                status.message()
            ),
        }
    }
    Ok(())
}
