//! The store on an engine in memory, whose swaps can be delayed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::*;
use crate::sync::Mutex;

/// Values by key, shared by all stores of a test.
#[derive(Debug, Clone, Default)]
struct InMemory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    values: Mutex<std::collections::BTreeMap<LockKey, Kept>>,
    reads: AtomicUsize,
    writes: AtomicUsize,
    durable_writes: AtomicUsize,
    /// Swaps are left on the way, with an unknown outcome.
    is_slow: AtomicBool,
    /// How far the clock was set forward, in microseconds.
    ahead: AtomicU64,
    late: Mutex<Vec<Swap>>,
}

/// A value with its record.
#[derive(Debug, Clone, Default)]
struct Kept {
    tag: Option<i64>,
    token: u64,
    state: Bytes,
    record: Option<Record>,
}

impl Shared {
    fn reading(&self) -> Reading {
        // Tokio's clock, which is paused, from some day on.
        static BEGAN: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        let since = now().into_std().saturating_duration_since(*BEGAN);
        let ahead = Duration::from_micros(self.ahead.load(Ordering::Relaxed));
        let clock = Moment(1_700_000_000_000_000) + since + ahead;
        Reading {
            sent: now(),
            began: clock,
            clock,
        }
    }

    fn see(&self, key: &LockKey) -> Kept {
        let known = self.values.lock().get(key).cloned();
        known.unwrap_or_default()
    }

    fn make(&self, swap: Swap) -> Result<SwapEnd, Error> {
        let present = self.see(&swap.key);
        let has_record = present.record.is_some();
        if swap.tag.is_none()
            || present.tag != swap.expect
            || (has_record && !matches!(swap.care, Care::Nothing))
        {
            let Kept {
                tag,
                token,
                state,
                record,
            } = present;
            let value = Value::decode(tag, token, state, record)?;
            return Ok(SwapEnd::Stale(value.into()));
        }
        let record = match swap.care {
            Care::Nothing => present.record,
            Care::Record(record) => Some(record),
            _ => None,
        };
        self.writes.fetch_add(1, Ordering::Relaxed);
        let durable = usize::from(swap.is_durable);
        self.durable_writes.fetch_add(durable, Ordering::Relaxed);
        let value = Kept {
            tag: swap.tag,
            token: swap.token,
            state: swap.state,
            record,
        };
        self.values.lock().insert(swap.key, value);
        Ok(SwapEnd::Done)
    }
}

impl Engine for InMemory {
    async fn swap(&self, swap: Swap, _: Instant) -> Outcome<Swapped> {
        // Others come in between.
        tokio::task::yield_now().await;
        if swap.tag.is_none() {
            self.0.reads.fetch_add(1, Ordering::Relaxed);
        } else if self.0.is_slow.load(Ordering::Relaxed) {
            self.0.late.lock().push(swap);
            let error = Error::new(ErrorKind::Unreachable, "no answer");
            return Outcome::Unknown(error);
        }
        let reading = self.0.reading();
        match self.0.make(swap) {
            Ok(end) => Outcome::Answered(Swapped { reading, end }),
            Err(error) => Outcome::Refused(error),
        }
    }

    fn sends_hints(&self) -> bool {
        true
    }
}

const LEASE: Duration = Duration::from_secs(60);

fn store(engine: &InMemory) -> Arc<EngineStore<InMemory>> {
    store_on(engine.clone())
}

fn store_on<E: Engine>(engine: E) -> Arc<EngineStore<E>> {
    let settings = Settings {
        limit: Duration::from_secs(10),
        is_fenced: false,
        label: None,
    };
    EngineStore::new(engine, Home::default(), settings)
}

fn owner() -> Owner {
    Owner {
        instance: Instance::new(),
        attempt: 1,
    }
}

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn attempt(owner: Owner, queueing: Queueing) -> Acquire {
    Acquire {
        key: key(),
        owner,
        lease: LEASE,
        block: 1,
        queueing,
        mode: Mode::Exclusive,
        more: Vec::new(),
        fingerprint: None,
        ends: Vec::new(),
    }
}

const WAIT: Queueing = Queueing::Wait {
    deadline: Duration::from_secs(20),
    head_start: Duration::from_secs(1),
};

async fn ask(store: &Arc<EngineStore<impl Engine>>, owner: Owner, queueing: Queueing) -> Acquired {
    let asked = store.clone().acquire(attempt(owner, queueing)).await;
    asked.into_result().unwrap()
}

