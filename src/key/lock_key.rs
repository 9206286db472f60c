//! The name of what is locked.

use std::{fmt, sync::Arc};

use crate::{Error, ErrorKind};

/// The name of what is locked, the same in every process of the fleet.
///
/// Not empty, at most [`LockKey::MAX_LEN`] bytes, no control characters: an operator must be able to read it in a
/// terminal. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// The longest key, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Checks and wraps a key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] when the text is empty, too long, or has a control character in it.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Error> {
        let text = text.into();
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
        Ok(Self(text))
    }

    /// Wraps what the encoder wrote: visible ASCII, and hashed when too long, so there is nothing to check.
    pub(super) fn from_encoded(text: &str) -> Self {
        debug_assert!(Self::new(text).is_ok(), "not a key: {text:?}");
        Self(text.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
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
    fn refuses_what_nobody_can_read() {
        assert_eq!(refusal(""), "a lock key must not be empty");
        assert!(refusal("a\nb").contains(r"byte 1 is the control character '\n'"));
        assert!(refusal(&"x".repeat(LockKey::MAX_LEN + 1)).contains("this one has 1025"));
    }

    #[test]
    fn keeps_the_longest_and_the_foreign() {
        let longest = "x".repeat(LockKey::MAX_LEN);
        assert_eq!(LockKey::new(&*longest).unwrap().as_str(), longest);
        assert_eq!(LockKey::new("konto/ü 中").unwrap().as_str(), "konto/ü 中");
    }
}
