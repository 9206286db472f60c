//! A refusal as bytes, in the record of an answer that is one.
//!
//! ```text
//! reason           its code, as a text: the length u16, then the bytes
//! detail           a text
//! instance         16 bytes
//! retry after      u64, in milliseconds; the largest number means none
//! protocol         1 byte: H HTTP, G gRPC
//! made by          1 byte: L a layer or an extractor, P the program, N the program before it acted
//! idempotency key  a text; empty for none
//! ```
//! The cause, which is for the log only, and the id of the request are not kept.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::{By, Reason, Rejection};

const NO_RETRY: u64 = u64::MAX;

impl Rejection {
    pub(crate) fn encode(&self, bytes: &mut BytesMut) {
        put_text(bytes, self.reason.code());
        put_text(bytes, &self.detail);
        bytes.put_slice(self.instance.as_bytes());
        let millis = self.retry_after.map(|after| after.as_millis());
        let millis = millis.map(|it| it.try_into().unwrap_or(NO_RETRY - 1));
        bytes.put_u64(millis.unwrap_or(NO_RETRY));
        bytes.put_u8(if self.asked.is_grpc { b'G' } else { b'H' });
        bytes.put_u8(match self.by {
            By::Layer => b'L',
            By::Program => b'P',
            By::ProgramBeforeItActed => b'N',
        });
        put_text(bytes, self.idempotency_key().unwrap_or_default());
    }

    /// Reads a refusal; `None` if the bytes are damaged, or the reason is not known.
    pub(crate) fn decode(bytes: &mut Bytes) -> Option<Self> {
        let code = take_text(bytes)?;
        let reason = Reason::ALL.iter().find(|it| it.code() == code)?;
        let mut rejection = Self::new(*reason, take_text(bytes)?);
        rejection.instance = Uuid::from_u128(bytes.try_get_u128().ok()?);
        rejection.retry_after = match bytes.try_get_u64().ok()? {
            NO_RETRY => None,
            millis => Some(Duration::from_millis(millis)),
        };
        rejection.asked.is_grpc = match bytes.try_get_u8().ok()? {
            b'H' => false,
            b'G' => true,
            _ => return None,
        };
        rejection.by = match bytes.try_get_u8().ok()? {
            b'L' => By::Layer,
            b'P' => By::Program,
            b'N' => By::ProgramBeforeItActed,
            _ => return None,
        };
        let key = Some(take_text(bytes)?).filter(|key| !key.is_empty());
        rejection.idempotency_key = key.map(Into::into);
        Some(rejection)
    }
}

/// Writes a text; a longer one than the format allows is cut.
fn put_text(bytes: &mut BytesMut, text: &str) {
    let longest = text.len().min(usize::from(u16::MAX));
    let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at));
    let text = &text[..end.unwrap_or_default()];
    bytes.put_u16(text.len() as u16);
    bytes.put_slice(text.as_bytes());
}

fn take_text(bytes: &mut Bytes) -> Option<String> {
    let len = usize::from(bytes.try_get_u16().ok()?);
    let text = (len <= bytes.len()).then(|| bytes.split_to(len))?;
    String::from_utf8(text.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::Asked;

    #[test]
    fn a_refusal_survives_its_bytes() {
        let plain = Rejection::new(Reason::LeaseLost, "lost");
        let grpc = Rejection::new(Reason::NoPermit, "all 4 permits are in use")
            .with_retry_after(Duration::from_millis(1500))
            .with_idempotency_key("k")
            .to(Asked {
                is_grpc: true,
                request: None,
            });
        for rejection in [plain, grpc] {
            let mut bytes = BytesMut::new();
            rejection.encode(&mut bytes);
            let whole = bytes.freeze();
            let read = Rejection::decode(&mut whole.clone()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{rejection:?}"));
            for cut in 0..whole.len() {
                assert!(Rejection::decode(&mut whole.slice(..cut)).is_none());
            }
        }
    }
}
