//! A payment that happens exactly once, whatever crashes: PostgreSQL has the payments and their
//! answers, and Redis keeps duplicates apart.
//!
//! ```text
//! DATABASE=postgres://postgres@127.0.0.1/postgres STORE=redis://127.0.0.1 cargo run --example exactly_once
//! ```
//! Pay; then empty Redis, and send it once more: the same answer, from one payment.
//! ```text
//! curl -i 127.0.0.1:3000/payments -H 'x-tenant-id: acme' -H 'idempotency-key: order-17' -d 5
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{Response, StatusCode},
    response::IntoResponse,
    routing::post,
};
use tokio_postgres::{Client, NoTls};
use tower_distributed_lock::{
    IdempotencyLayer, Locks, RedisStore,
    idempotency::{Claim, Keep, Recalled},
    key,
};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS payments (number bigint GENERATED ALWAYS AS IDENTITY, amount text NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    scope text, key text, fingerprint bytea NOT NULL, status int NOT NULL, body bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);";

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let database = Database(env::var("DATABASE")?);
    database.connect().await?.batch_execute(TABLES).await?;
    let lease = env::var("LEASE_MS").map_or(Ok(30_000), |lease| lease.parse())?;
    let store = RedisStore::connect(env::var("STORE")?).await?;
    let locks = Locks::builder(store)
        .lease(Duration::from_millis(lease))
        .build()?;

    let kept = database.clone();
    let idempotency = IdempotencyLayer::new(locks.clone(), key::request().header("x-tenant-id"))
        .required()
        .recall(move |claim| {
            let kept = kept.clone();
            async move { kept.recall(&claim).await }
        })
        // An error frees the key: what was committed is recalled by the next try.
        .keep(Keep::when_errors_do_nothing);
    let app = Router::new()
        .route("/payments", post(pay))
        .route_layer(idempotency)
        .with_state(database);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

async fn pay(
    State(database): State<Database>,
    claim: Claim,
    amount: String,
) -> Result<(StatusCode, String), Failed> {
    let mut client = database.connect().await?;
    let transaction = client.transaction().await?;
    let paid = "INSERT INTO payments (amount) VALUES ($1) RETURNING number";
    let number: i64 = transaction.query_one(paid, &[&amount]).await?.get(0);
    let body = format!("payment {number}: {amount}\n");
    // The primary key makes a second payment impossible, whoever believes to hold the claim.
    let answer =
        "INSERT INTO answers (scope, key, fingerprint, status, body) VALUES ($1, $2, $3, 201, $4)";
    let (scope, key) = (claim.scope(), claim.key());
    transaction
        .execute(
            answer,
            &[&scope, &key, &claim.fingerprint(), &body.as_bytes()],
        )
        .await?;
    transaction.commit().await?;
    Ok((StatusCode::CREATED, body))
}

/// Connects for each use. A real service has a pool.
#[derive(Clone)]
struct Database(String);

impl Database {
    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The answer of a request that was committed.
    async fn recall(&self, claim: &Claim) -> Result<Option<Recalled>, BoxError> {
        let find = "SELECT fingerprint, status, body FROM answers WHERE scope = $1 AND key = $2";
        let (scope, key) = (claim.scope(), claim.key());
        let rows = self.connect().await?.query(find, &[&scope, &key]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let status = u16::try_from(row.get::<_, i32>(1))?;
        let answer = Response::builder()
            .status(status)
            .body(row.get::<_, Vec<u8>>(2))?;
        Ok(Some(Recalled::new(row.get::<_, &[u8]>(0), answer)))
    }
}

/// Whatever has failed, the client may send the request again.
struct Failed(tokio_postgres::Error);

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", self.0)).into_response()
    }
}
