//! The table of metrics against its copies: the guide, the dashboard, and the values that other
//! modules pass.

use std::collections::BTreeSet;

use super::{
    metric::{Kind, Metric},
    metrics::{HINT, LOSS, REFUSAL, all},
};
use crate::{LockKey, Loss, store::Hint};

const GUIDE: &str = include_str!("../guide/metrics.rs");
const DASHBOARD: &str = include_str!("../../docs/grafana.json");

/// The rows of the guide's tables, as trimmed cells.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let rows = GUIDE.lines().filter_map(|line| line.strip_prefix("//! | "));
    rows.map(|row| {
        row.trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect()
    })
}

/// The parts of a text between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn is_metric(name: &str) -> bool {
    all().any(|metric| metric.name == name)
}

#[test]
fn the_guide_lists_every_metric_with_its_kind_unit_and_labels() {
    let listed: Vec<Vec<&str>> = rows()
        .filter(|cells| cells.len() == 5 && quoted(cells[0]).len() == 1)
        .collect();
    let expected = all().map(|metric| {
        let (kind, unit) = match metric.kind {
            Kind::Counter => ("counter", "count"),
            Kind::Gauge => ("gauge", "count"),
            Kind::Seconds => ("histogram", "seconds"),
        };
        let labels = metric.labels.iter().map(|label| label.name);
        (metric.name, kind, unit, labels.collect::<Vec<_>>())
    });
    let found = listed
        .iter()
        .map(|cells| (quoted(cells[0])[0], cells[1], cells[2], quoted(cells[3])));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    for (cells, metric) in listed.iter().zip(all()) {
        assert!(
            !cells[4].is_empty() && !metric.help.is_empty(),
            "{}",
            metric.name
        );
    }
}

#[test]
fn the_guide_lists_every_value_of_every_label() {
    for metric in all() {
        for label in metric.labels {
            // The codes of refusals have a page of their own.
            if label.texts == REFUSAL.texts {
                continue;
            }
            let is_row = |cells: &Vec<&str>| {
                cells.len() == 3
                    && quoted(cells[0]).contains(&metric.name)
                    && quoted(cells[1]) == [label.name]
            };
            let row = rows().find(is_row);
            let row = row.unwrap_or_else(|| panic!("no values of {} {}", metric.name, label.name));
            let listed: Vec<&str> = quoted(row[2])
                .into_iter()
                .filter(|text| label.texts.contains(text))
                .collect();
            assert_eq!(listed, label.texts, "{} {}", metric.name, label.name);
        }
    }
}

#[test]
fn the_dashboard_queries_metrics_that_exist_and_all_of_them() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queried = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let names = words.filter(|word| word.starts_with("distributed_lock_"));
            queried.extend(names.map(base_name));
        }
    }
    for name in &queried {
        assert!(is_metric(name), "the dashboard queries {name}");
    }
    for metric in all() {
        assert!(
            queried.contains(metric.name),
            "no panel has {}",
            metric.name
        );
    }
}

/// The name of a histogram, without the suffix of one of its series.
fn base_name(series: &str) -> &str {
    let suffixes = ["_bucket", "_count", "_sum"];
    let name = suffixes
        .iter()
        .find_map(|suffix| series.strip_suffix(suffix));
    match name {
        Some(name) if all().any(|metric| is_histogram(metric, name)) => name,
        _ => series,
    }
}

fn is_histogram(metric: &Metric, name: &str) -> bool {
    metric.name == name && metric.kind == Kind::Seconds
}

#[test]
fn the_operating_chapter_names_metrics_that_exist() {
    let chapter = include_str!("../guide/operating.rs");
    let names: Vec<&str> = chapter
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("distributed_lock_"))
        .collect();
    assert!(!names.is_empty());
    for name in names {
        assert!(is_metric(base_name(name)), "{name}");
    }
}

/// The rows of `events!` whose level is info or higher, as the name and the levels.
fn loud_events() -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = include_str!("events.rs").lines().filter_map(|line| {
        let (levels, rest) = line.trim().split_once(" \"")?;
        let levels = levels.split(' ').filter(|word| LEVELS.contains(word));
        let name = rest.split(['"', ':']).next()?;
        Some((name, levels.collect::<Vec<_>>()))
    });
    rows.filter(|(_, levels)| levels.iter().any(|level| *level != "debug"))
        .collect()
}

const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

#[test]
fn the_operating_chapter_lists_every_event_from_info_on_with_its_level() {
    let chapter = include_str!("../guide/operating.rs");
    let events = loud_events();
    assert!(events.len() > 15, "{events:?}");
    for (name, levels) in events {
        let start = format!("//! | `{name}` | ");
        let row = chapter.lines().find_map(|line| line.strip_prefix(&start));
        let row = row.unwrap_or_else(|| panic!("no row of {name}"));
        let listed = row.split('|').next().unwrap_or_default();
        for level in levels.into_iter().filter(|level| *level != "debug") {
            assert!(listed.contains(level), "{name}: {listed}, and not {level}");
        }
    }
}

#[test]
fn every_loss_and_every_hint_is_counted() {
    for loss in [
        Loss::NotOurs,
        Loss::Expired,
        Loss::GaveUp,
        Loss::MaxHold,
        Loss::Closed,
    ] {
        assert!(LOSS.texts.contains(&loss.code()), "{loss:?}");
    }
    let key = LockKey::new("k").unwrap();
    for hint in [
        Hint::Free(key.clone()),
        Hint::Next(key.clone()),
        Hint::Wanted(key),
        Hint::Listening,
        Hint::Reconnected,
        #[cfg(feature = "redis")]
        Hint::Moved(crate::store::MovedKeys::new(Vec::new())),
    ] {
        assert!(HINT.texts.contains(&hint.kind()), "{hint:?}");
    }
}
