//! Labels: what a lease says about its holder, for operators.

use std::sync::Arc;

use crate::{Error, ErrorKind};

/// The length of the longest label, which is that of the longest host name on Linux.
const LONGEST_LABEL: usize = 64;

/// Whether a text can be a label. In a value, the label ends at a space, and `value.lua` reads the
/// label by a pattern of these characters.
pub(super) fn is_label(text: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&text.len()) && text.bytes().all(is_fit)
}

/// The nearest text to a host name that can be a label, if there is one.
fn of_host(name: &str) -> Option<Arc<str>> {
    let fit = |letter: char| match u8::try_from(letter) {
        Ok(byte) if is_fit(byte) => letter,
        _ => '-',
    };
    let label: String = name.trim().chars().take(LONGEST_LABEL).map(fit).collect();
    (!label.is_empty()).then(|| label.into())
}

/// Whether a character can be in a label.
fn is_fit(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The label of this host, if it has a name.
pub(super) fn of_this_host() -> Option<Arc<str>> {
    host_name().as_deref().and_then(of_host)
}

/// Refuses a label that cannot be one.
pub(super) fn check(label: Option<&str>) -> Result<(), Error> {
    if label.is_none_or(is_label) {
        return Ok(());
    }
    let message = "a label is 1 to 64 ASCII letters, digits, dots, underscores and hyphens";
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

/// The name of this host: from the kernel on Linux, elsewhere from the environment.
fn host_name() -> Option<String> {
    let named = |variable| std::env::var(variable).ok();
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| named("HOSTNAME"))
        .or_else(|| named("COMPUTERNAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_a_label() {
        assert_eq!(of_host("host-7\n").as_deref(), Some("host-7"));
        assert_eq!(of_host("büro 1").as_deref(), Some("b-ro-1"));
        assert_eq!(of_host(" ").as_deref(), None);
        assert!(is_label(&of_host(&"ä".repeat(100)).unwrap()));
    }
}
