//! A recorder for the thread of one test, and its text as Prometheus gets it.

use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

/// Records the metrics of the current thread. All tests have a runtime on their own thread.
pub(crate) struct Scrape {
    recorder: &'static PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Scrape {
    /// Creates a recorder, which lives as long as the test program: the guard of a local recorder
    /// borrows it.
    pub(crate) fn new() -> Self {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[0.01, 1.0, 100.0])
            .unwrap();
        let recorder: &'static _ = Box::leak(Box::new(builder.build_recorder()));
        Self {
            recorder,
            handle: recorder.handle(),
        }
    }

    /// Starts to record, until the guard is dropped.
    pub(crate) fn start(&self) -> metrics::LocalRecorderGuard<'static> {
        metrics::set_default_local_recorder(self.recorder)
    }

    pub(crate) fn text(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// The value of a series, such as `turns_total{outcome="granted"}`, or 0 if there is none.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let series = format!("distributed_lock_{series} ");
        let text = self.text();
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Checks the values of several series.
    #[track_caller]
    pub(crate) fn expect(&self, values: &[(&str, f64)]) {
        for (series, expected) in values {
            let found = self.value(series);
            assert_eq!(found, *expected, "{series} in\n{}", self.text());
        }
    }
}
