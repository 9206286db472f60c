//! The type of a metric, and how a metric is recorded.
//!
//! A metric is looked up in the recorder each time, because the recorder may be installed after the
//! first lock, and tests have recorders of their own. The look-up allocates nothing: the keys of
//! all label values are made once.
//!
//! The keys of a metric with two labels, in the order of their indices:
//!
//! ```text
//! distributed_lock_connects_total   labels: connection [calls, hints], result [connected, failed]
//! index 0: calls, connected   1: calls, failed   2: hints, connected   3: hints, failed
//! ```

#[cfg(feature = "metrics")]
use std::{sync::OnceLock, time::Duration};

#[cfg(feature = "metrics")]
use metrics::{Key, Label, Level, Metadata, Unit, with_recorder};

/// The values of a label.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values {
    pub(crate) name: &'static str,
    pub(crate) texts: &'static [&'static str],
}

/// A metric with all of its label values.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [Values],
    pub(crate) help: &'static str,
    /// One key for each combination of label values. The value of the last label changes first.
    #[cfg(feature = "metrics")]
    keys: OnceLock<Box<[Key]>>,
}

/// The kind of a metric, which also tells its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// A histogram of durations, in seconds.
    Seconds,
}

impl Metric {
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        labels: &'static [Values],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
            #[cfg(feature = "metrics")]
            keys: OnceLock::new(),
        }
    }
}

#[cfg(feature = "metrics")]
static METADATA: Metadata<'static> =
    Metadata::new("tower_distributed_lock", Level::INFO, Some(module_path!()));

#[cfg(feature = "metrics")]
impl Metric {
    /// Adds one. `values` has an index into the values of each label.
    pub(crate) fn count(&self, values: &[usize]) {
        let key = self.key(values);
        with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
    }

    /// Adds one to the counter with this value of its only label. A value that is not listed is not
    /// counted.
    pub(crate) fn count_named(&self, value: &str) {
        let values = self.labels[0].texts;
        if let Some(index) = values.iter().position(|listed| *listed == value) {
            self.count(&[index]);
        }
    }

    /// Records a duration. `values` has an index into the values of each label.
    pub(crate) fn record(&self, duration: Duration, values: &[usize]) {
        let key = self.key(values);
        with_recorder(|recorder| {
            let histogram = recorder.register_histogram(key, &METADATA);
            histogram.record(duration.as_secs_f64());
        });
    }

    /// Sets a gauge, which has no label.
    pub(crate) fn set(&self, value: usize) {
        let key = self.key(&[]);
        #[allow(clippy::cast_precision_loss)] // no count is that large
        with_recorder(|recorder| recorder.register_gauge(key, &METADATA).set(value as f64));
    }

    /// The key of a combination of label values.
    fn key(&self, values: &[usize]) -> &Key {
        let keys = self.keys.get_or_init(|| self.make_keys());
        let labels = self.labels.iter().zip(values);
        &keys[labels.fold(0, |index, (label, value)| index * label.texts.len() + value)]
    }

    /// Makes the keys of all combinations of label values.
    fn make_keys(&self) -> Box<[Key]> {
        let mut combinations: Vec<Vec<Label>> = vec![Vec::new()];
        for label in self.labels {
            let with_each = |labels: Vec<Label>| {
                label.texts.iter().map(move |text| {
                    let last = Label::from_static_parts(label.name, text);
                    labels.iter().cloned().chain([last]).collect()
                })
            };
            combinations = combinations.into_iter().flat_map(with_each).collect();
        }
        let keys = combinations.into_iter();
        keys.map(|labels| Key::from_parts(self.name, labels))
            .collect()
    }

    /// Gives the description and the unit to the recorder, if one is installed.
    pub(crate) fn describe(&self) {
        let (name, help) = (self.name.into(), self.help.into());
        with_recorder(|recorder| match self.kind {
            Kind::Counter => recorder.describe_counter(name, Some(Unit::Count), help),
            Kind::Gauge => recorder.describe_gauge(name, Some(Unit::Count), help),
            Kind::Seconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        });
    }
}
