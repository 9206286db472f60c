//! The keys of a memory store, in pages. The keys are sorted, and the cursor is the last key of a
//! page.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::MemoryStore;
use crate::{
    Error, LockKey,
    store::{Cursor, KeyPage, List},
};

/// The start of every cursor.
const AFTER: &str = "after:";

impl MemoryStore {
    /// See [`Store::list`](crate::store::Store::list).
    pub(in super::super) fn list_now(&self, request: &List) -> Result<KeyPage, Error> {
        let after = request.cursor.as_ref().map(last_key).transpose()?;
        let now = self.now();
        let mut keys = Vec::new();
        for shard in &self.0.shards {
            let mut shard = shard.lock();
            let wanted = shard.keys(now).filter(|key| {
                key.as_str().starts_with(&request.prefix)
                    && after.as_deref().is_none_or(|after| key.as_str() > after)
            });
            keys.extend(wanted.cloned());
        }
        keys.sort_unstable();
        let at_most = request.at_most.max(1);
        let is_last = keys.len() <= at_most;
        keys.truncate(at_most);
        let last = keys.last().filter(|_| !is_last);
        Ok(KeyPage {
            next: last.map(cursor_after),
            keys,
        })
    }
}

fn cursor_after(key: &LockKey) -> Cursor {
    let key = utf8_percent_encode(key.as_str(), NON_ALPHANUMERIC);
    Cursor::new(format!("{AFTER}{key}"))
}

fn last_key(cursor: &Cursor) -> Result<String, Error> {
    let key = cursor.as_str().strip_prefix(AFTER);
    let key = key.and_then(|key| percent_decode_str(key).decode_utf8().ok());
    key.map(Into::into).ok_or_else(Cursor::foreign)
}
