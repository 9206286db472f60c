//! A ledger that several replicas share: deposits on one account run one at a time in the whole
//! fleet, and a stale writer is refused by its fencing token.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `PORT` | 3000 | where to listen; 0 picks a free port |
//! | `STORE` | `memory` | where the locks are: `memory`, a Redis URL, or a quorum of 3 or 5 with commas in between |
//! | `LEDGER` | the first of `STORE` | where the ledger itself is: `memory`, or a Redis URL |
//! | `LEASE_MS` | 30000 | how long a crashed replica keeps its keys |
//! | `WAIT_MS` | 5000 | how long a request waits for its turn |
//! | `GRACE_MS` | 10000 | how long handlers may go on after SIGTERM |
//! | `LOSS` | `cancel` | what a lost lease does to a handler: `cancel` or `finish` |
//!
//! - `POST /accounts/{id}/deposits?work_ms=N` with `{"amount": 5}` and `x-tenant-id`;
//!   `&unfenced=true` does what a ledger does that compares no tokens, to see what such a ledger
//!   loses
//! - `GET /accounts/{id}` and `GET /accounts/{id}/entries` with `x-tenant-id`
//! - `POST /payments?work_ms=N` with `{"account": "a", "amount": 5}`, `x-tenant-id` and
//!   `idempotency-key`
//! - `GET /payments` with `x-tenant-id`: how many were really made, and to which accounts
//! - `GET /stats`: what the replica's locks are doing

#[path = "ledger/book.rs"]
mod book;

use std::{env, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use book::{Account, Book, Entry};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::timeout};
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, OnLoss, key,
    lock::{AllGuards, Fenced},
    store::{MemoryStore, QuorumStore, RedisStore},
};

/// Who asks. A real service gets it from its authentication.
#[derive(Clone)]
struct Tenant(String);

impl Tenant {
    /// Where its account is kept. The length keeps one tenant from naming another's.
    fn account(&self, id: &str) -> String {
        format!("{}:{self}:{id}", self.0.len())
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone)]
struct Ledger {
    book: Book,
    locks: Locks,
    replica: String,
}

#[derive(Deserialize)]
struct Work {
    #[serde(default)]
    work_ms: u64,
    #[serde(default)]
    unfenced: bool,
}

#[derive(Deserialize)]
struct Deposit {
    amount: i64,
    /// The client's name for the deposit, if it has one.
    #[serde(default)]
    id: String,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    account: Account,
    replica: String,
}

#[derive(Serialize)]
struct Load {
    keys: usize,
    waiting: usize,
    leases: usize,
    calls: usize,
}

#[derive(Deserialize)]
struct Payment {
    account: String,
    amount: i64,
}

#[derive(Serialize)]
struct Paid {
    id: String,
    account: String,
    amount: i64,
    /// None for a payment that was sent without an `Idempotency-Key`.
    token: Option<u64>,
}

#[derive(Serialize)]
struct Payments {
    count: usize,
    accounts: Vec<String>,
}

#[tokio::main]
async fn main() -> book::Result<()> {
    let lease = Duration::from_millis(setting("LEASE_MS", 30_000)?);
    let wait = Duration::from_millis(setting("WAIT_MS", 5_000)?);
    let loss = match setting("LOSS", "cancel".to_owned())?.as_str() {
        "cancel" => OnLoss::Cancel,
        "finish" => OnLoss::Finish,
        other => return Err(format!("LOSS is `cancel` or `finish`, not `{other}`").into()),
    };
    let grace = Duration::from_millis(setting("GRACE_MS", 10_000)?);
    let store: String = setting("STORE", "memory".to_owned())?;
    let nodes: Vec<&str> = store.split(',').collect();
    let locks = match nodes[..] {
        ["memory"] => Locks::builder(MemoryStore::new()),
        [url] => Locks::builder(RedisStore::connect(url).await?),
        _ => {
            // Not all of them need to be there: each is connected to at first use.
            let nodes = nodes.iter().map(|url| RedisStore::builder(url).build());
            let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
            Locks::builder(QuorumStore::new(nodes)?)
        }
    };
    let locks = locks.lease(lease).build()?;
    let book = match setting("LEDGER", nodes[0].to_owned())?.as_str() {
        "memory" => Book::in_memory(),
        url => Book::in_redis(url).await?,
    };
    let replica = format!("replica-{}", std::process::id());

    let account = key::name("account")
        .extension::<Tenant>("tenant")
        .param("id");
    let lock = DistributedLockLayer::new(locks.clone(), account)
        .wait(wait)
        .on_lease_loss(loss);
    let once = IdempotencyLayer::new(locks.clone(), key::request().extension::<Tenant>("tenant"))
        .wait(wait);
    let app = Router::new()
        .route("/payments", post(pay).route_layer(once).get(payments))
        .route("/accounts/{id}/deposits", post(deposit).route_layer(lock))
        .route("/accounts/{id}", get(look))
        .route("/accounts/{id}/entries", get(entries))
        .route_layer(from_fn(tenant))
        .route("/stats", get(stats))
        .with_state(Ledger {
            book,
            locks: locks.clone(),
            replica,
        });

    let port: u16 = setting("PORT", 3000)?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let mut serving = tokio::spawn(serving.into_future());
    tokio::select! {
        served = &mut serving => return Ok(served??),
        () = terminated() => drop(stop),
    }
    // While handlers finish, requests that wait for a turn are refused.
    let closed = locks.close(grace).await;
    if !closed.is_complete() {
        eprintln!("still running: {} handlers", closed.stats.running);
    }
    // The last answers are on their way. A client that does not read its answer is not waited for.
    let _ = timeout(Duration::from_secs(1), serving).await;
    Ok(())
}

