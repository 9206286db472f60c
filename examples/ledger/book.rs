//! The ledger itself: balances that only the holder of the highest token may change.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use serde::Serialize;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What is known of an account.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Account {
    pub(crate) balance: i64,
    pub(crate) deposits: u64,
    /// The highest token that was ever shown for the account.
    pub(crate) token: u64,
}

/// Where the accounts are kept.
#[derive(Clone)]
pub(crate) enum Book {
    Memory(Arc<Mutex<HashMap<String, Account>>>),
}

impl Book {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    /// What the account is at now, for whoever only looks.
    pub(crate) async fn look(&self, account: &str) -> Result<Account> {
        match self {
            Self::Memory(accounts) => Ok(accounts
                .lock()
                .unwrap()
                .get(account)
                .copied()
                .unwrap_or_default()),
        }
    }

    /// Begins to work on an account. From here on a holder of a lower token is refused: one that was paused between
    /// its reading and its writing could otherwise write what the next holder, who has read already, does not see.
    pub(crate) async fn open(&self, account: &str, token: u64) -> Result<Option<Account>> {
        match self {
            Self::Memory(accounts) => {
                let mut accounts = accounts.lock().unwrap();
                let found = accounts.entry(account.to_owned()).or_default();
                if token < found.token {
                    return Ok(None);
                }
                found.token = token;
                Ok(Some(*found))
            }
        }
    }

    /// Writes an account, unless a higher token was shown for it. Says whether it was written.
    pub(crate) async fn write(&self, account: &str, new: Account) -> Result<bool> {
        match self {
            Self::Memory(accounts) => {
                let mut accounts = accounts.lock().unwrap();
                let found = accounts.entry(account.to_owned()).or_default();
                if new.token < found.token {
                    return Ok(false);
                }
                *found = new;
                Ok(true)
            }
        }
    }
}
