//! The keys of a memory store, in pages. The keys are sorted, and the cursor is the last key of a
//! page.

use super::MemoryStore;
use crate::{
    Error,
    store::{Cursor, KeyPage, List},
};

impl MemoryStore {
    /// See [`Store::list`](crate::store::Store::list).
    pub(in super::super) fn list_now(&self, request: &List) -> Result<KeyPage, Error> {
        let after = request.cursor.as_ref().map(Cursor::last_key).transpose()?;
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
            next: last.map(Cursor::after_key),
            keys,
        })
    }
}
