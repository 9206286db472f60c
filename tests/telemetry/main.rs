//! Metrics, as a Prometheus exporter renders them, and spans, as a subscriber sees them.

mod calls;
mod layers;
mod outage;
mod scrape;
mod spans;
mod turns;

use test_support as support;
