//! A slot as bytes, for stores that keep a key's state in a database.
//!
//! ```text
//! version (1)
//! leases: number   each: owner (24)  mode (5)  until (8)  fingerprint, label: length + 1, or 0, and its bytes
//! queue:  number   each: owner (24)  mode (5)  until (8)  offered: 1 and the moment (8), or 0
//! ```
//!
//! Numbers and lengths are four bytes, all in the order of the network. Equal slots have equal
//! bytes, so a call that changes nothing is noticed by comparing them. The record of a key is not
//! among them: it may be large, and a database has another place for it.
//!
//! Whoever reads the bytes may not have written them, and a lease that is misread is granted twice.
//! So nothing is guessed: bytes that [`encode`](Slot::encode) would not write are refused.

use std::{fmt, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{
    super::{Acquire, Held, Instance, Mode, Owner},
    Attempt, Lease, Leases, Moment, Record, Slot, Step,
};

const VERSION: u8 = 1;

/// The bytes are not a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Damaged {
    /// Another version of this crate has written them.
    Version(u8),
    Content,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(found) => {
                write!(
                    f,
                    "the state of the key has version {found}, not {VERSION}: \
                     another version of tower-distributed-lock has written it"
                )
            }
            Self::Content => f.write_str("the state of the key is damaged"),
        }
    }
}

impl Slot {
    /// Writes the leases and the queue.
    pub(in super::super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(64);
        bytes.put_u8(VERSION);
        bytes.put_u32(self.leases.len() as u32);
        for (owner, lease) in self.leases.iter() {
            put_entry(&mut bytes, owner, lease.mode, lease.until);
            put_optional(&mut bytes, lease.fingerprint.as_deref());
            put_optional(&mut bytes, lease.label.as_deref().map(str::as_bytes));
        }
        bytes.put_u32(self.queue.len() as u32);
        for attempt in &self.queue {
            put_entry(&mut bytes, attempt.owner, attempt.mode, attempt.until);
            bytes.put_u8(attempt.offered.is_some().into());
            if let Some(Moment(at)) = attempt.offered {
                bytes.put_u64(at);
            }
        }
        bytes.freeze()
    }

    /// Reads what [`encode`](Self::encode) has written.
    pub(in super::super) fn decode(mut bytes: Bytes) -> Result<Self, Damaged> {
        let whole = bytes.clone();
        match bytes.try_get_u8() {
            Ok(VERSION) => {}
            Ok(other) => return Err(Damaged::Version(other)),
            Err(_) => return Err(Damaged::Content),
        }
        let slot = Self::decode_entries(&mut bytes).ok_or(Damaged::Content)?;
        // Leases out of order or twice, and bytes behind the end.
        if slot.encode() != whole {
            return Err(Damaged::Content);
        }
        Ok(slot)
    }

    fn decode_entries(bytes: &mut Bytes) -> Option<Self> {
        let mut slot = Self::default();
        for _ in 0..bytes.try_get_u32().ok()? {
            let (owner, mode, until) = get_entry(bytes)?;
            let fingerprint = get_optional(bytes)?;
            let label = match get_optional(bytes)? {
                Some(label) => Some(Arc::from(std::str::from_utf8(&label).ok()?)),
                None => None,
            };
            let lease = Lease {
                mode,
                until,
                fingerprint,
                label,
            };
            slot.leases.set(owner, lease);
        }
        for _ in 0..bytes.try_get_u32().ok()? {
            let (owner, mode, until) = get_entry(bytes)?;
            let offered = match bytes.try_get_u8().ok()? {
                0 => None,
                _ => Some(Moment(bytes.try_get_u64().ok()?)),
            };
            slot.queue.push_back(Attempt {
                owner,
                mode,
                until,
                offered,
            });
        }
        Some(slot)
    }
}

