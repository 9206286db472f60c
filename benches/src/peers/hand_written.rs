//! What people write in a handler: `SET key token NX PX`, and a script that compares and deletes.

use std::{sync::LazyLock, time::Duration};

use redis::{
    AsyncConnectionConfig, Client as RedisClient, RedisResult, Script, aio::ConnectionLike,
    aio::MultiplexedConnection, cmd,
};
use tokio::time::sleep;
use uuid::Uuid;

use super::{Client, Key, LEASE};

/// How long to wait before the next attempt at a key that is held.
const RETRY: Duration = Duration::from_millis(10);

static COMPARE_AND_DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    )
});

/// One multiplexed connection.
#[derive(Clone)]
pub struct HandWritten(MultiplexedConnection);

/// A key that is held.
pub struct Held {
    pub(super) key: String,
    pub(super) token: String,
}

impl HandWritten {
    /// A client that waits for slow answers: under callgrind all takes fifty times as long.
    pub async fn patient(url: &str) -> Self {
        let minute = Some(Duration::from_secs(60));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(minute)
            .set_response_timeout(minute);
        let client = RedisClient::open(url).expect("a URL");
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Self(connection.await.expect("the server is up"))
    }

    /// The connection, for other commands.
    pub fn connection(&self) -> MultiplexedConnection {
        self.0.clone()
    }

    /// Waits for the key.
    pub async fn lock_text(&self, key: &str) -> Held {
        let token = Uuid::new_v4().to_string();
        let mut connection = self.0.clone();
        while !set_if_free(&mut connection, key, &token)
            .await
            .expect("SET")
        {
            sleep(RETRY).await;
        }
        Held {
            key: key.to_owned(),
            token,
        }
    }
}

pub(super) async fn set_if_free(
    connection: &mut impl ConnectionLike,
    key: &str,
    token: &str,
) -> RedisResult<bool> {
    let mut set = cmd("SET");
    set.arg(key).arg(token).arg("NX");
    set.arg("PX").arg(LEASE.as_millis() as u64);
    set.query_async(connection).await
}

pub(super) async fn compare_and_delete(
    connection: &mut impl ConnectionLike,
    held: &Held,
) -> RedisResult<bool> {
    let mut call = COMPARE_AND_DELETE.prepare_invoke();
    call.key(&held.key).arg(&held.token);
    call.invoke_async(connection).await
}

pub(super) async fn retry_later() {
    sleep(RETRY).await;
}

impl Client for HandWritten {
    const NAME: &'static str = "hand-written SET NX";
    const COMMANDS: &'static [&'static str] = &["set", "evalsha", "eval"];

    type Guard = Held;

    async fn connect(url: &str) -> Self {
        let client = RedisClient::open(url).expect("a URL");
        let connection = client.get_multiplexed_async_connection();
        Self(connection.await.expect("the server is up"))
    }

    async fn lock(&self, key: &Key) -> Held {
        self.lock_text(&key.text).await
    }

    async fn release(&self, held: Held) {
        let deleted = compare_and_delete(&mut self.0.clone(), &held).await;
        assert!(deleted.expect("compare-and-delete"), "the key was lost");
    }
}
