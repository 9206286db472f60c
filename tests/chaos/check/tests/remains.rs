//! Leftovers, panics and growth.

use super::*;

#[test]
fn locks_and_queues_that_are_left_are_found_counters_and_records_are_not() {
    let with = |name: &str, ttl_ms| {
        let mut made = good();
        made.others.push(Event::InStore {
            node: 0,
            name: name.into(),
            ttl_ms,
        });
        made
    };
    let day = Some(23 * 3600 * 1000);
    assert_found(with("tdl:{b1}:lock:a", Some(900)), Class::LeftInStore);
    assert_found(with("tdl:{b1}:lock:a", None), Class::LeftInStore);
    assert_found(with("tdl:{b1}:queue:a", day), Class::LeftInStore);
    assert_good(with("tdl:{b1}:lock:a", day));
    assert_good(with("tdl:{b1}:fence", None));
}

#[test]
fn work_that_is_left_in_a_replica_is_found() {
    for busy in 0..4 {
        let is = |field| u64::from(busy == field);
        let mut made = good();
        made.others.push(Event::Stats {
            replica: 0,
            keys: is(0),
            waiting: is(1),
            leases: is(2),
            calls: is(3),
        });
        assert_found(made, Class::LeftInProcess);
    }
}

#[test]
fn panics_and_bad_ends_are_found() {
    let mut made = good();
    let line = "thread 'main' panicked at src/lib.rs".into();
    made.others.push(Event::Stderr { line });
    assert_found(made, Class::Panic);
    let mut made = good();
    made.others.push(Event::Ended {
        replica: 0,
        well: false,
    });
    assert_found(made, Class::BadEnd);
}

#[test]
fn growth_is_found() {
    let growing = |size: fn(u64) -> Event| {
        let mut made = good();
        made.others
            .retain(|event| !matches!(event, Event::Sample(_)));
        made.others.extend((0..40).map(size));
        made
    };
    let memory = growing(|n| sample(n * SECOND / 4, 20_000 + n * 1_000, 30));
    assert_found(memory, Class::MemoryGrew);
    let descriptors = growing(|n| sample(n * SECOND / 4, 20_000, 30 + n));
    assert_found(descriptors, Class::DescriptorsGrew);
}