/// What a store that keeps slots elsewhere asks beside the rules.
impl Slot {
    /// The record, if there is one.
    pub(in super::super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Adds the record, which takes the place of the lease. A record that a transaction has written
    /// leaves its owner the lease, to be renewed until it is released.
    pub(in super::super) fn set_record(&mut self, record: Record) {
        let lease = self.leases.get(record.owner).cloned();
        self.leases = Leases::default();
        if let Some(lease) = lease {
            self.leases.set(record.owner, lease);
        }
        self.record = Some(record);
    }

    /// Writes a label into the leases of an attempt.
    pub(in super::super) fn set_label(&mut self, request: &Acquire, label: &Arc<str>) {
        for owner in request.owners() {
            if let Some(lease) = self.leases.get(owner).cloned() {
                let label = Some(label.clone());
                self.leases.set(owner, Lease { label, ..lease });
            }
        }
    }

    /// As [`acquire`](Self::acquire), for an attempt that is not granted the key although there is
    /// room for it, and may ask again after `remaining`.
    pub(in super::super) fn stand_by(
        &mut self,
        request: &Acquire,
        step: &mut Step<'_>,
        remaining: Duration,
    ) -> Held {
        if !request.ends.is_empty() {
            self.end_all(request, step);
        }
        self.take_place(request, step);
        let mut queue = self.queue.iter_mut();
        if let Some(attempt) = queue.find(|it| it.owner == request.owner) {
            // It does not leave the key untaken.
            attempt.offered = None;
        }
        Held {
            remaining,
            fingerprint: None,
            label: None,
        }
    }

    /// When the place of an attempt expires, if it has one.
    pub(in super::super) fn place_until(&self, owner: Owner) -> Option<Moment> {
        let mut queue = self.queue.iter();
        queue.find(|it| it.owner == owner).map(|it| it.until)
    }

    /// Sets when the place of an attempt expires, if it has one.
    pub(in super::super) fn set_place_until(&mut self, owner: Owner, until: Moment) {
        let mut queue = self.queue.iter_mut();
        if let Some(attempt) = queue.find(|it| it.owner == owner) {
            attempt.until = until;
        }
    }

    /// When the last entry of the slot expires, or `None` if the slot is empty.
    pub(in super::super) fn latest_expiry(&self) -> Option<Moment> {
        let leases = self.leases.iter().map(|(_, lease)| lease.until);
        let queue = self.queue.iter().map(|attempt| attempt.until);
        let record = self.record.as_ref().map(|record| record.until);
        leases.chain(queue).chain(record).max()
    }
}

fn put_entry(bytes: &mut BytesMut, owner: Owner, mode: Mode, until: Moment) {
    bytes.put_slice(&owner.instance.to_bytes());
    bytes.put_u64(owner.attempt);
    let (tag, of) = match mode {
        Mode::Exclusive => (b'e', 0),
        Mode::Shared => (b's', 0),
        Mode::Permit { of } => (b'p', of),
    };
    bytes.put_u8(tag);
    bytes.put_u32(of);
    bytes.put_u64(until.0);
}

fn put_optional(bytes: &mut BytesMut, value: Option<&[u8]>) {
    bytes.put_u32(value.map_or(0, |value| value.len() + 1) as u32);
    bytes.put_slice(value.unwrap_or_default());
}

/// A value that may be there: `None` if the bytes end before it does.
fn get_optional(bytes: &mut Bytes) -> Option<Option<Bytes>> {
    let Some(length) = bytes.try_get_u32().ok()?.checked_sub(1) else {
        return Some(None);
    };
    let is_whole = bytes.len() as u64 >= u64::from(length);
    is_whole.then(|| Some(bytes.split_to(length as usize)))
}

fn get_entry(bytes: &mut Bytes) -> Option<(Owner, Mode, Moment)> {
    let mut instance = [0; 16];
    bytes.try_copy_to_slice(&mut instance).ok()?;
    let owner = Owner {
        instance: Instance::from_bytes(instance),
        attempt: bytes.try_get_u64().ok()?,
    };
    let mode = match (bytes.try_get_u8().ok()?, bytes.try_get_u32().ok()?) {
        (b'e', 0) => Mode::Exclusive,
        (b's', 0) => Mode::Shared,
        (b'p', of) => Mode::Permit { of },
        _ => return None,
    };
    Some((owner, mode, Moment(bytes.try_get_u64().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(attempt: u64) -> Owner {
        Owner {
            instance: Instance::new(),
            attempt,
        }
    }

    fn slot(modes: &[Mode], fingerprint: Option<&'static [u8]>) -> Slot {
        let mut slot = Slot::default();
        for (n, mode) in modes.iter().enumerate() {
            let lease = Lease {
                mode: *mode,
                until: Moment(1_000 - n as u64),
                fingerprint: fingerprint.map(Bytes::from_static),
                label: fingerprint.map(|_| "web-3".into()),
            };
            slot.leases.set(owner(n as u64), lease);
            slot.queue.push_back(Attempt {
                owner: owner(u64::MAX - n as u64),
                mode: *mode,
                until: Moment(u64::MAX),
                offered: (n % 2 == 0).then_some(Moment(7)),
            });
        }
        slot
    }

    fn slots() -> Vec<Slot> {
        let permits = [Mode::Permit { of: u32::MAX }, Mode::Permit { of: 2 }];
        vec![
            Slot::default(),
            slot(&[Mode::Exclusive], None),
            slot(&[Mode::Exclusive], Some(b"")),
            slot(&[Mode::Exclusive], Some(b"digest")),
            slot(&[Mode::Shared; 3], None),
            slot(&permits, None),
        ]
    }

    #[test]
    fn a_slot_survives_its_bytes() {
        for slot in slots() {
            let read = Slot::decode(slot.encode()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{slot:?}"));
        }
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        for slot in slots() {
            let bytes = slot.encode();
            for length in 0..bytes.len() {
                assert!(Slot::decode(bytes.slice(..length)).is_err(), "{length}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(Slot::decode(longer.into()).is_err());
        }
    }

    /// A changed byte is refused, or is another slot, which these bytes stand for.
    #[test]
    fn a_changed_byte_neither_panics_nor_is_read_loosely() {
        for slot in slots() {
            let bytes = slot.encode();
            for (at, value) in (0..bytes.len()).flat_map(|at| (0..=255).map(move |v| (at, v))) {
                let mut changed = bytes.to_vec();
                changed[at] = value;
                let changed = Bytes::from(changed);
                if let Ok(read) = Slot::decode(changed.clone()) {
                    assert_eq!(read.encode(), changed);
                }
            }
        }
    }

    #[test]
    fn another_version_is_told_apart_from_damage() {
        let mut bytes = Slot::default().encode().to_vec();
        bytes[0] = 2;
        let error = Slot::decode(bytes.into()).unwrap_err();
        assert_eq!(error, Damaged::Version(2));
        assert_eq!(Slot::decode(Bytes::new()).unwrap_err(), Damaged::Content);
    }

    #[test]
    fn leases_out_of_order_or_twice_are_refused() {
        let bytes = slot(&[Mode::Shared; 2], None).encode();
        let lease = 24 + 5 + 8 + 4;
        let (first, second) = (5..5 + lease, 5 + lease..5 + 2 * lease);
        let swapped = [
            &bytes[..5],
            &bytes[second.clone()],
            &bytes[first.clone()],
            &bytes[second.end..],
        ];
        assert!(Slot::decode(swapped.concat().into()).is_err());
        let twice = [
            &bytes[..5],
            &bytes[first.clone()],
            &bytes[first],
            &bytes[second.end..],
        ];
        assert!(Slot::decode(twice.concat().into()).is_err());
    }
}
