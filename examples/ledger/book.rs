//! The ledger itself: balances that only the holder of the highest token may change.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use serde::{Deserialize, Serialize};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long to wait for a reply of the ledger's server.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of an account.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Account {
    pub(crate) balance: i64,
    pub(crate) deposits: u64,
    /// The highest token that was ever shown for the account.
    pub(crate) token: u64,
    /// The id of the deposit that was written last.
    pub(crate) last: String,
}

/// A deposit that was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// The id of the deposit that was the last one when this deposit read the account.
    pub(crate) previous: String,
    pub(crate) token: u64,
    pub(crate) balance: i64,
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
    entries: HashMap<String, Vec<Entry>>,
    /// The accounts of all payments, by tenant.
    payments: HashMap<String, Vec<String>>,
}

/// Shows a token, and writes the account and an entry if there is something to write. A lower token
/// than the highest is refused; an empty one is not compared.
const FENCED: &str = "
    if ARGV[1] ~= '' then
      local highest = redis.call('HGET', KEYS[1], 'token')
      if highest and tonumber(highest) > tonumber(ARGV[1]) then
        return false
      end
      redis.call('HSET', KEYS[1], 'token', ARGV[1])
    end
    if ARGV[2] then
      redis.call('HSET', KEYS[1], 'balance', ARGV[2], 'deposits', ARGV[3], 'last', ARGV[4])
      redis.call('RPUSH', KEYS[2], ARGV[5])
    end
    return redis.call('HMGET', KEYS[1], 'balance', 'deposits', 'token', 'last')";

/// What comes back: balance, deposits, token and last deposit, each only if there is one.
type Row = (Option<i64>, Option<u64>, Option<u64>, Option<String>);

impl Book {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    pub(crate) async fn in_redis(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        // A replica that was paused finds its timeouts over, although the reply is there.
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = client.get_connection_manager_with_config(config);
        Ok(Self::Redis(connection.await?))
    }

    /// What the account is at now, for whoever only looks.
    pub(crate) async fn look(&self, account: &str) -> Result<Account> {
        match self {
            Self::Memory(memory) => {
                let memory = memory.lock().unwrap();
                Ok(memory.accounts.get(account).cloned().unwrap_or_default())
            }
            Self::Redis(redis) => {
                let mut look = redis::cmd("HMGET");
                look.arg(name(account))
                    .arg(&["balance", "deposits", "token", "last"]);
                let row: Row = look.query_async(&mut redis.clone()).await?;
                Ok(row.into())
            }
        }
    }

    /// Begins to work on an account. From here on a holder of a lower token is refused: one that
    /// was paused between its reading and its writing could otherwise write what the next
    /// holder, who has read already, does not see.
    ///
    /// Without a token nothing is compared, and no writer is refused.
    pub(crate) async fn open(&self, account: &str, token: Option<u64>) -> Result<Option<Account>> {
        self.fenced(account, token, None).await
    }

    /// Writes an account and the deposit that changed it, unless a higher token was shown. Says
    /// whether both were written.
    pub(crate) async fn write(
        &self,
        account: &str,
        token: Option<u64>,
        new: (&Account, &Entry),
    ) -> Result<bool> {
        let written = self.fenced(account, token, Some(new)).await?;
        Ok(written.is_some())
    }

    /// All deposits to an account, in the order in which they were written.
    pub(crate) async fn entries(&self, account: &str) -> Result<Vec<Entry>> {
        match self {
            Self::Memory(memory) => {
                let memory = memory.lock().unwrap();
                Ok(memory.entries.get(account).cloned().unwrap_or_default())
            }
            Self::Redis(redis) => {
                let mut all = redis::cmd("LRANGE");
                all.arg(entries(account)).arg(0).arg(-1);
                let all: Vec<String> = all.query_async(&mut redis.clone()).await?;
                let parse = |entry: &String| Ok(serde_json::from_str(entry)?);
                all.iter().map(parse).collect()
            }
        }
    }

    /// Keeps a payment that is really made; returns how many there were by then.
    pub(crate) async fn pay(&self, tenant: &str, account: &str) -> Result<usize> {
        match self {
            Self::Memory(memory) => {
                let mut memory = memory.lock().unwrap();
                let payments = memory.payments.entry(tenant.to_owned()).or_default();
                payments.push(account.to_owned());
                Ok(payments.len())
            }
            Self::Redis(redis) => {
                let mut push = redis::cmd("RPUSH");
                push.arg(format!("ledger:payments:{tenant}")).arg(account);
                Ok(push.query_async(&mut redis.clone()).await?)
            }
        }
    }

    /// The accounts of all payments that were really made.
    pub(crate) async fn payments(&self, tenant: &str) -> Result<Vec<String>> {
        match self {
            Self::Memory(memory) => {
                let memory = memory.lock().unwrap();
                Ok(memory.payments.get(tenant).cloned().unwrap_or_default())
            }
            Self::Redis(redis) => {
                let mut all = redis::cmd("LRANGE");
                all.arg(format!("ledger:payments:{tenant}")).arg(0).arg(-1);
                Ok(all.query_async(&mut redis.clone()).await?)
            }
        }
    }

    async fn fenced(
        &self,
        account: &str,
        token: Option<u64>,
        new: Option<(&Account, &Entry)>,
    ) -> Result<Option<Account>> {
        match self {
            Self::Memory(memory) => {
                let memory = &mut *memory.lock().unwrap();
                let found = memory.accounts.entry(account.to_owned()).or_default();
                if token.is_some_and(|token| token < found.token) {
                    return Ok(None);
                }
                found.token = token.unwrap_or(found.token);
                if let Some((new, entry)) = new {
                    *found = new.clone();
                    let entries = memory.entries.entry(account.to_owned()).or_default();
                    entries.push(entry.clone());
                }
                Ok(Some(found.clone()))
            }
            Self::Redis(redis) => {
                let script = Script::new(FENCED);
                let mut call = script.key(name(account));
                call.key(entries(account));
                call.arg(token.map_or(String::new(), |token| token.to_string()));
                if let Some((new, entry)) = new {
                    call.arg(new.balance).arg(new.deposits).arg(&new.last);
                    call.arg(serde_json::to_string(entry)?);
                }
                let row: Option<Row> = call.invoke_async(&mut redis.clone()).await?;
                Ok(row.map(Account::from))
            }
        }
    }
}

impl From<Row> for Account {
    fn from((balance, deposits, token, last): Row) -> Self {
        Self {
            balance: balance.unwrap_or(0),
            deposits: deposits.unwrap_or(0),
            token: token.unwrap_or(0),
            last: last.unwrap_or_default(),
        }
    }
}

fn name(account: &str) -> String {
    format!("ledger:account:{account}")
}

fn entries(account: &str) -> String {
    format!("ledger:entries:{account}")
}
