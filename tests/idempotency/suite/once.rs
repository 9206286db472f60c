//! Work that is done once, outside of HTTP.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::Instant};
use tower_distributed_lock::{
    ErrorKind, LockGuard, LockKey, Locks, Loss,
    idempotency::{Recordable, RunOnceError},
};

use crate::{
    subject::{A_WHILE, Subject},
    support::{
        eventually,
        words::{LONG, Words, key},
    },
    web::Runs,
};

/// Does the work, whose result is the number of its run.
async fn work(locks: &Locks, runs: &Runs) -> (String, bool) {
    let once = locks.run_once("webhook/1", LONG, async |_| {
        Ok::<_, Infallible>(runs.run().await.to_string())
    });
    let once = once.await.unwrap();
    assert!(once.stored);
    (once.value, once.replayed)
}

pub(crate) async fn work_is_done_once_and_its_result_is_kept(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    assert_eq!(work(&locks, &runs).await, ("1".into(), false));
    assert_eq!(work(&locks, &runs).await, ("1".into(), true));
    let elsewhere = subject.replica().build().unwrap();
    assert_eq!(work(&elsewhere, &runs).await, ("1".into(), true));
    // A plain lock of the same name is another key.
    drop(locks.lock("webhook/1").await.unwrap());
}

pub(crate) async fn a_second_call_waits_for_the_result(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let spawned = |at: usize| {
        let (locks, runs) = (replicas[at].clone(), runs.clone());
        tokio::spawn(async move { work(&locks, &runs).await })
    };
    let first = spawned(0);
    runs.arrival().await;
    let others = [spawned(0), spawned(1)];
    eventually("all wait", async || {
        replicas.iter().all(|locks| locks.stats().waiting == 1)
    })
    .await;
    runs.open();
    assert_eq!(first.await.unwrap(), ("1".into(), false));
    for other in others {
        assert_eq!(other.await.unwrap(), ("1".into(), true));
    }
}

pub(crate) async fn work_that_fails_is_done_again(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let failing = locks.run_once("webhook/1", LONG, async |_| {
        runs.run().await;
        Err::<String, _>("no")
    });
    assert!(matches!(failing.await, Err(RunOnceError::Work("no"))));
    assert_eq!(work(&locks, &runs).await, ("2".into(), false));
}

