//! Several keys for one request.

use std::time::Duration;

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode, request::Parts};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, LockKey, Locks, ReadBodyLayer,
    key::{self, Derived, KeyError},
    lock::AllGuards,
    read_body::WholeBody,
};

use crate::{
    gate::Gate,
    support::{PATIENCE, Server, eventually, nothing_left, within},
};

/// Both accounts of a transfer.
fn both(locks: &Locks) -> DistributedLockLayer {
    let account = |param| key::name("account").param_as::<u64>(param).labelled("id");
    let both = key::all_of([account("from"), account("to")]);
    DistributedLockLayer::new(locks.clone(), both).wait(PATIENCE)
}

fn transfers(lock: DistributedLockLayer, gate: &Gate) -> Router {
    let gate = gate.clone();
    let handler = async move |guards: AllGuards| {
        gate.pass().await;
        let keys = guards.all();
        let keys: Vec<_> = keys.iter().map(|guard| guard.key().to_string()).collect();
        keys.join(" ")
    };
    Router::new().route("/transfers/{from}/{to}", post(handler).route_layer(lock))
}

#[tokio::test]
async fn a_request_holds_all_of_its_keys_and_releases_them_together() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(transfers(both(&locks), &gate)).await;
    let inside = tokio::spawn(server.post("/transfers/07/2"));
    gate.arrival().await;
    for held in ["account,id=7", "account,id=2"] {
        assert!(locks.lock(held).now().await.unwrap().is_none(), "{held}");
    }
    assert!(locks.lock("account,id=3").now().await.unwrap().is_some());
    gate.open();
    let answer = within("a response", inside).await.unwrap();
    // The guards have the order in which the keys were named.
    assert_eq!(answer.text(), "account,id=7 account,id=2");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn transfers_in_both_directions_do_not_wait_for_each_other() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(transfers(both(&locks), &gate)).await;
    let sent: Vec<_> = (0..20)
        .map(|at| {
            [
                "/transfers/1/2",
                "/transfers/2/1",
                "/transfers/2/3",
                "/transfers/1/1",
            ][at % 4]
        })
        .map(|path| tokio::spawn(server.post(path)))
        .collect();
    for _ in &sent {
        gate.open();
    }
    for answer in sent {
        let answer = within("no deadlock", answer).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
    }
    nothing_left(&locks).await;
}

#[tokio::test]
async fn keys_are_taken_in_one_order_for_all_requests() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(transfers(both(&locks), &gate)).await;
    let first = locks.lock("account,id=1").await.unwrap();
    let second = locks.lock("account,id=2").await.unwrap();
    let mut sent = Vec::new();
    for path in ["/transfers/1/2", "/transfers/2/1"] {
        sent.push(tokio::spawn(server.post(path)));
        eventually("one more waits", || locks.stats().waiting == sent.len()).await;
        gate.open();
    }
    // If the requests waited for different keys, each would get the key that the other request
    // needs next.
    drop(second);
    drop(first);
    for answer in sent {
        let answer = within("no deadlock", answer).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
    }
    nothing_left(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_limit_covers_all_keys_together() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let limit = Duration::from_secs(10);
    let app = transfers(both(&locks).wait(limit), &gate);
    let first = locks.lock("account,id=1").await.unwrap();
    let _second = locks.lock("account,id=2").await.unwrap();
    let began = Instant::now();
    let request = Request::post("/transfers/1/2").body(Body::empty()).unwrap();
    let answer = tokio::spawn(app.oneshot(request));
    sleep(limit / 2).await;
    drop(first);
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::LOCKED);
    assert_eq!(began.elapsed().as_secs(), limit.as_secs());
}

