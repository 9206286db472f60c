//! Credentials that rotate.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use redis::Value;
use tower_distributed_lock::{
    ErrorKind,
    store::{Credentials, Hint, RedisStore, RedisStoreBuilder, Store},
};

use crate::{
    LIMIT,
    support::{eventually, redis_server::RedisServer, words::*},
};

/// The password that the provider returns, and how often it was asked. `None`: the provider fails.
#[derive(Clone)]
struct Secret {
    password: Arc<Mutex<Option<&'static str>>>,
    asked: Arc<AtomicUsize>,
}

impl Secret {
    fn new(password: &'static str) -> Self {
        Self {
            password: Arc::new(Mutex::new(Some(password))),
            asked: Arc::default(),
        }
    }

    fn set(&self, password: Option<&'static str>) {
        *self.password.lock().unwrap() = password;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn for_store(&self, builder: RedisStoreBuilder) -> RedisStoreBuilder {
        let secret = self.clone();
        builder.timeout(LIMIT * 4).credentials(move || {
            secret.asked.fetch_add(1, Ordering::SeqCst);
            let password = *secret.password.lock().unwrap();
            async move {
                let password = password.ok_or("the vault is sealed")?;
                Ok::<_, &str>(Credentials::new("shop", password))
            }
        })
    }
}

/// Gives the user `shop` this password, and takes all others away.
async fn set_password(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let rights = ["on", "~*", "&*", "+@all"];
    let command = [
        &["ACL", "SETUSER", "shop", "resetpass", &password][..],
        &rights,
    ]
    .concat();
    let _: Value = server.send(&command).await;
}

/// Closes all connections of the user, also those of subscriptions.
async fn disconnect(server: &RedisServer) {
    let _: Value = server.send(&["CLIENT", "KILL", "USER", "shop"]).await;
}

async fn assert_store_comes_back(store: &RedisStore) {
    eventually("the store is back", async || store.ping().await.is_ok()).await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    store.free(&key, a).await;
}

#[tokio::test]
async fn calls_and_subscriptions_go_on_with_the_new_password() {
    let server = RedisServer::start().await;
    set_password(&server, "first").await;
    let secret = Secret::new("first");
    let store = secret.for_store(RedisStore::builder(server.url()).lanes(2));
    let store = store.connect().await.unwrap();
    assert_eq!(secret.asked(), 2, "once for each lane");
    let mut hints = store.watch_for_sure(owner().instance).await;
    assert_eq!(secret.asked(), 3, "once more for the subscription");

    set_password(&server, "second").await;
    secret.set(Some("second"));
    // Connections that are made already are not asked again.
    assert_store_comes_back(&store).await;
    assert_eq!(secret.asked(), 3);
    disconnect(&server).await;
    assert_store_comes_back(&store).await;
    loop {
        let hint = hints.recv().await.expect("the store goes on listening");
        if hint == Hint::Reconnected {
            break;
        }
    }
    assert!(secret.asked() >= 5, "{}", secret.asked());
}

#[tokio::test]
async fn a_password_that_the_server_refuses_is_asked_for_again() {
    let server = RedisServer::start().await;
    set_password(&server, "first").await;
    let secret = Secret::new("outdated");
    let builder = secret.for_store(RedisStore::builder(server.url()));
    let error = builder.clone().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(
        error.to_string().contains("refused the user name"),
        "{error}"
    );
    let store = builder.build().unwrap();
    store.ping().await.unwrap_err();
    secret.set(Some("first"));
    assert_store_comes_back(&store).await;
}

#[tokio::test]
async fn a_provider_that_fails_is_named_and_asked_again() {
    let server = RedisServer::start().await;
    set_password(&server, "first").await;
    let secret = Secret::new("first");
    let store = secret.for_store(RedisStore::builder(server.url()));
    let store = store.connect().await.unwrap();
    secret.set(None);
    disconnect(&server).await;
    let (key, a) = (key("k"), owner());
    eventually("the provider has failed", async || {
        let Err(error) = store.ask_for(attempt(&key, a)).await else {
            return false;
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let source = std::error::Error::source(&error);
        error.to_string().contains("provider of credentials")
            && source.is_some_and(|source| source.to_string() == "the vault is sealed")
    })
    .await;
    secret.set(Some("first"));
    assert_store_comes_back(&store).await;
}

#[tokio::test]
async fn a_provider_that_panics_or_hangs_ends_no_lane() {
    let server = RedisServer::start().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let builder = RedisStore::builder(server.url()).lanes(1).timeout(LIMIT);
    let store = builder.credentials(move || {
        let number = count.fetch_add(1, Ordering::SeqCst);
        assert!(number != 0, "the provider panics on purpose");
        async move {
            match number {
                1 => panic!("the provider panics on purpose, later"),
                2 => std::future::pending().await,
                _ => Ok::<_, &str>(Credentials::new("default", "")),
            }
        }
    });
    let store = store.build().unwrap();
    assert_store_comes_back(&store).await;
    assert!(asked.load(Ordering::SeqCst) >= 4);
}

#[tokio::test]
async fn a_password_alone_is_for_the_user_of_the_url() {
    let server = RedisServer::start().await;
    set_password(&server, "first").await;
    let url = server.url().replace("redis://", "redis://shop:outdated@");
    let provider = || async { Ok::<_, &str>(Credentials::password("first")) };
    let store = RedisStore::builder(url).credentials(provider);
    assert_store_comes_back(&store.connect().await.unwrap()).await;
    let shown = format!("{:?}", Credentials::new("shop", "secret"));
    assert!(
        shown.contains("shop") && !shown.contains("secret"),
        "{shown}"
    );
}