async fn free(store: &Arc<EngineStore<impl Engine>>, owner: Owner, in_doubt: bool) -> Released {
    let (answer, outcome) = Answer::channel();
    let release = Release {
        key: key(),
        owner,
        mode: Mode::Exclusive,
        ending: Ending::Free,
        in_doubt,
        lasts: LEASE,
    };
    store.clone().release(release, answer);
    outcome.await.into_result().unwrap()
}

#[tokio::test(start_paused = true)]
async fn processes_that_write_at_the_same_time_are_never_inside_together() {
    let engine = InMemory::default();
    let inside = AtomicBool::new(false);
    let visitors = (0..16).map(async |_| {
        let (store, a) = (store(&engine), owner());
        for _ in 0..10 {
            while !matches!(ask(&store, a, WAIT).await, Acquired::Granted(_)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            assert_eq!(free(&store, a, false).await, Released::Freed);
        }
    });
    join_all(visitors).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_this_process_has_locked_before_is_not_read() {
    let engine = InMemory::default();
    let (store, a) = (store(&engine), owner());
    for _ in 0..3 {
        assert!(matches!(ask(&store, a, WAIT).await, Acquired::Granted(_)));
        free(&store, a, false).await;
    }
    // The first call reads the clock.
    assert_eq!(engine.0.reads.load(Ordering::Relaxed), 1);
    assert_eq!(engine.0.writes.load(Ordering::Relaxed), 6);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_has_written_is_seen_before_the_answer() {
    let engine = InMemory::default();
    let (one, two) = (store(&engine), store(&engine));
    let (a, b) = (owner(), owner());
    assert!(matches!(ask(&one, a, WAIT).await, Acquired::Granted(_)));
    free(&one, a, false).await;
    assert!(matches!(ask(&two, b, WAIT).await, Acquired::Granted(_)));
    // The guess of the first process is a free key.
    assert!(matches!(
        ask(&one, a, Queueing::No).await,
        Acquired::Held(_)
    ));
    free(&two, b, false).await;
    // And now the guess of the second one is.
    assert!(matches!(
        ask(&one, a, Queueing::No).await,
        Acquired::Granted(_)
    ));
    assert_eq!(free(&two, b, false).await, Released::NotOurs);
}

/// Invariant 2.
#[tokio::test(start_paused = true)]
async fn a_guess_is_not_answered_with() {
    let engine = InMemory::default();
    let (one, two) = (store(&engine), store(&engine));
    let (a, b) = (owner(), owner());
    assert!(matches!(ask(&one, a, WAIT).await, Acquired::Granted(_)));
    // The guess of the second process is a free key, and then that of the first one is a held key.
    assert_eq!(free(&two, a, false).await, Released::Freed);
    assert!(matches!(
        ask(&one, b, Queueing::No).await,
        Acquired::Granted(_)
    ));
}

/// Invariant 4.
#[tokio::test(start_paused = true)]
async fn after_a_release_in_doubt_no_earlier_call_takes_effect() {
    for was_used in [true, false] {
        let engine = InMemory::default();
        let (store, before) = (store(&engine), owner());
        if was_used {
            ask(&store, before, WAIT).await;
            free(&store, before, false).await;
        } else {
            // The clock, from another key.
            let other = LockKey::new("other").unwrap();
            store.read(&other, store.deadline()).await.unwrap();
        }
        let a = owner();
        engine.0.is_slow.store(true, Ordering::Relaxed);
        let outcome = store.clone().acquire(attempt(a, WAIT)).await;
        assert!(matches!(outcome, Outcome::Unknown(_)));
        engine.0.is_slow.store(false, Ordering::Relaxed);
        assert_eq!(free(&store, a, true).await, Released::NotOurs);
        let late = engine.0.late.lock().pop().unwrap();
        let late = engine.0.make(late).unwrap();
        assert!(matches!(late, SwapEnd::Stale(_)), "{late:?}");
        assert!(matches!(
            ask(&store, owner(), WAIT).await,
            Acquired::Granted(_)
        ));
    }
}

/// Invariant 3.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_counted_from_before_the_clock_was_set_is_not_answered_with() {
    let engine = InMemory::default();
    let (store, a, b) = (store(&engine), owner(), owner());
    ask(&store, a, WAIT).await;
    free(&store, a, false).await;
    let hour = Duration::from_secs(3600);
    engine
        .0
        .ahead
        .store(hour.as_micros() as u64, Ordering::Relaxed);
    let outcome = store.clone().acquire(attempt(a, WAIT)).await;
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    free(&store, a, true).await;
    assert!(matches!(ask(&store, b, WAIT).await, Acquired::Granted(_)));
    let seen = store.clone().inspect(key()).await.unwrap();
    assert!(seen.holders[0].remaining > LEASE / 2, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn asking_again_is_a_read_until_half_of_the_places_time_is_over() {
    let engine = InMemory::default();
    let (store, a) = (store(&engine), owner());
    ask(&store, owner(), WAIT).await;
    ask(&store, a, WAIT).await;
    let written = engine.0.writes.load(Ordering::Relaxed);
    for _ in 0..9 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(ask(&store, a, WAIT).await, Acquired::Held(_)));
    }
    assert_eq!(engine.0.writes.load(Ordering::Relaxed), written);
    tokio::time::advance(Duration::from_secs(2)).await;
    ask(&store, a, WAIT).await;
    assert_eq!(engine.0.writes.load(Ordering::Relaxed), written + 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_read_is_left_alone() {
    let engine = InMemory::default();
    let store = store(&engine);
    let damaged = Kept {
        tag: Some(1),
        state: Bytes::from_static(b"\x07what is this?"),
        ..Kept::default()
    };
    engine.0.values.lock().insert(key(), damaged);
    let refused = store.clone().acquire(attempt(owner(), WAIT)).await;
    match refused {
        Outcome::Refused(error) => assert_eq!(error.kind(), ErrorKind::Foreign),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.0.writes.load(Ordering::Relaxed), 0);
}

/// The transaction of the data has written the record, and has waited for the disk.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_kept_record_need_not_be_durable() {
    for is_kept in [true, false] {
        let engine = InMemory::default();
        let (store, a) = (store(&engine), owner());
        assert!(matches!(ask(&store, a, WAIT).await, Acquired::Granted(_)));
        let record = |content: &'static [u8]| Record {
            owner: a,
            until: engine.0.reading().clock + LEASE,
            content: Bytes::from_static(content),
        };
        if is_kept {
            let mut values = engine.0.values.lock();
            values.get_mut(&key()).unwrap().record = Some(record(b"kept"));
        }
        let (answer, outcome) = Answer::channel();
        let release = Release {
            key: key(),
            owner: a,
            mode: Mode::Exclusive,
            ending: Ending::Record {
                content: Bytes::from_static(b"of the layer"),
                retain: LEASE,
            },
            in_doubt: false,
            lasts: LEASE,
        };
        store.clone().release(release, answer);
        assert_eq!(outcome.await.into_result().unwrap(), Released::Freed);
        let seen = engine.0.see(&key()).record.unwrap().content;
        let (content, durable): (&[u8], _) = match is_kept {
            true => (b"kept", 1),
            false => (b"of the layer", 2),
        };
        assert_eq!(seen, content);
        let writes = engine.0.durable_writes.load(Ordering::Relaxed);
        assert_eq!(writes, durable, "with the grant");
    }
}

/// An engine at a distance, which counts the swaps of one process that do not only read.
#[derive(Debug)]
struct Counted(InMemory, AtomicUsize);

impl Engine for Counted {
    async fn swap(&self, swap: Swap, deadline: Instant) -> Outcome<Swapped> {
        let writes = usize::from(swap.tag.is_some());
        self.1.fetch_add(writes, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2).mul_f64(0.5 + random())).await;
        self.0.swap(swap, deadline).await
    }

    /// The attempts of this test are not told.
    fn sends_hints(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn where_64_processes_lock_one_key_a_change_needs_few_swaps() {
    let engine = InMemory::default();
    let processes = (0..64).map(async |_| {
        let (store, a) = (
            store_on(Counted(engine.clone(), AtomicUsize::new(0))),
            owner(),
        );
        let mut swaps = Vec::new();
        let mut count = || swaps.push(store.engine.1.swap(0, Ordering::Relaxed));
        for _ in 0..10 {
            loop {
                let asked = ask(&store, a, WAIT).await;
                count();
                match asked {
                    Acquired::Held(held) => tokio::time::sleep(held.remaining).await,
                    Acquired::Granted(_) | Acquired::Recorded(_) => break,
                }
            }
            free(&store, a, false).await;
            count();
        }
        swaps
    });
    let mut swaps = join_all(processes).await.concat();
    swaps.retain(|swaps| *swaps > 0);
    swaps.sort_unstable();
    let (median, p99) = (swaps[swaps.len() / 2], swaps[swaps.len() * 99 / 100]);
    println!(
        "median {median}, p99 {p99}, most {:?} of {} calls",
        swaps.last(),
        swaps.len()
    );
    assert!(
        median <= 2 && p99 <= 8,
        "median {median}, p99 {p99} of {} calls",
        swaps.len()
    );
}