async fn deposit(
    State(ledger): State<Ledger>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
    Query(work): Query<Work>,
    guard: LockGuard,
    Json(deposit): Json<Deposit>,
) -> Result<Response, Failure> {
    let account = tenant.account(&id);
    let stale = || {
        (
            StatusCode::CONFLICT,
            "a later turn has used the account: nothing was written",
        )
    };
    let shown = (!work.unfenced).then(|| guard.token());
    let Some(found) = ledger.book.open(&account, shown).await? else {
        return Ok(stale().into_response());
    };
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    let new = Account {
        balance: found.balance + deposit.amount,
        deposits: found.deposits + 1,
        token: guard.token(),
        last: deposit.id.clone(),
    };
    let entry = Entry {
        id: deposit.id,
        previous: found.last,
        token: new.token,
        balance: new.balance,
    };
    let written = ledger.book.write(&account, shown, (&new, &entry));
    if !written.await? {
        return Ok(stale().into_response());
    }
    let mut response = Json(Answer {
        account: new,
        replica: ledger.replica,
    })
    .into_response();
    if shown.is_some() {
        // The ledger has compared tokens, so this is true even if the lease was lost in the
        // meantime.
        response.extensions_mut().insert(Fenced);
    }
    Ok(response)
}

async fn pay(
    State(ledger): State<Ledger>,
    Extension(tenant): Extension<Tenant>,
    Query(work): Query<Work>,
    guards: AllGuards,
    Json(payment): Json<Payment>,
) -> Result<Response, Failure> {
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    let number = ledger.book.pay(&tenant.0, &payment.account).await?;
    let paid = Paid {
        id: format!("payment-{number}"),
        account: payment.account,
        amount: payment.amount,
        token: guards.named("idempotency").ok().map(|guard| guard.token()),
    };
    let location = [("location", format!("/payments/{}", paid.id))];
    Ok((StatusCode::CREATED, location, Json(paid)).into_response())
}

async fn payments(
    State(ledger): State<Ledger>,
    Extension(tenant): Extension<Tenant>,
) -> Result<Json<Payments>, Failure> {
    let accounts = ledger.book.payments(&tenant.0).await?;
    let count = accounts.len();
    Ok(Json(Payments { count, accounts }))
}

async fn look(
    State(ledger): State<Ledger>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Answer>, Failure> {
    let account = ledger.book.look(&tenant.account(&id)).await?;
    Ok(Json(Answer {
        account,
        replica: ledger.replica,
    }))
}

async fn entries(
    State(ledger): State<Ledger>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Entry>>, Failure> {
    Ok(Json(ledger.book.entries(&tenant.account(&id)).await?))
}

async fn stats(State(ledger): State<Ledger>) -> Json<Load> {
    let stats = ledger.locks.stats();
    Json(Load {
        keys: stats.keys,
        waiting: stats.waiting,
        leases: stats.leases,
        calls: stats.calls,
    })
}

async fn tenant(mut request: Request, next: Next) -> Response {
    let header = request
        .headers()
        .get("x-tenant-id")
        .and_then(|value| value.to_str().ok());
    let Some(tenant) = header
        .filter(|tenant| !tenant.is_empty())
        .map(|tenant| Tenant(tenant.to_owned()))
    else {
        return (StatusCode::BAD_REQUEST, "x-tenant-id is missing").into_response();
    };
    request.extensions_mut().insert(tenant);
    next.run(request).await
}

/// A ledger that cannot be reached.
struct Failure(Box<dyn std::error::Error + Send + Sync>);

impl From<Box<dyn std::error::Error + Send + Sync>> for Failure {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (
            StatusCode::BAD_GATEWAY,
            format!("the ledger failed: {}", self.0),
        )
            .into_response()
    }
}

fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    default: T,
) -> book::Result<T> {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|error| format!("{name}={text}: {error}").into()),
        Err(_) => Ok(default),
    }
}

/// SIGTERM, or Ctrl-C at a terminal.
async fn terminated() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut term) = signal(SignalKind::terminate()) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    #[cfg(not(unix))]
    drop(tokio::signal::ctrl_c().await);
}
