//! The value of a lock: a lease, a record, or the holders of a key that is shared or counted.
//! `value.lua` and `holders.lua` read the same format, and `queue.lua` that of the attempts in the
//! queue.
//!
//! ```text
//! lease:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3                  a lease
//! lease:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3 <fingerprint>    a lease for an idempotent request
//! wanted:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3                 a lease that others wait for, or have waited for
//! record:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7 <content>             a record
//! shared:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3                 a holder of a shared key
//! permit:4:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3               a holder of one of four permits
//! ```

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use super::names::put_number;
use crate::store::{Mode, Owner, label::is_label};

/// Writes a lease in a form that an operator can read: `lease:<instance>:<attempt>@<label>`, then a
/// space and the fingerprint if there is one. Without a label, the `@` is left out as well.
pub(super) fn lease(
    owner: Owner,
    label: Option<&str>,
    fingerprint: Option<&Bytes>,
    to: &mut impl BufMut,
) {
    to.put_slice(b"lease:");
    put_owner(owner, to);
    put_label(label, to);
    if let Some(fingerprint) = fingerprint {
        to.put_u8(b' ');
        to.put_slice(fingerprint);
    }
}

/// Writes a record: `record:<instance>:<attempt>`, a space, and its content.
pub(super) fn record(owner: Owner, content: &Bytes, to: &mut impl BufMut) {
    to.put_slice(b"record:");
    put_owner(owner, to);
    to.put_u8(b' ');
    to.put_slice(content);
}

/// Writes a holder of a key that is shared or counted: `shared:<instance>:<attempt>@<label>`, or
/// `permit:<number of permits>:<instance>:<attempt>@<label>`.
pub(super) fn holder(owner: Owner, mode: Mode, label: Option<&str>, to: &mut impl BufMut) {
    match mode {
        Mode::Permit { of } => {
            to.put_slice(b"permit:");
            put_number(of.into(), to);
            to.put_u8(b':');
        }
        Mode::Shared | Mode::Exclusive => to.put_slice(b"shared:"),
    }
    put_owner(owner, to);
    put_label(label, to);
}

/// Writes the name of an attempt: `<instance>:<attempt>`, after the mode if it is not exclusive.
pub(super) fn attempt(owner: Owner, mode: Mode, to: &mut impl BufMut) {
    if mode == Mode::Exclusive {
        put_owner(owner, to);
    } else {
        holder(owner, mode, None, to);
    }
}

/// Writes `@` and the label, or nothing.
fn put_label(label: Option<&str>, to: &mut impl BufMut) {
    if let Some(label) = label {
        to.put_u8(b'@');
        to.put_slice(label.as_bytes());
    }
}

/// Writes an owner: `<instance>:<attempt>`.
fn put_owner(owner: Owner, to: &mut impl BufMut) {
    to.put_slice(&owner.instance.text());
    to.put_u8(b':');
    put_number(owner.attempt, to);
}

/// The value of a lock, parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Lease {
        owner: Owner,
        label: Option<Arc<str>>,
        fingerprint: Option<Bytes>,
    },
    Record(Bytes),
}

/// Parses the value of a lock. Returns `None` for a value that this crate did not write.
pub(super) fn read(value: &[u8]) -> Option<Stored> {
    let (head, rest) = match value.iter().position(|byte| *byte == b' ') {
        Some(space) => (
            &value[..space],
            Some(Bytes::copy_from_slice(&value[space + 1..])),
        ),
        None => (value, None),
    };
    let (kind, owner) = std::str::from_utf8(head).ok()?.split_once(':')?;
    let (owner, label) = match owner.split_once('@') {
        Some((owner, label)) => (owner, Some(label)),
        None => (owner, None),
    };
    let owner = owner.parse().ok()?;
    match (kind, rest) {
        ("lease" | "wanted", fingerprint) if label.is_none_or(is_label) => Some(Stored::Lease {
            owner,
            label: label.map(Arc::from),
            fingerprint,
        }),
        ("record", Some(content)) if label.is_none() => Some(Stored::Record(content)),
        _ => None,
    }
}

/// A holder, or an attempt in the queue, parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) label: Option<Arc<str>>,
}

/// Parses a holder of a key that is shared or counted, or an attempt in the queue. Returns `None`
/// for a name that this crate did not write.
pub(super) fn read_name(name: &str) -> Option<Named> {
    let (name, label) = match name.split_once('@') {
        Some((name, label)) => (name, Some(label)),
        None => (name, None),
    };
    let (mode, owner) = if let Some(owner) = name.strip_prefix("shared:") {
        (Mode::Shared, owner)
    } else if let Some(permit) = name.strip_prefix("permit:") {
        let (of, owner) = permit.split_once(':')?;
        let of = of.parse().ok()?;
        (Mode::Permit { of }, owner)
    } else {
        (Mode::Exclusive, name)
    };
    label.is_none_or(is_label).then_some(Named {
        owner: owner.parse().ok()?,
        mode,
        label: label.map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Instance;

    fn owner() -> Owner {
        Owner {
            instance: Instance::new(),
            attempt: 7,
        }
    }

    #[test]
    fn a_written_value_is_read_back() {
        let owner = owner();
        for fingerprint in [
            None,
            Some(Bytes::new()),
            Some(Bytes::from_static(b" @\xff")),
        ] {
            for label in [None, Some("host-7.example_a")] {
                let mut value = Vec::new();
                lease(owner, label, fingerprint.as_ref(), &mut value);
                let (label, fingerprint) = (label.map(Arc::from), fingerprint.clone());
                let expected = Stored::Lease {
                    owner,
                    label,
                    fingerprint,
                };
                assert_eq!(read(&value), Some(expected));
            }
        }
        let (content, mut value) = (Bytes::from_static(b""), Vec::new());
        record(owner, &content, &mut value);
        assert_eq!(read(&value), Some(Stored::Record(content)));
    }

    #[test]
    fn a_written_holder_is_read_back() {
        for mode in [Mode::Shared, Mode::Permit { of: 4 }] {
            for label in [None, Some("host-7.example_a")] {
                let (owner, mut name) = (owner(), Vec::new());
                holder(owner, mode, label, &mut name);
                let expected = Named {
                    owner,
                    mode,
                    label: label.map(Arc::from),
                };
                assert_eq!(
                    read_name(std::str::from_utf8(&name).unwrap()),
                    Some(expected)
                );
            }
        }
        for foreign in ["", "shared:", "shared:a", "permit:4:", "permit::1"] {
            assert_eq!(read_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_value_of_another_shape_is_not_read() {
        let owner = owner();
        let foreign = [
            "".into(),
            "lease:".into(),
            format!("lock:{owner}"),
            format!("lease:{owner}@"),
            format!("lease:{owner}@a/b"),
            format!("lease:{owner}@{}", "a".repeat(65)),
            format!("record:{owner}"),
        ];
        for value in foreign {
            assert_eq!(read(value.as_bytes()), None, "{value}");
        }
    }
}
