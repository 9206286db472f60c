//! A payment that is sent twice is made once. Run it, then try the curl lines that it prints.

use std::{io, sync::Arc, sync::atomic::AtomicU64, sync::atomic::Ordering, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Claim, key};

const TRY: &str = "\
Pay, and send it again: the same answer, from one payment.
  curl -i -X POST 127.0.0.1:3000/payments -H 'x-tenant-id: acme' -H 'idempotency-key: order-17' -d 5
  curl -i -X POST 127.0.0.1:3000/payments -H 'x-tenant-id: acme' -H 'idempotency-key: order-17' -d 5
The same key for another amount: 422.
  curl -i -X POST 127.0.0.1:3000/payments -H 'x-tenant-id: acme' -H 'idempotency-key: order-17' -d 6
";

#[tokio::main]
async fn main() -> io::Result<()> {
    let locks = Locks::in_memory(); // one process; `Locks::redis(url)` for a fleet
    let tenant = key::request().header("x-tenant-id"); // a real service takes it from its authentication

    let app = Router::new()
        .route("/payments", post(pay))
        .route_layer(
            IdempotencyLayer::new(locks.clone(), tenant)
                .required()
                .retain(Duration::from_secs(24 * 3600)),
        )
        .with_state(Arc::new(AtomicU64::new(0)));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}\n\n{TRY}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

async fn pay(
    State(payments): State<Arc<AtomicU64>>,
    claim: Claim,
    amount: String,
) -> (StatusCode, String) {
    let number = payments.fetch_add(1, Ordering::Relaxed) + 1;
    let paid = format!("payment {number}, for {}: {amount}\n", claim.key());
    (StatusCode::CREATED, paid)
}
