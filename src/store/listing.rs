//! The listing of a store's keys, in pages.

use std::{fmt, str::FromStr, sync::Arc};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Error, ErrorKind, LockKey};

/// The number of keys on a page, unless the request says otherwise.
const USUAL_PAGE: usize = 100;

/// The longest cursor, in bytes: the longest key in its longest encoding, for each node of a large
/// quorum.
const LONGEST_CURSOR: usize = 64 * 1024;

/// The start of a cursor that is a key.
const AFTER_KEY: &str = "after:";

/// A request for one page of the keys in a store. See [`Locks::list`](crate::Locks::list).
///
/// ```
/// use tower_distributed_lock::store::List;
///
/// let request = List::starting_with("orders/").at_most(50);
/// assert_eq!((&*request.prefix, request.at_most), ("orders/", 50));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct List {
    /// The text that the keys start with. All keys start with the empty text.
    pub prefix: String,
    /// Where the last page ended. `None` for the first page.
    pub cursor: Option<Cursor>,
    /// The number of keys with which a page ends. A page can have fewer keys, or none, and still
    /// have a next page. A page from Redis can have a few more, because Redis returns the keys
    /// in small groups.
    pub at_most: usize,
}

impl List {
    /// Lists all keys, 100 on a page.
    pub fn all() -> Self {
        Self::starting_with("")
    }

    /// Lists the keys that start with this text, 100 on a page. Every character stands for itself:
    /// there are no wildcards.
    pub fn starting_with(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            cursor: None,
            at_most: USUAL_PAGE,
        }
    }

    /// Continues where an earlier page ended ([`KeyPage::next`]), for a listing with the same
    /// prefix.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// Sets the number of keys with which a page ends, at least one.
    #[must_use]
    pub fn at_most(mut self, keys: usize) -> Self {
        self.at_most = keys;
        self
    }
}

/// One page of keys. See [`Locks::list`](crate::Locks::list).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// use tower_distributed_lock::store::List;
///
/// let guard = locks.lock("orders/42").await?;
/// let page = locks.list(List::all()).await?;
/// assert_eq!(page.keys, [guard.key().clone()]);
/// assert!(page.next.is_none()); // the last page
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPage {
    /// The keys of this page, in ascending order.
    pub keys: Vec<LockKey>,
    /// Where the next page starts. `None` on the last page.
    pub next: Option<Cursor>,
}

/// The position of a listing between two pages: an opaque text of visible ASCII characters.
///
/// A cursor belongs to one store and one prefix. The text can be sent to a client and back. Like a
/// key, a cursor may be personal data.
///
/// ```
/// use tower_distributed_lock::store::{Cursor, List};
///
/// // From a client that asks for the next page.
/// let cursor: Cursor = "orders/42".parse()?;
/// let request = List::starting_with("orders/").after(cursor);
/// assert!("two lines\n".parse::<Cursor>().is_err());
/// # Ok::<(), tower_distributed_lock::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Arc<str>);

impl Cursor {
    pub(super) fn new(text: String) -> Self {
        Self(text.into())
    }

    /// The error of a store that did not make this cursor.
    pub(super) fn foreign() -> Error {
        Error::new(
            ErrorKind::InvalidConfig,
            "the cursor is not one of this store: start the listing again, without a cursor",
        )
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The cursor of a store that lists its keys in order: the last key of a page.
    pub(super) fn after_key(key: &LockKey) -> Self {
        let key = utf8_percent_encode(key.as_str(), NON_ALPHANUMERIC);
        Self::new(format!("{AFTER_KEY}{key}"))
    }

    /// The key of [`after_key`](Self::after_key).
    pub(super) fn last_key(&self) -> Result<String, Error> {
        let key = self.as_str().strip_prefix(AFTER_KEY);
        let key = key.and_then(|key| percent_decode_str(key).decode_utf8().ok());
        key.map(Into::into).ok_or_else(Self::foreign)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_cursor = (1..=LONGEST_CURSOR).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_cursor
            .then(|| Self(text.into()))
            .ok_or_else(Self::foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_and_other_texts_are_refused() {
        let cursor = Cursor::new("redis:17".into());
        assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        for text in ["", "a b", "a\n", "ä", &"a".repeat(LONGEST_CURSOR + 1)] {
            let error = text.parse::<Cursor>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        }
    }
}
