//! A balance that only the holder of the highest token may change, on a server of its own, which no fail-over loses.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use redis::{Script, aio::MultiplexedConnection};

use super::redis_server::RedisServer;

pub struct Ledger {
    _server: RedisServer,
    connection: MultiplexedConnection,
    /// How many deposits were written.
    written: AtomicI64,
    refused: AtomicI64,
}

/// Shows a token, and writes the balance if there is one to write. Nothing for a lower token than the highest.
const FENCED: &str = "
    local highest = redis.call('HGET', KEYS[1], 'token')
    if highest and tonumber(highest) > tonumber(ARGV[1]) then
      return false
    end
    redis.call('HSET', KEYS[1], 'token', ARGV[1])
    if ARGV[2] then
      redis.call('HSET', KEYS[1], 'balance', ARGV[2])
    end
    return tonumber(redis.call('HGET', KEYS[1], 'balance') or '0')";

impl Ledger {
    pub async fn start() -> Self {
        let server = RedisServer::start().await;
        Self {
            connection: server.connection().await,
            _server: server,
            written: AtomicI64::new(0),
            refused: AtomicI64::new(0),
        }
    }

    /// Adds one to the balance: reads, works for a while, writes. Says whether the token was still good.
    pub async fn deposit(
        &self,
        account: &str,
        token: u64,
        work: std::time::Duration,
    ) -> bool {
        let Some(balance) = self.fenced(account, token, None).await else {
            self.refused.fetch_add(1, SeqCst);
            return false;
        };
        tokio::time::sleep(work).await;
        let written = self
            .fenced(account, token, Some(balance + 1))
            .await
            .is_some();
        let count = if written {
            &self.written
        } else {
            &self.refused
        };
        count.fetch_add(1, SeqCst);
        written
    }

    pub async fn balance(&self, account: &str) -> i64 {
        let balance: Option<i64> = redis::cmd("HGET")
            .arg(account)
            .arg("balance")
            .query_async(&mut self.connection.clone())
            .await
            .unwrap();
        balance.unwrap_or(0)
    }

    /// Each deposit that was written counts, and nothing else does.
    pub async fn assert_exact(&self, account: &str) {
        let written = self.written.load(SeqCst);
        println!("{written} written, {} refused", self.refused.load(SeqCst));
        assert_eq!(self.balance(account).await, written);
        assert!(written > 0);
    }

    pub fn written(&self) -> i64 {
        self.written.load(SeqCst)
    }

    async fn fenced(&self, account: &str, token: u64, balance: Option<i64>) -> Option<i64> {
        let script = Script::new(FENCED);
        let mut call = script.key(account);
        call.arg(token);
        if let Some(balance) = balance {
            call.arg(balance);
        }
        call.invoke_async(&mut self.connection.clone())
            .await
            .unwrap()
    }
}
