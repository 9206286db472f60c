//! The bridge of the guide's chapter on moving from a hand-written `SET NX`: each version of the
//! service excludes the version before it.

#[allow(unreachable_pub)] // the guide shows the file as it is
mod bridge;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, middleware::from_fn_with_state, routing::post};
use http::{Request, StatusCode};
use redis::aio::ConnectionManager;
use tokio::{
    task::{JoinSet, yield_now},
    time::sleep,
};
use tower::ServiceExt;
use tower_distributed_lock::{DistributedLockLayer, key};

use self::bridge::{OLD_TTL, delete, set_nx, with_old_lock};
use crate::{instance, support::redis_server::RedisServer};

/// What all versions work on.
#[derive(Debug, Clone, Default)]
struct Account {
    is_busy: Arc<AtomicBool>,
    overlaps: Arc<AtomicUsize>,
    turns: Arc<AtomicUsize>,
}

impl Account {
    async fn work(&self) {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        for _ in 0..20 {
            yield_now().await;
        }
        self.is_busy.store(false, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
    }
}

/// A version of the service, as a router of its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The hand-written lock alone.
    Old,
    /// The lock of this crate, and the old one inside it.
    Both,
    /// The lock of this crate alone.
    New,
}

impl Version {
    async fn start(self, server: &RedisServer, account: Account) -> Router {
        let client = redis::Client::open(server.url()).unwrap();
        let redis = ConnectionManager::new(client).await.unwrap();
        let work = account.clone();
        let work = post(async move || work.work().await);
        let key = key::name("account").param_as::<u64>("id");
        let new_lock = DistributedLockLayer::new(instance(server).await, key).max_hold(OLD_TTL);
        let work = match self {
            Self::Old => post(async move || by_hand(redis, account).await),
            Self::Both => work
                .route_layer(from_fn_with_state(redis, with_old_lock))
                .route_layer(new_lock),
            Self::New => work.route_layer(new_lock),
        };
        Router::new().route("/accounts/{id}", work)
    }
}

/// The handler of the old version.
async fn by_hand(mut redis: ConnectionManager, account: Account) {
    let (name, value) = (
        "lock:account:7",
        account.turns.load(Ordering::SeqCst).to_string(),
    );
    while !set_nx(&mut redis, name, &value).await.unwrap() {
        sleep(Duration::from_millis(1)).await;
    }
    account.work().await;
    delete(&mut redis, name, &value).await.unwrap();
}

/// Runs both versions at one account, and returns how many turns overlapped.
async fn overlaps(one: Version, other: Version) -> usize {
    const TURNS: usize = 100;
    let server = RedisServer::start().await;
    let account = Account::default();
    let mut requests = JoinSet::new();
    for version in [one, other] {
        for _process in 0..2 {
            let app = version.start(&server, account.clone()).await;
            requests.spawn(async move {
                for _ in 0..TURNS {
                    let request = Request::post("/accounts/7").body(Body::empty()).unwrap();
                    let answer = app.clone().oneshot(request).await.unwrap();
                    assert_eq!(answer.status(), StatusCode::OK, "{version:?}");
                }
            });
        }
    }
    requests.join_all().await;
    assert_eq!(account.turns.load(Ordering::SeqCst), 4 * TURNS);
    account.overlaps.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_excludes_the_one_before_it() {
    assert_eq!(overlaps(Version::Old, Version::Both).await, 0);
    assert_eq!(overlaps(Version::Both, Version::New).await, 0);
}
