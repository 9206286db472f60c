//! The defaults of the options of the layers and of keys. The documentation of each option names
//! its default, and a test compares the two.

/// Of a [`DistributedLockLayer`](crate::DistributedLockLayer).
pub(crate) mod lock {
    use std::time::Duration;

    pub(crate) const WAIT: Duration = Duration::from_secs(5);
    pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
    pub(crate) const MAX_KEYS_PER_REQUEST: usize = 64;
}

/// Of an [`IdempotencyLayer`](crate::IdempotencyLayer).
pub(crate) mod idempotency {
    use std::time::Duration;

    pub(crate) const RETAIN: Duration = Duration::from_secs(24 * 3600);
    pub(crate) const WAIT: Duration = Duration::from_secs(5);
    pub(crate) const MAX_REQUEST: usize = 1024 * 1024;
    pub(crate) const MAX_RESPONSE: usize = 1024 * 1024;
    pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
    pub(crate) const STORE_WITHIN: Duration = Duration::from_secs(5);
    pub(crate) const READ_WITHIN: Duration = Duration::from_secs(5);
}

/// Of a [`SingleFlightLayer`](crate::SingleFlightLayer).
pub(crate) mod single_flight {
    use std::time::Duration;

    pub(crate) const WAIT: Duration = Duration::from_secs(10);
    pub(crate) const MAX_RESPONSE: usize = 1024 * 1024;
    pub(crate) const READ_WITHIN: Duration = Duration::from_secs(5);
}

/// Of a [`Rejection`](crate::rejection::Rejection) that a handler makes.
pub(crate) mod rejection {
    use std::time::Duration;

    pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
}

/// Of a [`RequestKey`](crate::key::RequestKey).
pub(crate) mod key {
    pub(crate) const MAX_VALUE_LEN: usize = 512;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn time(time: Duration) -> String {
        match time.as_secs() {
            hours if hours >= 3600 => format!("{} h", hours / 3600),
            seconds => format!("{seconds} s"),
        }
    }

    fn size(bytes: usize) -> String {
        format!("{} MiB", bytes / 1024 / 1024)
    }

    /// The documentation right above a method, as one line.
    fn docs<'a>(file: &'a str, method: &str) -> String {
        let head = format!("    pub fn {method}(");
        let at = file.find(&head).expect("the option is a method");
        let lines: Vec<&'a str> = file[..at].lines().rev().collect();
        let docs = lines
            .iter()
            .take_while(|line| line.trim().starts_with("///"));
        let docs: Vec<_> = docs
            .map(|line| line.trim().trim_start_matches("///"))
            .collect();
        let words: Vec<&str> = docs.iter().rev().flat_map(|line| line.split(' ')).collect();
        words
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_documentation_names_the_defaults() {
        let lock_layer = include_str!("http/lock/layer.rs");
        let idempotency_layer = include_str!("http/idempotency/layer.rs");
        let flight_layer = include_str!("http/single_flight/layer.rs");
        for (file, option, default) in [
            (lock_layer, "wait", time(lock::WAIT)),
            (lock_layer, "retry_after", time(lock::RETRY_AFTER)),
            (
                lock_layer,
                "max_keys_per_request",
                lock::MAX_KEYS_PER_REQUEST.to_string(),
            ),
            (idempotency_layer, "retain", time(idempotency::RETAIN)),
            (idempotency_layer, "wait", time(idempotency::WAIT)),
            (
                idempotency_layer,
                "max_request",
                size(idempotency::MAX_REQUEST),
            ),
            (
                idempotency_layer,
                "max_response",
                size(idempotency::MAX_RESPONSE),
            ),
            (
                idempotency_layer,
                "retry_after",
                time(idempotency::RETRY_AFTER),
            ),
            (
                idempotency_layer,
                "store_within",
                time(idempotency::STORE_WITHIN),
            ),
            (
                idempotency_layer,
                "read_within",
                time(idempotency::READ_WITHIN),
            ),
            (flight_layer, "wait", time(single_flight::WAIT)),
            (
                flight_layer,
                "max_response",
                size(single_flight::MAX_RESPONSE),
            ),
            (
                flight_layer,
                "read_within",
                time(single_flight::READ_WITHIN),
            ),
        ] {
            let docs = docs(file, option);
            let named = format!("Default: {default}");
            let is_whole = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            let is_named = docs.split(&named).skip(1).any(is_whole);
            assert!(is_named, "{option}: `{docs}` does not say `{named}`");
            let link = format!("[`{option}`](Self::{option})");
            let mut rows = file.lines().filter(|line| line.starts_with("/// | [`"));
            let row = rows
                .find(|row| row.contains(&link))
                .expect("options have a row");
            assert!(
                row.contains(&default),
                "{option}: `{row}` does not say {default}"
            );
        }
    }
}
