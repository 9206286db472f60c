//! Hashes of values and keys that are too long, or must not be stored.
//!
//! ```text
//! path=/very/long…                    value too long      path#sha256=9f86d081…
//! account,tenant=…,id=…               key too long        account,#sha256=9f86d081…
//! account,tenant=acme,id=7            with a secret       account,#hmac-sha256=5b2f…
//! ```
//!
//! A `#` in a name, label or value is encoded, so no request can write the label of a hash.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::encode::{self, IS_HMAC_SHA256, IS_SHA256, NEXT};

/// Replaces `out[separator_at..]`, a separator and the value after it, by the hash of the value.
pub(super) fn hash_value(out: &mut String, separator_at: usize) {
    let digest = Sha256::digest(&out.as_bytes()[separator_at + 1..]);
    out.truncate(separator_at);
    out.push_str(IS_SHA256);
    encode::push_hex(out, &digest);
}

/// Replaces a key by its hash, after its first `readable` bytes.
pub(super) fn hash_key(out: &mut String, readable: usize) {
    let digest = Sha256::digest(out.as_bytes());
    replace_key(out, readable, IS_SHA256, &digest);
}

/// Keeps the first `readable` bytes, and appends the label and the digest.
fn replace_key(out: &mut String, readable: usize, label: &str, digest: &[u8]) {
    out.truncate(readable);
    if readable > 0 {
        out.push_str(NEXT);
    }
    out.push_str(label);
    encode::push_hex(out, digest);
}

/// The secret of a keyed hash, ready for use.
#[derive(Clone)]
pub(super) struct Secret(Hmac<Sha256>);

impl Secret {
    /// A shorter secret could be guessed, and with it the hidden names.
    pub(super) const MIN_LEN: usize = 16;

    pub(super) fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes a key of any length"))
    }

    /// Like [`hash_key`], with a hash that cannot be computed without the secret.
    pub(super) fn hash_key(&self, out: &mut String, readable: usize) {
        let mut mac = self.0.clone();
        mac.update(out.as_bytes());
        replace_key(out, readable, IS_HMAC_SHA256, &mac.finalize().into_bytes());
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