/// Fault: each call that came after the release did the work once more.
pub(crate) async fn the_work_cannot_release_its_claim(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let working = |at: &Locks| {
        let (locks, runs) = (at.clone(), runs.clone());
        tokio::spawn(async move {
            let once = locks.run_once("webhook/1", LONG, async |guard: LockGuard| {
                let refused = guard.release().await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
                Ok::<_, Infallible>(runs.run().await.to_string())
            });
            let once = once.await.unwrap();
            (once.value, once.replayed)
        })
    };
    let first = working(&locks);
    runs.arrival().await;
    let second = working(&locks);
    eventually("it waits", async || locks.stats().waiting == 1).await;
    runs.open();
    assert_eq!(first.await.unwrap(), ("1".into(), false));
    assert_eq!(second.await.unwrap(), ("1".into(), true));
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn nothing_text_and_bytes_can_be_kept(subject: impl Subject) {
    async fn twice<T: Recordable + Clone + PartialEq + std::fmt::Debug>(locks: &Locks, value: T) {
        let key = std::any::type_name::<T>();
        for replayed in [false, true] {
            let again = value.clone();
            let once = locks.run_once(key, LONG, async move |_| Ok::<_, Infallible>(again));
            let once = once.await.unwrap();
            assert_eq!((once.value, once.replayed), (value.clone(), replayed));
        }
    }
    let locks = subject.replica().build().unwrap();
    twice(&locks, ()).await;
    twice(&locks, "tëxt".to_owned()).await;
    twice(&locks, Bytes::from_static(b"\0\xff")).await;
    #[cfg(feature = "json")]
    twice(
        &locks,
        tower_distributed_lock::idempotency::Json(vec![(1, "a".to_owned())]),
    )
    .await;
}

pub(crate) async fn work_that_is_dropped_frees_the_key(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let leaving = tokio::spawn({
        let (locks, runs) = (locks.clone(), runs.clone());
        async move { work(&locks, &runs).await }
    });
    runs.arrival().await;
    leaving.abort();
    runs.open();
    assert_eq!(work(&locks, &runs).await, ("2".into(), false));
}

/// Reports when its bytes are requested: the work is done, and the result not stored yet.
struct Watched(&'static Notify);

impl Recordable for Watched {
    type Error = Infallible;

    fn to_bytes(&self) -> Result<Bytes, Infallible> {
        self.0.notify_one();
        Ok(Bytes::from_static(b"1"))
    }

    fn from_bytes(_: Bytes) -> Result<Self, Infallible> {
        unreachable!("nobody reads it as this")
    }
}

pub(crate) async fn a_result_is_stored_although_its_caller_goes_away(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let done: &'static Notify = Box::leak(Box::default());
    subject.store().inspect(key("warm up")).await.unwrap();
    let leaving = async {
        let once = locks.run_once("webhook/1", LONG, async |_| {
            runs.run().await;
            // From here on nothing gets through.
            subject.cut_off(true);
            Ok::<_, Infallible>(Watched(done))
        });
        let _ = once.await;
    };
    tokio::select! {
        biased;
        () = leaving => panic!("it goes away before the result is stored"),
        () = async { done.notified().await } => {}
    }
    // Another call waits already, and must not begin.
    let waiting = tokio::spawn({
        let (locks, runs) = (locks.clone(), runs.clone());
        async move { work(&locks, &runs).await }
    });
    eventually("it waits", async || locks.stats().waiting == 1).await;
    subject.cut_off(false);
    assert_eq!(waiting.await.unwrap(), ("1".into(), true));
    assert_eq!(runs.begun(), 1);
}

/// Has no bytes.
#[derive(Debug)]
struct Mute;

impl Recordable for Mute {
    type Error = std::fmt::Error;

    fn to_bytes(&self) -> Result<Bytes, Self::Error> {
        Err(std::fmt::Error)
    }

    fn from_bytes(_: Bytes) -> Result<Self, Self::Error> {
        Err(std::fmt::Error)
    }
}

pub(crate) async fn a_result_without_bytes_is_not_made_twice(subject: impl Subject) {
    let (locks, made) = (subject.replica().build().unwrap(), AtomicU64::new(0));
    for _ in 0..2 {
        let once = locks.run_once("webhook/1", LONG, async |_| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Mute)
        });
        assert!(matches!(once.await, Err(RunOnceError::Unreadable(_))));
    }
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

/// Panics.
#[derive(Debug)]
struct Clumsy;

impl Recordable for Clumsy {
    type Error = Infallible;

    fn to_bytes(&self) -> Result<Bytes, Infallible> {
        panic!("this panic is part of the test")
    }

    fn from_bytes(_: Bytes) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

pub(crate) async fn a_result_that_panics_is_not_made_twice(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let made = Arc::new(AtomicU64::new(0));
    let once = || {
        let (locks, made) = (locks.clone(), made.clone());
        tokio::spawn(async move {
            let work = async |_| {
                made.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Clumsy)
            };
            locks.run_once("webhook/1", LONG, work).await
        })
    };
    assert!(once().await.unwrap_err().is_panic());
    let again = once().await.unwrap();
    assert!(matches!(again, Err(RunOnceError::Unreadable(_))));
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

pub(crate) async fn a_kept_result_that_cannot_be_read_is_an_error(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let bytes = locks.run_once("webhook/1", LONG, async |_| {
        Ok::<_, Infallible>(Bytes::from_static(b"\xff is no text"))
    });
    bytes.await.unwrap();
    let text = locks.run_once("webhook/1", LONG, async |_| {
        runs.run().await;
        Ok::<_, Infallible>(String::new())
    });
    assert!(matches!(text.await, Err(RunOnceError::Unreadable(_))));
    assert_eq!(runs.begun(), 0);
    assert!(
        subject
            .store()
            .see(&key("once,webhook/1"))
            .await
            .record
            .is_some()
    );
}

pub(crate) async fn the_wait_limit_counts(subject: impl Subject) {
    let locks = subject.replica().wait_limit(A_WHILE).build().unwrap();
    let runs = Runs::gated();
    let first = tokio::spawn({
        let (locks, runs) = (locks.clone(), runs.clone());
        async move { work(&locks, &runs).await }
    });
    runs.arrival().await;
    let second = locks.run_once("webhook/1", LONG, async |_| {
        Ok::<_, Infallible>(String::new())
    });
    match second.await {
        Err(RunOnceError::Lock(error)) => assert_eq!(error.kind(), ErrorKind::Held),
        other => panic!("{other:?}"),
    }
    runs.open();
    first.await.unwrap();
}

pub(crate) async fn a_call_has_its_own_wait_limit(subject: impl Subject) {
    let locks = subject.replica().wait_limit(LONG).build().unwrap();
    let runs = Runs::gated();
    let first = tokio::spawn({
        let (locks, runs) = (locks.clone(), runs.clone());
        async move { work(&locks, &runs).await }
    });
    runs.arrival().await;
    let began = Instant::now();
    let second = locks.run_once_within("webhook/1", LONG, A_WHILE, async |_| {
        Ok::<_, Infallible>(String::new())
    });
    let Err(RunOnceError::Lock(error)) = second.await else {
        panic!("the first one still works");
    };
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(
        began.elapsed() < LONG,
        "it has waited as long as all others"
    );
    runs.open();
    first.await.unwrap();
}

pub(crate) async fn the_work_can_watch_its_lease(subject: impl Subject) {
    let locks = subject.replica().max_hold(A_WHILE).build().unwrap();
    let once = locks.run_once("webhook/1", LONG, async |guard: LockGuard| {
        assert_eq!(guard.key().as_str(), "once,webhook/1");
        assert!(guard.token() > 0);
        let loss = guard.lost().await;
        Err::<(), _>(loss)
    });
    assert!(matches!(once.await, Err(RunOnceError::Work(Loss::MaxHold))));
}

pub(crate) async fn the_error_names_the_process_that_began_first(subject: impl Subject) {
    let [here, elsewhere] = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let first = tokio::spawn({
        let (locks, runs) = (here.clone(), runs.clone());
        async move { work(&locks, &runs).await }
    });
    runs.arrival().await;
    let refused = async |locks: &Locks| {
        let second = locks.run_once_within("webhook/1", LONG, A_WHILE, async |_| {
            Ok::<_, Infallible>(String::new())
        });
        second.await.unwrap_err().to_string()
    };
    let error = refused(&here).await;
    assert!(error.contains("held in this process, for "), "{error}");
    let seen = subject.store().see(&key("once,webhook/1")).await;
    let label = seen
        .holder()
        .cloned()
        .expect("the first one holds the key")
        .label;
    let who = label.map_or("held by another request".into(), |label| {
        format!("held elsewhere, by {label}")
    });
    let error = refused(&elsewhere).await;
    assert!(error.contains(&who), "{error}, and not {who}");
    runs.open();
    first.await.unwrap();
}

pub(crate) async fn every_valid_key_can_be_used(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let longest = "x".repeat(LockKey::MAX_LEN);
    for replayed in [false, true] {
        let once = locks.run_once(&*longest, LONG, async |_| Ok::<_, Infallible>(()));
        assert_eq!(once.await.unwrap().replayed, replayed);
    }
}

pub(crate) async fn a_result_that_is_forgotten_at_once_is_not_stored(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let once = locks.run_once("webhook/1", Duration::ZERO, async |_| {
        Ok::<_, Infallible>(())
    });
    assert!(!once.await.unwrap().stored);
}
