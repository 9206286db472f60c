//! Payments that happen exactly once, whatever crashes, with nothing but PostgreSQL: the locks, the
//! answers of earlier requests and the payments are in one database, and in one transaction.
//!
//! Two commands. The first one finds or starts a server:
//! ```text
//! examples/payments/database
//! cargo run --example payments --features postgres
//! ```
//! Pay, as often as you like: the same answer, from one payment. Kill the process in between, or
//! stop the server (`examples/payments/database stop`) and start it again: still the same.
//! ```text
//! curl -i 127.0.0.1:3000/accounts/7/payments -H 'x-tenant-id: acme' -H 'idempotency-key: order-17' -d 5
//! ```
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `DATABASE` | the server that the first command starts | may lead to a pooler in transaction mode |
//! | `LISTEN` | `DATABASE` | the server itself, if `DATABASE` leads to a pooler |
//! | `PORT` | 3000 | where to listen; 0 picks a free port |
//! | `LEASE_MS` | 30000 | how long a crashed process keeps its keys |

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::{Response, StatusCode},
    response::IntoResponse,
    routing::post,
};
use sqlx::{
    PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tower_distributed_lock::{
    IdempotencyLayer, Locks,
    idempotency::{Claim, Keep},
    key,
    store::{Fence, KeepAnswer, PostgresStore},
};

const SERVER: &str = "postgres://postgres@127.0.0.1:54329/postgres";

/// Every account starts with so much.
const FIRST_BALANCE: i64 = 1_000_000;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS accounts (id text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payments (
    number bigint GENERATED ALWAYS AS IDENTITY, request text NOT NULL, account text NOT NULL, balance bigint NOT NULL
);";

type BoxError = Box<dyn Error + Send + Sync>;

#[derive(Clone)]
struct App {
    pool: PgPool,
    locks: Locks,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let database = env::var("DATABASE").unwrap_or_else(|_| SERVER.into());
    let listen = env::var("LISTEN").unwrap_or_else(|_| database.clone());
    let lease = env::var("LEASE_MS").map_or(Ok(30_000), |lease| lease.parse())?;
    // No statement is prepared for later: a pooler gives each transaction another connection.
    let options = database.parse::<PgConnectOptions>()?;
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options.statement_cache_capacity(0));

    // A guard's fence needs a second row for each lock.
    let store = PostgresStore::builder(&database)
        .listen_url(listen)
        .fenced(true)
        .build()?;
    // A real service does both in its migrations.
    if env::var_os("MIGRATED").is_none() {
        store.migrate().await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
    }
    let locks = Locks::builder(store)
        .lease(Duration::from_millis(lease))
        .build()?;
    let idempotency = IdempotencyLayer::new(locks.clone(), key::request().header("x-tenant-id"))
        .required()
        // After an error, the next try finds out whether the transaction was committed.
        .keep(Keep::when_errors_do_nothing);
    let app = Router::new()
        .route("/accounts/{account}/payments", post(pay))
        .route_layer(idempotency)
        .with_state(App {
            pool,
            locks: locks.clone(),
        });

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
    State(app): State<App>,
    Path(account): Path<String>,
    claim: Claim,
    amount: String,
) -> Result<Response<String>, Failed> {
    let amount: i64 = amount.trim().parse()?;
    // Waits without a connection. An account has one payment at a time in the whole fleet.
    let guard = app.locks.lock(format!("accounts/{account}")).await?;

    let mut transaction = app.pool.begin().await?;
    // From here to the end of the transaction nobody else gets this account, even if this process
    // is stopped for longer than its lease. So the balance may be read, judged and written.
    fence(&mut transaction, &guard.fence()?).await?;
    let read = "SELECT balance FROM accounts WHERE id = $1";
    let read = sqlx::query_scalar(read).bind(&account);
    let balance: Option<i64> = read.fetch_optional(&mut *transaction).await?;
    let balance = balance.unwrap_or(FIRST_BALANCE) - amount;
    if balance < 0 {
        let refusal = Response::builder().status(StatusCode::UNPROCESSABLE_ENTITY);
        return Ok(refusal.body("the balance is too low\n".to_owned())?);
    }
    let write = "INSERT INTO accounts VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET balance = $2";
    let write = sqlx::query(write).bind(&account).bind(balance);
    write.execute(&mut *transaction).await?;
    let insert =
        "INSERT INTO payments (request, account, balance) VALUES ($1, $2, $3) RETURNING number";
    let insert = sqlx::query_scalar(insert).bind(claim.key());
    let insert = insert.bind(&account).bind(balance);
    let number: i64 = insert.fetch_one(&mut *transaction).await?;

    let answer = Response::builder().status(StatusCode::CREATED);
    let answer = answer.body(format!("payment {number}, balance {balance}\n"))?;
    // The answer is stored with the payment, or neither is.
    keep(&mut transaction, &claim.keep(&answer)?).await?;
    transaction.commit().await?;
    guard.release().await?;
    Ok(answer)
}

async fn fence(
    transaction: &mut Transaction<'_, Postgres>,
    fence: &Fence,
) -> Result<(), sqlx::Error> {
    let sql = fence.sql();
    let call = sqlx::query(&sql).bind(fence.key()).bind(fence.owner());
    call.bind(fence.token()).execute(&mut **transaction).await?;
    Ok(())
}

async fn keep(
    transaction: &mut Transaction<'_, Postgres>,
    keep: &KeepAnswer,
) -> Result<(), sqlx::Error> {
    let (sql, fence) = (keep.sql(), keep.fence());
    let call = sqlx::query(&sql).bind(fence.key()).bind(fence.owner());
    let call = call.bind(fence.token()).bind(keep.content());
    call.bind(keep.retain_ms())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Whatever has failed, the client may send the request again.
struct Failed(BoxError);

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", self.0)).into_response()
    }
}
