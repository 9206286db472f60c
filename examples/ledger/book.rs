//! The ledger itself: balances that only the holder of the highest token may change.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex},
};

use redis::{Script, aio::ConnectionManager};
use serde::Serialize;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is known of an account.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Account {
    pub(crate) balance: i64,
    pub(crate) deposits: u64,
    /// The highest token that was ever shown for the account.
    pub(crate) token: u64,
}

/// Where the accounts are kept: all replicas of a fleet need the same.
#[derive(Clone)]
pub(crate) enum Book {
    Memory(Arc<Mutex<Memory>>),
    Redis(ConnectionManager),
}

#[derive(Default)]
pub(crate) struct Memory {
    accounts: HashMap<String, Account>,
    payments: HashMap<String, u64>,
}

/// Shows a token, and writes the account if there is something to write. A lower token than the highest is refused.
const FENCED: &str = "
    local highest = redis.call('HGET', KEYS[1], 'token')
    if highest and tonumber(highest) > tonumber(ARGV[1]) then
      return false
    end
    redis.call('HSET', KEYS[1], 'token', ARGV[1])
    if ARGV[2] then
      redis.call('HSET', KEYS[1], 'balance', ARGV[2], 'deposits', ARGV[3])
    end
    return redis.call('HMGET', KEYS[1], 'balance', 'deposits', 'token')";

/// What comes back: balance, deposits and token, each only if there is one.
type Row = (Option<i64>, Option<u64>, Option<u64>);

impl Book {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    pub(crate) async fn in_redis(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self::Redis(client.get_connection_manager().await?))
    }

    /// What the account is at now, for whoever only looks.
    pub(crate) async fn look(&self, account: &str) -> Result<Account> {
        match self {
            Self::Memory(memory) => {
                let memory = memory.lock().unwrap();
                Ok(memory.accounts.get(account).copied().unwrap_or_default())
            }
            Self::Redis(redis) => {
                let mut look = redis::cmd("HMGET");
                look.arg(name(account))
                    .arg(&["balance", "deposits", "token"]);
                let row: Row = look.query_async(&mut redis.clone()).await?;
                Ok(row.into())
            }
        }
    }

    /// Begins to work on an account. From here on a holder of a lower token is refused: one that was paused between
    /// its reading and its writing could otherwise write what the next holder, who has read already, does not see.
    pub(crate) async fn open(&self, account: &str, token: u64) -> Result<Option<Account>> {
        self.fenced(account, token, None).await
    }

    /// Writes an account, unless a higher token was shown for it. Says whether it was written.
    pub(crate) async fn write(&self, account: &str, new: Account) -> Result<bool> {
        let written = self.fenced(account, new.token, Some(new)).await?;
        Ok(written.is_some())
    }

    /// Counts a payment that is really made; returns how many there were by then.
    pub(crate) async fn pay(&self, tenant: &str) -> Result<u64> {
        self.add_payments(tenant, 1).await
    }

    /// How many payments were really made.
    pub(crate) async fn payments(&self, tenant: &str) -> Result<u64> {
        self.add_payments(tenant, 0).await
    }

    async fn add_payments(&self, tenant: &str, more: u64) -> Result<u64> {
        match self {
            Self::Memory(memory) => {
                let mut memory = memory.lock().unwrap();
                let count = memory.payments.entry(tenant.to_owned()).or_default();
                *count += more;
                Ok(*count)
            }
            Self::Redis(redis) => {
                let mut add = redis::cmd("INCRBY");
                add.arg(format!("ledger:payments:{tenant}")).arg(more);
                Ok(add.query_async(&mut redis.clone()).await?)
            }
        }
    }

    async fn fenced(
        &self,
        account: &str,
        token: u64,
        new: Option<Account>,
    ) -> Result<Option<Account>> {
        match self {
            Self::Memory(memory) => {
                let mut memory = memory.lock().unwrap();
                let found = memory.accounts.entry(account.to_owned()).or_default();
                if token < found.token {
                    return Ok(None);
                }
                found.token = token;
                *found = new.unwrap_or(*found);
                Ok(Some(*found))
            }
            Self::Redis(redis) => {
                let script = Script::new(FENCED);
                let mut call = script.key(name(account));
                call.arg(token);
                if let Some(new) = new {
                    call.arg(new.balance).arg(new.deposits);
                }
                let row: Option<Row> = call.invoke_async(&mut redis.clone()).await?;
                Ok(row.map(Account::from))
            }
        }
    }
}

impl From<Row> for Account {
    fn from((balance, deposits, token): Row) -> Self {
        Self {
            balance: balance.unwrap_or(0),
            deposits: deposits.unwrap_or(0),
            token: token.unwrap_or(0),
        }
    }
}

fn name(account: &str) -> String {
    format!("ledger:account:{account}")
}
