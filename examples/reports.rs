//! Reports that many read and few write, and exports of which only a few run at a time, in a fleet
//! of replicas.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `PORT` | 3000 | where to listen; 0 picks a free port |
//! | `STORE` | `memory` | where the locks are: `memory`, or a Redis URL |
//! | `REPORTS` | `reports` in the system's folder for temporary files | the folder of the reports, which all replicas share |
//! | `EXPORTS` | 4 | how many exports run at a time in the whole fleet |
//! | `LEASE_MS` | 30000 | how long a crashed replica keeps its keys |
//! | `WAIT_MS` | 5000 | how long a request waits for its turn |
//!
//! - `GET /reports/{id}?work_ms=N` reads the chapters of a report; reads run side by side
//! - `PUT /reports/{id}?work_ms=N` with a text writes one chapter after another; no read sees half
//!   a report
//! - `POST /exports?work_ms=N` does nothing but take its time
//!
//! ```sh
//! curl -X PUT '127.0.0.1:3000/reports/7?work_ms=1000' -d first & sleep 0.5; curl 127.0.0.1:3000/reports/7; wait
//! for n in 1 2 3 4 5 6; do curl -X POST '127.0.0.1:3000/exports?work_ms=2000' & done; wait
//! ```

#[path = "reports/shelf.rs"]
mod shelf;

use std::{env, error::Error, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use shelf::{Chapter, Shelf};
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, Locks, key,
    store::{MemoryStore, RedisStore},
};

type BoxError = Box<dyn Error + Send + Sync>;

/// How long a step of the work takes.
#[derive(Deserialize)]
struct Work {
    #[serde(default)]
    work_ms: u64,
}

#[derive(Serialize)]
struct Report {
    /// The token of the turn that has read the report.
    token: u64,
    chapters: Vec<Chapter>,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let lease = Duration::from_millis(setting("LEASE_MS", 30_000)?);
    let wait = Duration::from_millis(setting("WAIT_MS", 5_000)?);
    let locks = match setting("STORE", "memory".to_owned())?.as_str() {
        "memory" => Locks::builder(MemoryStore::new()),
        url => Locks::builder(RedisStore::connect(url).await?),
    };
    let locks = locks.lease(lease).build()?;

    let report =
        DistributedLockLayer::new(locks.clone(), key::name("report").param_as::<u64>("id"));
    let export = DistributedLockLayer::new(locks.clone(), key::name("exports"));
    let app = Router::new()
        .route(
            "/reports/{id}",
            get(read)
                .put(write)
                .route_layer(report.shared_when_safe().wait(wait)),
        )
        .route(
            "/exports",
            post(run_export).route_layer(export.permits(setting("EXPORTS", 4)?).wait(wait)),
        )
        .with_state(Shelf::open(setting(
            "REPORTS",
            env::temp_dir().join("reports").display().to_string(),
        )?)?);

    let port: u16 = setting("PORT", 3000)?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    locks.close(Duration::from_secs(10)).await;
    Ok(())
}

/// Runs beside other reads of the same report, and beside no write.
async fn read(
    State(shelf): State<Shelf>,
    Path(id): Path<u64>,
    Query(work): Query<Work>,
    guard: LockGuard,
) -> Result<Json<Report>, Failure> {
    let step = Duration::from_millis(work.work_ms);
    let chapters = shelf.read(id, step).await?;
    let token = guard.token();
    Ok(Json(Report { token, chapters }))
}

/// Has the report alone while writing. The check of the new report shares it with reads that wait
/// by then.
async fn write(
    State(shelf): State<Shelf>,
    Path(id): Path<u64>,
    Query(work): Query<Work>,
    guard: LockGuard,
    text: String,
) -> Result<Json<Report>, Failure> {
    let (token, step) = (guard.token(), Duration::from_millis(work.work_ms));
    shelf.write(id, token, &text, step).await?;
    guard.downgrade().await?;
    let chapters = shelf.read(id, Duration::ZERO).await?;
    Ok(Json(Report { token, chapters }))
}

/// One of a few in the whole fleet.
async fn run_export(
    State(shelf): State<Shelf>,
    Query(work): Query<Work>,
    guard: LockGuard,
) -> Result<String, Failure> {
    let _visit = shelf.visit("export")?;
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    Ok(format!(
        "exported, {} with token {}\n",
        guard.mode(),
        guard.token()
    ))
}

/// A folder that cannot be used, or a lock that was lost.
struct Failure(BoxError);

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}

fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    default: T,
) -> Result<T, BoxError> {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|error| format!("{name}={text}: {error}").into()),
        Err(_) => Ok(default),
    }
}
