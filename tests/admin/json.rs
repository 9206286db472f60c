//! What the page is told, on the embedded store and on a real Redis.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{sync::Notify, task::JoinHandle};
use tower::ServiceExt;
use tower_distributed_lock::{
    Error, IdempotencyLayer, LockGuard, Locks, LocksBuilder, key,
    store::{Fault, FaultyStore, MemoryStore, RedisStore},
};

use crate::{
    demo::Server,
    payment,
    support::{PATIENCE, eventually, redis_server::RedisServer},
};

/// A place for the locks of several instances.
pub(crate) enum Fleet {
    Memory(MemoryStore),
    Redis(RedisServer),
}

impl Fleet {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    pub(crate) async fn redis() -> Self {
        Self::Redis(RedisServer::start().await)
    }

    pub(crate) fn instance(&self, label: &str) -> Locks {
        self.builder(label).wait_forever().build().unwrap()
    }

    fn builder(&self, label: &str) -> LocksBuilder {
        match self {
            Self::Memory(store) => Locks::builder(store.clone()),
            Self::Redis(server) => {
                // A busy machine may need more than the second that is the default.
                let store = RedisStore::builder(server.url()).label(label);
                Locks::builder(store.timeout(PATIENCE).build().unwrap())
            }
        }
    }

    /// The label that the store keeps with a lease of this instance.
    fn stored_label(&self, label: &str) -> Value {
        match self {
            Self::Memory(_) => Value::Null,
            Self::Redis(_) => label.into(),
        }
    }
}

/// Runs each of these tests on both stores.
macro_rules! on_both_stores {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Fleet::memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Fleet::redis().await).await;
            })*
        }
    };
}

on_both_stores!(
    an_instance_tells_what_it_holds_and_who_waits,
    the_longest_lines_come_first,
    the_keys_that_are_held_for_longest_come_first_on_demand,
    what_has_gone_wrong_is_told,
    the_fleet_is_told_with_holders_and_queues,
    a_key_is_told_with_its_queue_in_order,
    records_are_told_only_when_asked_for,
    tombstones_are_told_apart_from_answers,
    every_permit_has_its_holder,
    a_forced_release_gives_the_key_to_the_next,
    a_forced_release_spares_another_holder_than_the_one_it_names,
    a_removal_of_a_record_spares_a_lease_that_took_its_place,
    the_outcome_of_a_request_whose_process_has_died_can_be_written,
    the_outcome_of_a_request_that_runs_cannot_be_written,
    hostile_keys_survive_the_journey,
);

/// Waits for a key in the background, until the queue of the store has this length.
async fn queue(locks: &Locks, key: &str, length: usize) -> JoinHandle<Result<LockGuard, Error>> {
    let (waiting, wanted) = (locks.clone(), key.to_owned());
    let task = tokio::spawn(async move { waiting.lock(wanted).await });
    eventually("the attempt is queued", async || {
        locks.inspect(key).await.unwrap().queue.len() == length
    })
    .await;
    task
}

