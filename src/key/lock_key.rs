//! Lock keys.
//!
//! A [`LockKey`] is a checked text with its hashes. Keys that come from requests are written by
//! `assemble`; keys that a program writes itself are checked here.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::hash::seeded;
use crate::{Error, ErrorKind};

/// The name of a locked resource, the same in every process of the fleet.
///
/// Not empty, at most [`LockKey::MAX_LEN`] bytes, no control characters: an operator can read the
/// key in a terminal. Cheap to clone.
///
/// ```
/// use tower_distributed_lock::{ErrorKind, LockKey};
///
/// let key = LockKey::new("orders/42")?;
/// assert_eq!(key.as_str(), "orders/42");
/// assert_eq!(key, "orders/42".try_into()?);
///
/// // Methods of `Locks` accept anything that converts into a key, and report a text that cannot be one.
/// let error = LockKey::new("two\nlines").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidKey);
/// # Ok::<(), tower_distributed_lock::Error>(())
/// ```
///
/// Keys are ordered by their text.
#[derive(Clone)]
pub struct LockKey {
    text: Arc<str>,
    hash: u64,
    #[cfg(feature = "redis")]
    stable_hash: u64,
}

impl LockKey {
    /// The longest key, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Checks and wraps a key.
    ///
    /// Text from a client belongs into a [`RequestKey`](crate::key::RequestKey), which encodes such
    /// text. Two values that are simply joined can forge each other's keys:
    ///
    /// ```
    /// use tower_distributed_lock::{LockKey, key};
    ///
    /// // The tenant `a/b` with the order `c` would share a lock with the tenant `a` and the order `b/c`.
    /// let [one, other] = [("a/b", "c"), ("a", "b/c")];
    /// let joined = |(tenant, order): (&str, &str)| LockKey::new(format!("{tenant}/{order}"));
    /// assert_eq!(joined(one)?, joined(other)?);
    ///
    /// let encoded = |(tenant, order): (&str, &str)| {
    ///     key::name("order").value("tenant", tenant).value("id", order).lock_key()
    /// };
    /// assert_ne!(encoded(one)?, encoded(other)?);
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] when the text is empty, too long, or has a control character in
    /// it.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Error> {
        let text = text.into();
        Self::check(&text)?;
        Ok(Self::wrap(text))
    }

    fn check(text: &str) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::new(ErrorKind::InvalidKey, why));
        if text.is_empty() {
            return refuse("a lock key must not be empty".into());
        }
        if text.len() > Self::MAX_LEN {
            return refuse(format!(
                "a lock key has at most {} bytes, this one has {}: hash the long part of it",
                Self::MAX_LEN,
                text.len()
            ));
        }
        if let Some((at, control)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return refuse(format!(
                "a lock key must be readable: byte {at} is the control character {control:?}"
            ));
        }
        Ok(())
    }

    /// Wraps a text without a check: the text has no control characters, and was hashed if it was
    /// too long.
    pub(super) fn from_encoded(text: &str) -> Self {
        debug_assert!(Self::check(text).is_ok(), "not a key: {text:?}");
        Self::wrap(text.into())
    }

    fn wrap(text: Arc<str>) -> Self {
        Self {
            hash: seeded(&text),
            #[cfg(feature = "redis")]
            stable_hash: super::hash::stable(&text),
            text,
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The hash for maps, different in each process.
    pub(crate) fn map_hash(&self) -> u64 {
        self.hash
    }

    /// The key's group of so many, which is the same in all processes of a fleet.
    #[cfg(feature = "redis")]
    pub(crate) fn bucket(&self, of: usize) -> usize {
        (self.stable_hash % of.max(1) as u64) as usize
    }
}

impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text == other.text
    }
}

impl Eq for LockKey {}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl AsRef<str> for LockKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl TryFrom<&str> for LockKey {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<String> for LockKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<&LockKey> for LockKey {
    type Error = Error;

    fn try_from(key: &LockKey) -> Result<Self, Error> {
        Ok(key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let error = LockKey::new(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        error.to_string()
    }

    #[test]
    fn an_empty_overlong_or_unreadable_text_is_refused() {
        assert_eq!(refusal(""), "a lock key must not be empty");
        assert!(refusal("a\nb").contains(r"byte 1 is the control character '\n'"));
        assert!(refusal(&"x".repeat(LockKey::MAX_LEN + 1)).contains("this one has 1025"));
    }

    #[test]
    fn the_longest_text_and_any_script_are_accepted() {
        let longest = "x".repeat(LockKey::MAX_LEN);
        assert_eq!(LockKey::new(&*longest).unwrap().as_str(), longest);
        assert_eq!(LockKey::new("konto/ü 中").unwrap().as_str(), "konto/ü 中");
    }
}