#[tokio::test]
async fn a_request_gets_all_keys_or_none_within_the_wait_limit() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let held = locks.lock("account,id=2").await.unwrap();
    for lock in [
        both(&locks).wait(Duration::from_millis(50)),
        both(&locks).reject_if_held(),
    ] {
        let server = Server::start(transfers(lock, &gate)).await;
        let answer = server.post("/transfers/1/2").await;
        assert_eq!((answer.status.as_u16(), &*answer.reason()), (423, "held"));
        eventually("the first key is released", || locks.stats().keys == 1).await;
    }
    drop(held);
    assert_eq!(gate.finished(), 0);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn an_extractor_of_one_guard_is_refused_for_several_keys() {
    let locks = Locks::in_memory();
    let handler = post(async |_: LockGuard| {}).route_layer(both(&locks));
    let app = Router::new().route("/transfers/{from}/{to}", handler);
    let server = Server::start(app).await;
    let answer = server.post("/transfers/1/2").await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.reason()),
        (500, "misconfigured")
    );
    assert!(answer.text().contains("AllGuards"), "{}", answer.text());
    // The same key twice counts as one key.
    assert_eq!(server.post("/transfers/1/1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_loss_of_one_key_is_a_loss_of_the_request() {
    let gate = Gate::default();
    let store = tower_distributed_lock::store::FaultyStore::new();
    let locks = crate::support::watchful(&store);
    let server = Server::start(transfers(both(&locks), &gate)).await;
    let inside = tokio::spawn(server.post("/transfers/1/2"));
    gate.arrival().await;
    let second = LockKey::new("account,id=2").unwrap();
    let taken = tower_distributed_lock::store::Store::force_release(&store, second);
    assert!(taken.await.unwrap());
    let answer = within("a response", inside).await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), &*answer.reason()),
        (409, "lease-lost")
    );
    assert_eq!(gate.dropped(), 1);
    nothing_left(&locks).await;
}

/// The accounts that the body names, one in each line.
fn accounts(parts: &mut Parts) -> Result<Derived, KeyError> {
    let body = parts.extensions.get::<WholeBody>();
    let WholeBody(body) = body.ok_or_else(|| KeyError::misconfigured("no body"))?;
    let text = std::str::from_utf8(body).map_err(|_| KeyError::bad_request("not UTF-8"))?;
    let account = |id| key::name("account").value("id", id).lock_key();
    let keys = text.lines().map(account);
    Ok(Derived::Keys(keys.collect::<Result<_, _>>()?))
}

#[tokio::test]
async fn keys_can_come_from_a_body_that_was_read() {
    let locks = Locks::in_memory();
    let handler = async |guards: AllGuards, body: String| {
        let second = LockKey::new("account,id=b").unwrap();
        assert!(guards.of(&second).is_some());
        format!("{} of {}", guards.all().len(), body.lines().count())
    };
    let app = Router::new()
        .route("/batch", post(handler))
        .route_layer(DistributedLockLayer::new(locks.clone(), accounts))
        .route_layer(ReadBodyLayer::new(100));
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    let request = http::Request::post("/batch")
        .body("a\nb\nb".into())
        .unwrap();
    let answer = client.whole(request).await.unwrap();
    assert_eq!(answer.text(), "2 of 3");
}

#[tokio::test]
async fn a_request_has_so_many_keys_at_most() {
    let locks = Locks::in_memory();
    let app = |layer: DistributedLockLayer| {
        Router::new()
            .route("/batch", post(async || "locked"))
            .route_layer(layer)
            .route_layer(ReadBodyLayer::new(10_000))
    };
    let layer = DistributedLockLayer::new(locks.clone(), accounts);
    for (layer, limit) in [(layer.clone(), 64), (layer.max_keys_per_request(70), 70)] {
        let server = Server::start(app(layer)).await;
        for (count, status) in [(limit, 200), (limit + 1, 400)] {
            // Keys that are named twice count once.
            let body: String = (0..2 * count)
                .map(|at| format!("{}\n", at % count))
                .collect();
            let request = http::Request::post("/batch").body(body.into()).unwrap();
            let answer = server.connect().await.whole(request).await.unwrap();
            assert_eq!(answer.status, status, "{count} of {limit}");
            if status == 400 {
                assert_eq!(answer.reason(), "bad-key");
                let detail = answer.json()["detail"].to_string();
                assert!(
                    detail.contains(&format!("more than {limit} keys")),
                    "{detail}"
                );
            }
        }
    }
    nothing_left(&locks).await;
}
