//! Leftovers of a run: none in the store and in the processes; no panic, no growth.

use std::{collections::BTreeMap, time::Duration};

use super::{Class, Facts, Violation};
use crate::record::{Event, Sample};

/// Shorter runs of a process say nothing about growth.
const SAMPLES: usize = 20;
/// How much a process may grow after its first quarter: allocators keep some of the memory of a
/// burst.
const MEMORY_KB: u64 = 8 * 1024;
const DESCRIPTORS: u64 = 16;

pub(super) fn check(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    let mut report = |class, what| violations.push(Violation { class, what });
    let mut samples: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
    let (mut stats, mut ended) = (0, 0);
    for event in facts.events {
        match event {
            Event::InStore { name, ttl_ms, .. } if is_left_over(name, *ttl_ms) => {
                report(Class::LeftInStore, format!("{event:?}"));
            }
            Event::Stats {
                keys,
                waiting,
                leases,
                calls,
                ..
            } => {
                stats += 1;
                if keys + waiting + leases + calls > 0 {
                    report(Class::LeftInProcess, format!("{event:?}"));
                }
            }
            Event::Stderr { line } if line.contains("panicked") => {
                report(Class::Panic, line.clone());
            }
            Event::Ended { well, .. } => {
                ended += 1;
                if !well {
                    report(Class::BadEnd, format!("{event:?}"));
                }
            }
            Event::Sample(sample) => samples.entry(sample.process).or_default().push(sample),
            _ => {}
        }
    }
    if stats < facts.run.replicas || ended < facts.run.replicas {
        let what = format!("the last words of {stats} and the ends of {ended} replicas");
        report(Class::Incomplete, what);
    }
    for (process, samples) in samples {
        growth(process, &samples, &mut report);
    }
}

/// Token counters stay for ever, and records of idempotent requests for a day; anything else is
/// left over.
pub(crate) fn is_left_over(name: &str, ttl_ms: Option<u64>) -> bool {
    const HOUR: u64 = Duration::from_secs(3600).as_millis() as u64;
    let is_counter = name.ends_with(":fence");
    let is_record = name.contains(":lock:") && ttl_ms.is_some_and(|ttl| ttl > HOUR);
    !is_counter && !is_record
}

/// Compares the last quarter of a process's life with its second quarter; the first one is for
/// warming up.
fn growth(process: u32, samples: &[&Sample], report: &mut impl FnMut(Class, String)) {
    let quarter = samples.len() / 4;
    if samples.len() < SAMPLES {
        return;
    }
    let most = |samples: &[&Sample], size: fn(&Sample) -> u64| {
        let sizes = samples.iter().map(|sample| size(sample));
        sizes.max().unwrap_or(0)
    };
    let (early, late) = (
        &samples[quarter..2 * quarter],
        &samples[samples.len() - quarter..],
    );
    let memory = |sample: &Sample| sample.memory_kb;
    let (before, after) = (most(early, memory), most(late, memory));
    if after > before + before / 5 + MEMORY_KB {
        report(
            Class::MemoryGrew,
            format!("process {process}: {before} kB, later {after} kB"),
        );
    }
    let descriptors = |sample: &Sample| sample.descriptors;
    let (before, after) = (most(early, descriptors), most(late, descriptors));
    if after > before + DESCRIPTORS {
        report(
            Class::DescriptorsGrew,
            format!("process {process}: {before}, later {after}"),
        );
    }
}