async fn an_instance_tells_what_it_holds_and_who_waits(fleet: Fleet) {
    let (ours, theirs) = (fleet.instance("ours"), fleet.instance("theirs"));
    let guard = ours.lock("orders/1").await.unwrap();
    let _elsewhere = theirs.lock("orders/2").await.unwrap();
    let _waiting = queue(&ours, "orders/2", 1).await;
    let server = Server::read_only(&ours).await;

    let told = server.ask("instance", &[]).await;
    assert_eq!(told["instance"], ours.instance().to_string());
    assert_eq!(told["label"], fleet.stored_label("ours"));
    assert_eq!(told["store"]["error"], Value::Null);
    assert!(told["store"]["ping_ms"].is_number());
    assert_eq!(told["closed"], false);
    assert_eq!(
        (&told["stats"]["keys"], &told["stats"]["waiting"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(told["stats"]["turns"], 1);
    assert!(told["stats"]["waited_ms"].is_number());
    let [waited, held] = told["keys"].as_array().unwrap().as_slice() else {
        panic!("{told}");
    };
    assert_eq!(
        (&held["key"], &held["waiting"]),
        (&json!("orders/1"), &json!(0))
    );
    assert_eq!(held["leases"][0]["token"], guard.token().to_string());
    assert_eq!(held["leases"][0]["mode"], json!({ "name": "exclusive" }));
    assert!(held["leases"][0]["remaining_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (&waited["key"], &waited["waiting"]),
        (&json!("orders/2"), &json!(1))
    );
    assert_eq!(waited["leases"], json!([]));
    assert!(waited["longest_wait_ms"].as_f64().unwrap() > 0.0);

    let told = server.ask("instance", &[("prefix", "orders/1")]).await;
    assert_eq!(
        (&told["total"], &told["keys"][0]["key"]),
        (&json!(1), &json!("orders/1"))
    );
}

async fn the_longest_lines_come_first(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let mut guards = Vec::new();
    for key in ["a", "b", "c"] {
        guards.push(locks.lock(key).await.unwrap());
    }
    let wait = || {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock("c").await })
    };
    let _waiting = [wait(), wait()];
    eventually("two requests wait", async || locks.stats().waiting == 2).await;
    let server = Server::read_only(&locks).await;
    let told = server.ask("instance", &[]).await;
    let keys = told["keys"].as_array().unwrap().iter();
    let keys: Vec<_> = keys.map(|key| key["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["c", "a", "b"]);
    assert_eq!(told["keys"][0]["waiting"], 2);
}

async fn the_keys_that_are_held_for_longest_come_first_on_demand(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let mut guards = Vec::new();
    for key in ["c", "a", "b"] {
        guards.push(locks.lock(key).await.unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let server = Server::read_only(&locks).await;
    let told = server.ask("instance", &[("sort", "held")]).await;
    let keys = told["keys"].as_array().unwrap().iter();
    let keys: Vec<_> = keys.map(|key| key["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["c", "a", "b"]);
}

async fn what_has_gone_wrong_is_told(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let server = Server::releasing(&locks).await;
    let guard = locks.lock("a").await.unwrap();
    assert!(locks.lock("a").now().await.unwrap().is_none());
    server.ask("force_release", &[("key", "a")]).await;
    assert!(guard.confirm().await.is_err());
    let told = server.ask("instance", &[]).await;
    assert_eq!(told["stats"]["refused"], 1);
    assert_eq!(told["stats"]["losses"], 1);
    assert_eq!(told["stats"]["unanswered_renewals"], 0);
}

async fn the_fleet_is_told_with_holders_and_queues(fleet: Fleet) {
    let (ours, theirs) = (fleet.instance("ours"), fleet.instance("theirs"));
    let _here = ours.lock("orders/1").await.unwrap();
    let elsewhere = theirs.lock("orders/2").await.unwrap();
    let _other = theirs.lock("users/1").await.unwrap();
    let _waiting = queue(&ours, "orders/2", 1).await;
    let server = Server::read_only(&ours).await;

    let told = server.ask("fleet", &[("prefix", "orders/")]).await;
    assert_eq!(told["next"], Value::Null);
    let [here, there] = told["keys"].as_array().unwrap().as_slice() else {
        panic!("{told}");
    };
    assert_eq!(
        (&here["key"], &here["queue"]),
        (&json!("orders/1"), &json!(0))
    );
    assert_eq!(here["holders"][0]["here"], true);
    assert!(here["holders"][0]["held_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (&there["key"], &there["queue"]),
        (&json!("orders/2"), &json!(1))
    );
    let holder = &there["holders"][0];
    assert_eq!(holder["here"], false);
    assert_eq!(holder["held_ms"], Value::Null, "the store does not know");
    assert_eq!(holder["instance"], theirs.instance().to_string());
    assert_eq!(holder["attempt"], elsewhere.owner().attempt.to_string());
    assert_eq!(holder["label"], fleet.stored_label("theirs"));
    assert!((1.0..=30_000.0).contains(&holder["remaining_ms"].as_f64().unwrap()));
}

async fn a_key_is_told_with_its_queue_in_order(fleet: Fleet) {
    let instances = ["first", "second", "third"].map(|label| fleet.instance(label));
    let [first, second, third] = &instances;
    let guard = first.lock("a").await.unwrap();
    let _waiting = [queue(third, "a", 1).await, queue(second, "a", 2).await];
    let server = Server::read_only(second).await;
    // An instance that waits is known by a key that it holds.
    let _other = third.lock("b").await.unwrap();
    server.ask("fleet", &[]).await;

    let told = server.ask("key", &[("key", "a")]).await;
    assert_eq!(told["holders"][0]["label"], fleet.stored_label("first"));
    for (place, label) in ["third", "second"].into_iter().enumerate() {
        assert_eq!(told["queue"][place]["label"], fleet.stored_label(label));
    }
    assert_eq!(told["record"], Value::Null);
    let token: u64 = told["token"].as_str().unwrap().parse().unwrap();
    assert!(token >= guard.token());
    let queue = told["queue"].as_array().unwrap().iter();
    let queue: Vec<_> = queue
        .map(|place| (&place["instance"], &place["here"]))
        .collect();
    let (third, second) = (third.instance().to_string(), second.instance().to_string());
    assert_eq!(
        queue,
        [
            (&json!(third), &json!(false)),
            (&json!(second), &json!(true))
        ]
    );
    assert_eq!(told["local"]["waiting"], 1);

    let told = server.ask("key", &[("key", "free")]).await;
    assert_eq!((&told["holders"], &told["queue"]), (&json!([]), &json!([])));
    assert_eq!(told["local"], Value::Null);
}

async fn records_are_told_only_when_asked_for(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let work = async |_: LockGuard| Ok::<_, io::Error>("paid".to_owned());
    let hour = Duration::from_secs(3600);
    locks.run_once("webhook/17", hour, work).await.unwrap();
    let server = Server::read_only(&locks).await;

    assert_eq!(server.ask("fleet", &[]).await["keys"], json!([]));
    let told = server.ask("fleet", &[("records", "1")]).await;
    let [kept] = told["keys"].as_array().unwrap().as_slice() else {
        panic!("{told}");
    };
    assert!(kept["record"]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(kept["record"]["kind"], "value");
    assert!(
        !told.to_string().contains("paid"),
        "the content is not told"
    );
    let key = kept["key"].as_str().unwrap();
    let told = server.ask("key", &[("key", key)]).await;
    assert!((1.0..=3.6e6).contains(&told["record"]["remaining_ms"].as_f64().unwrap()));
}

async fn tombstones_are_told_apart_from_answers(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let layer = IdempotencyLayer::new(locks.clone(), key::name("all")).max_response(3);
    let app = Router::new()
        .route("/short", post(async || "ok"))
        .route("/long", post(async || "four"))
        .route("/late", post(async || StatusCode::REQUEST_TIMEOUT))
        .layer(layer);
    for (path, status) in [("/short", 200), ("/long", 200), ("/late", 408)] {
        let request = Request::post(path).header("idempotency-key", path.trim_matches('/'));
        let request = request.body(Body::empty()).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
    let server = Server::read_only(&locks).await;
    eventually("all records are told", async || {
        let told = server.ask("fleet", &[("records", "1")]).await;
        let kind = |word: &str| {
            let mut keys = told["keys"].as_array().unwrap().iter();
            let key = keys.find(|key| key["key"].as_str().unwrap().contains(word))?;
            Some(key["record"]["kind"].as_str()?.to_owned())
        };
        let kinds = ["short", "long", "late"].map(kind);
        kinds.each_ref().map(Option::as_deref) == ["answer", "not_kept", "unknown"].map(Some)
    })
    .await;
}

async fn every_permit_has_its_holder(fleet: Fleet) {
    let (ours, theirs) = (fleet.instance("ours"), fleet.instance("theirs"));
    let _permits = [
        ours.permit("exports", 3).await.unwrap(),
        ours.permit("exports", 3).await.unwrap(),
        theirs.permit("exports", 3).await.unwrap(),
    ];
    let server = Server::read_only(&ours).await;
    let told = server.ask("fleet", &[]).await;
    let holders = told["keys"][0]["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 3);
    for holder in holders {
        assert_eq!(holder["mode"], json!({ "name": "permit", "of": 3 }));
    }
}

async fn a_forced_release_gives_the_key_to_the_next(fleet: Fleet) {
    let (ours, theirs) = (fleet.instance("ours"), fleet.instance("theirs"));
    let stuck = theirs.lock("a").await.unwrap();
    let waiting = queue(&ours, "a", 1).await;
    let server = Server::releasing(&ours).await;

    let told = server.ask("force_release", &[("key", "a")]).await;
    assert_eq!(told, json!({ "released": true }));
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > stuck.token());
    assert!(stuck.confirm().await.is_err());
    drop(next);
    let told = server.ask("force_release", &[("key", "free")]).await;
    assert_eq!(told, json!({ "released": false }));
}

async fn a_forced_release_spares_another_holder_than_the_one_it_names(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let before = locks.lock("a").await.unwrap();
    let (first, token) = (before.owner().to_string(), before.token());
    before.release().await.unwrap();
    let guard = locks.lock("a").await.unwrap();
    assert!(guard.token() > token);
    let server = Server::releasing(&locks).await;

    let fields = [("key", "a"), ("owner", &*first)];
    let answer = server.try_ask("force_release", &fields).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(guard.confirm().await.is_ok());
    let owner = guard.owner().to_string();
    let fields = [("key", "a"), ("owner", &*owner)];
    let told = server.ask("force_release", &fields).await;
    assert_eq!(told, json!({ "released": true }));
    assert!(guard.confirm().await.is_err());
}

async fn a_removal_of_a_record_spares_a_lease_that_took_its_place(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let once = locks.run_once("a", Duration::from_secs(3600), async |_| Ok::<(), ()>(()));
    assert!(once.await.unwrap().stored);
    let server = Server::releasing(&locks).await;
    let told = server.ask("fleet", &[("records", "1")]).await;
    let key = told["keys"][0]["key"].as_str().unwrap();

    let fields = [("key", key), ("record", "1")];
    let told = server.ask("force_release", &fields).await;
    assert_eq!(told, json!({ "released": true }));
    let guard = locks.lock(key).await.unwrap();
    let answer = server.try_ask("force_release", &fields).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(guard.confirm().await.is_ok());
}

/// The fields of an outcome of the payment.
fn outcome(owner: &str) -> [(&str, &str); 6] {
    [
        ("key", payment::KEY),
        ("owner", owner),
        ("status", "201"),
        ("content_type", "application/json"),
        ("body", "{\"receipt\": 17}"),
        ("hours", "1"),
    ]
}

/// The owner of the payment's claim, as the page tells it. `None` if the claim has not the expected
/// state.
async fn claimant(server: &Server, abandoned: bool) -> Option<String> {
    let told = server.ask("key", &[("key", payment::KEY)]).await;
    let holder = &told["holders"][0];
    let owner = || {
        Some(format!(
            "{}:{}",
            holder["instance"].as_str()?,
            holder["attempt"].as_str()?
        ))
    };
    if holder["abandoned"] == abandoned {
        owner()
    } else {
        None
    }
}

async fn the_outcome_of_a_request_whose_process_has_died_can_be_written(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let server = Server::settling(&locks).await;
    payment::begin_and_die(fleet.builder("dead")).await;
    eventually("the process counts as dead", async || {
        claimant(&server, true).await.is_some()
    })
    .await;
    let owner = claimant(&server, true).await.unwrap();

    // The page was shown when another request had claimed the key.
    let before = format!("{}:{}", locks.instance(), 1);
    let refused = server.try_ask("settle", &outcome(&before)).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert_eq!(claimant(&server, true).await.as_ref(), Some(&owner));

    let told = server.ask("settle", &outcome(&owner)).await;
    assert_eq!(told, json!({ "settled": true }));
    let told = server.ask("key", &[("key", payment::KEY)]).await;
    assert_eq!(told["holders"], json!([]));
    assert_eq!(told["record"]["kind"], "answer");
    assert!((1.0..=3.6e6).contains(&told["record"]["remaining_ms"].as_f64().unwrap()));
    let again = payment::pay(payment::service(&locks, async || "paid again")).await;
    assert_eq!(again.status(), StatusCode::CREATED);
    assert_eq!(again.headers()["content-type"], "application/json");
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let body = again.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "{\"receipt\": 17}");

    // An answer that is there is not replaced.
    let refused = server.try_ask("settle", &outcome("")).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
}

async fn the_outcome_of_a_request_that_runs_cannot_be_written(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let server = Server::settling(&locks).await;
    let (begun, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, open) = (begun.clone(), open.clone());
        async move || {
            begun.notify_one();
            open.notified().await;
            "paid"
        }
    };
    let paying = tokio::spawn(payment::pay(payment::service(&locks, handler)));
    begun.notified().await;
    let owner = claimant(&server, false).await.unwrap();
    for owner in ["", &*owner] {
        let refused = server.try_ask("settle", &outcome(owner)).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{owner:?}");
    }
    // An ordinary lock has no outcome at all.
    let _guard = locks.lock("a").await.unwrap();
    let mut fields = outcome("");
    fields[0] = ("key", "a");
    let refused = server.try_ask("settle", &fields).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);

    open.notify_one();
    let body = paying.await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "paid");
    let told = server.ask("key", &[("key", payment::KEY)]).await;
    assert_eq!(told["record"]["kind"], "answer");
}

async fn hostile_keys_survive_the_journey(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let server = Server::read_only(&locks).await;
    for key in [
        r#"<img src=x onerror="alert(1)">"#,
        r#"","key":"forged"#,
        r"\u0022\",
        "a&key=b=c%26+d",
        "*[?]^\\*",
        "ünï/中\u{202e}\u{2028}",
    ] {
        let _guard = locks.lock(key).await.unwrap();
        let told = server.ask("key", &[("key", key)]).await;
        assert_eq!(
            (&told["key"], &told["holders"][0]["here"]),
            (&json!(key), &json!(true))
        );
        for name in ["instance", "fleet"] {
            let told = server.ask(name, &[("prefix", key)]).await;
            assert_eq!(told["keys"][0]["key"], key, "{name}");
            assert_eq!(told["keys"].as_array().unwrap().len(), 1, "{name}");
        }
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_beside_what_is_held() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let _guard = locks.lock("a").await.unwrap();
    let server = Server::read_only(&locks).await;
    store.set_fault(Some(Fault::Unreachable));
    let told = server.ask("instance", &[]).await;
    assert!(told["store"]["error"].is_string());
    assert_eq!(
        told["store"]["ping_ms"],
        Value::Null,
        "nothing was answered"
    );
    assert_eq!(told["keys"][0]["key"], "a");
    let answer = server.try_ask("fleet", &[]).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn renewals_without_an_answer_are_told() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).lease(Duration::from_secs(1));
    let locks = locks.build().unwrap();
    let _guard = locks.lock("a").await.unwrap();
    let server = Server::read_only(&locks).await;
    store.set_fault(Some(Fault::Unreachable));
    eventually("a renewal without an answer is told", async || {
        let told = server.ask("instance", &[]).await;
        told["stats"]["unanswered_renewals"].as_u64() > Some(0)
    })
    .await;
}
