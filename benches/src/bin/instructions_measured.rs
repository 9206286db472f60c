//! As `instructions_ours`, with a recorder for the metrics: `instructions_measured redis://127.0.0.1/ N`.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tower_distributed_lock_benches::{instructions::repeat, peers::Dropped};

fn main() {
    let buckets = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0,
    ];
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &buckets)
        .and_then(PrometheusBuilder::install_recorder)
        .expect("the only recorder");
    repeat(Dropped::patient);
}
