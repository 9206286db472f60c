//! Two requests never touch one account at once. Run it, then try the curl lines that it prints.

use std::{io, time::Duration};

use axum::{Router, extract::Path, routing::post};
use tower_distributed_lock::{DistributedLockLayer, LockGuard, Locks, key};

const TRY: &str = "\
Two transfers on one account: the second waits, and has the higher token.
  curl -X POST 127.0.0.1:3000/accounts/7/transfers & curl -X POST 127.0.0.1:3000/accounts/7/transfers; wait
Two accounts at once: neither waits.
  curl -X POST 127.0.0.1:3000/accounts/7/transfers & curl -X POST 127.0.0.1:3000/accounts/8/transfers; wait
";

#[tokio::main]
async fn main() -> io::Result<()> {
    let locks = Locks::in_memory(); // one process; `Locks::redis(url)` for a fleet
    let account = key::name("account").param("id");

    let app = Router::new()
        .route("/accounts/{id}/transfers", post(transfer))
        .route_layer(DistributedLockLayer::new(locks.clone(), account));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}\n\n{TRY}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

/// Slow on purpose, so that two of them meet.
async fn transfer(Path(id): Path<String>, guard: LockGuard) -> String {
    tokio::time::sleep(Duration::from_secs(2)).await;
    format!("account {id}: done, with fencing token {}\n", guard.token())
}
