//! A service with an endpoint for Prometheus. Run it, then try the curl lines that it prints.
//!
//! `docs/grafana.json` is a dashboard for these metrics, and the guide's chapter *Metrics* explains
//! them.

use std::{env, error::Error, time::Duration};

use axum::{Router, extract::Path, routing::get, routing::post};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tower_distributed_lock::{DistributedLockLayer, Locks, key};

/// From a quick call to Redis to a long turn, in seconds.
const BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0,
];

const TRY: &str = "\
Three transfers on one account, one after another:
  for n in 1 2 3; do curl -s -X POST 127.0.0.1:3000/accounts/7/transfers & done; wait
Their metrics:
  curl -s 127.0.0.1:3000/metrics | grep -v '^#'
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Buckets, because those of several instances can be added up. Without them, the exporter makes
    // summaries.
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)?
        .install_recorder()?;

    let locks = match env::var("REDIS_URL") {
        Ok(url) => Locks::redis(url).await?,
        Err(_) => Locks::in_memory(),
    };
    let account = key::name("account").param("id");
    let scraped = locks.clone();
    let scrape = move || async move {
        // Gauges are counted when they are scraped. `run_upkeep` bounds the memory of the
        // histograms.
        Locks::record_gauges([&scraped]);
        prometheus.run_upkeep();
        prometheus.render()
    };
    let app = Router::new()
        .route("/accounts/{id}/transfers", post(transfer))
        .route_layer(DistributedLockLayer::new(locks.clone(), account))
        .route("/metrics", get(scrape));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}\n\n{TRY}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

/// Slow on purpose, so that transfers on one account wait for each other.
async fn transfer(Path(id): Path<String>) -> String {
    tokio::time::sleep(Duration::from_millis(500)).await;
    format!("account {id}: done\n")
}
