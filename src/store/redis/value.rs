//! What stands at a lock. `value.lua` reads the same format.

use bytes::Bytes;

use crate::store::Owner;

/// A lease, to be read by an operator: `lease:<instance>:<attempt>`, then a space and the fingerprint if there is one.
pub(super) fn lease(owner: Owner, fingerprint: Option<&Bytes>) -> Vec<u8> {
    let mut value = format!("lease:{owner}").into_bytes();
    if let Some(fingerprint) = fingerprint {
        value.push(b' ');
        value.extend_from_slice(fingerprint);
    }
    value
}

/// A record: `record:<instance>:<attempt>`, a space, and its content.
pub(super) fn record(owner: Owner, content: &Bytes) -> Vec<u8> {
    let mut value = format!("record:{owner} ").into_bytes();
    value.extend_from_slice(content);
    value
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Lease {
        owner: Owner,
        fingerprint: Option<Bytes>,
    },
    Record(Bytes),
}

/// `None` for what this crate did not write.
pub(super) fn read(value: &[u8]) -> Option<Standing> {
    let (head, rest) = match value.iter().position(|byte| *byte == b' ') {
        Some(space) => (
            &value[..space],
            Some(Bytes::copy_from_slice(&value[space + 1..])),
        ),
        None => (value, None),
    };
    let (kind, owner) = std::str::from_utf8(head).ok()?.split_once(':')?;
    let owner = owner.parse().ok()?;
    match (kind, rest) {
        ("lease" | "wanted", fingerprint) => Some(Standing::Lease { owner, fingerprint }),
        ("record", Some(content)) => Some(Standing::Record(content)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Instance;

    #[test]
    fn reads_what_it_writes_and_nothing_else() {
        let owner = Owner {
            instance: Instance::new(),
            attempt: 7,
        };
        for fingerprint in [None, Some(Bytes::new()), Some(Bytes::from_static(b" \xff"))] {
            let value = lease(owner, fingerprint.as_ref());
            assert_eq!(read(&value), Some(Standing::Lease { owner, fingerprint }));
        }
        let content = Bytes::from_static(b"");
        assert_eq!(
            read(&record(owner, &content)),
            Some(Standing::Record(content))
        );
        let nobodys = [
            "".into(),
            "lease:".into(),
            format!("lock:{owner}"),
            format!("record:{owner}"),
        ];
        for value in nobodys {
            assert_eq!(read(value.as_bytes()), None, "{value}");
        }
    }
}
