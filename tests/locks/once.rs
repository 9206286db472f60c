//! Work that is done once, while its lease is lost.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::time::sleep;
use tower_distributed_lock::{LockGuard, Locks, store::Fault};

use crate::support::{SECOND, fleet, settle};

/// The record may be on its way when its caller gives up. Until it has arrived, or the lease is
/// over, nobody does the work again.
#[tokio::test(start_paused = true)]
async fn work_whose_record_is_still_under_way_is_not_done_again() {
    let (store, [locks]) = fleet();
    let once = locks.run_once("payment", 600 * SECOND, async |_guard| {
        store.set_fault(Some(Fault::Unreachable));
        Ok::<_, Infallible>(())
    });
    let first = once.await.unwrap();
    assert!(!first.stored, "{first:?}");
    store.set_fault(None);
    let again = locks.run_once("payment", 600 * SECOND, async |_guard| {
        Err::<(), _>("paid twice")
    });
    let again = again.await.unwrap();
    assert!(again.replayed, "{again:?}");
}

/// Fault: the loss of the lease let the local duplicates begin while the first was still at work.
#[tokio::test(start_paused = true)]
async fn a_duplicate_in_the_same_process_waits_for_the_first_although_its_lease_is_lost() {
    for fault in [Fault::Hang, Fault::Unreachable] {
        let (store, [locks]) = fleet();
        let runs = Arc::<AtomicU32>::default();
        let pay = |locks: Locks, runs: Arc<AtomicU32>| async move {
            let work = async |_guard: LockGuard| {
                runs.fetch_add(1, Ordering::SeqCst);
                sleep(60 * SECOND).await;
                Ok::<_, Infallible>(String::from("paid"))
            };
            locks.run_once("payment", 600 * SECOND, work).await.unwrap()
        };
        let first = tokio::spawn(pay(locks.clone(), runs.clone()));
        settle().await;
        let duplicates: Vec<_> = (0..5)
            .map(|_| tokio::spawn(pay(locks.clone(), runs.clone())))
            .collect();
        settle().await;
        store.set_fault(Some(fault));
        sleep(45 * SECOND).await;
        store.set_fault(None);
        sleep(10 * SECOND).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{fault:?}: paid twice");
        let first = first.await.unwrap();
        assert!(first.stored && !first.replayed, "{fault:?}: {first:?}");
        for duplicate in duplicates {
            let duplicate = duplicate.await.unwrap();
            assert!(duplicate.replayed, "{fault:?}: {duplicate:?}");
            assert_eq!(duplicate.value, "paid");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{fault:?}: paid twice");
    }
}
