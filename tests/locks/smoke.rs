use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use tower_distributed_lock::{Locks, Loss, store::MemoryStore};

#[tokio::test(start_paused = true)]
async fn basics() {
    let store = MemoryStore::new();
    let a = Locks::builder(store.clone()).build().unwrap();
    let b = Locks::builder(store.clone()).build().unwrap();
    let g = a.lock("k").await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_none());
    assert!(a.try_lock("k").await.unwrap().is_none());
    let t = g.token();
    drop(g);
    let g = a.try_lock("k").await.unwrap().unwrap();
    assert!(g.token() > t);
    let bb = b.clone();
    let w = tokio::spawn(async move { bb.lock("k").await.unwrap() });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(g.is_held());
    g.release().await.unwrap();
    let g = w.await.unwrap();
    assert!(g.is_held());
    let l = g.clone();
    let e = tokio::time::timeout(Duration::from_secs(700), l.lost())
        .await
        .unwrap();
    assert_eq!(e, Loss::MaxHold);
    drop(g);
    drop(l);
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("{:?} {:?} {:?}", a.stats(), b.stats(), store.calls());
    assert_eq!(a.stats(), Default::default());
    assert_eq!(b.stats(), Default::default());
    assert!(store.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot() {
    let store = MemoryStore::new();
    let fleet: Vec<_> = (0..2)
        .map(|_| Locks::builder(store.clone()).build().unwrap())
        .collect();
    let inside = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let t0 = std::time::Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let (locks, inside, last) = (fleet[i % 2].clone(), inside.clone(), last.clone());
            tokio::spawn(async move {
                for _ in 0..100 {
                    let g = locks.lock("hot").await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(last.swap(g.token(), Ordering::SeqCst) < g.token());
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for t in tasks {
        t.await.unwrap();
    }
    println!("{:?} {:?}", t0.elapsed(), store.calls());
}
