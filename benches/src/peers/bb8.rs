//! The hand-written lock over a pool of bb8-redis with its defaults: ten connections, and a PING at every check-out.

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use uuid::Uuid;

use super::{
    Client, Held, Key,
    hand_written::{compare_and_delete, retry_later, set_if_free},
};

#[derive(Clone)]
pub struct Bb8(Pool<RedisConnectionManager>);

impl Client for Bb8 {
    const NAME: &'static str = "bb8-redis, defaults";
    const COMMANDS: &'static [&'static str] = &["set", "evalsha", "eval", "ping"];

    type Guard = Held;

    async fn connect(url: &str) -> Self {
        let manager = RedisConnectionManager::new(url).expect("a URL");
        Self(
            Pool::builder()
                .build(manager)
                .await
                .expect("the server is up"),
        )
    }

    async fn lock(&self, key: &Key) -> Held {
        let token = Uuid::new_v4().to_string();
        loop {
            let mut connection = self.0.get().await.expect("a connection");
            let is_set = set_if_free(&mut *connection, &key.text, &token).await;
            drop(connection);
            if is_set.expect("SET") {
                let key = key.text.clone();
                return Held { key, token };
            }
            retry_later().await;
        }
    }

    async fn release(&self, held: Held) {
        let mut connection = self.0.get().await.expect("a connection");
        let deleted = compare_and_delete(&mut *connection, &held).await;
        assert!(deleted.expect("compare-and-delete"), "the key was lost");
    }
}
