//! The defaults of the options of the layers and of keys: a row for each. The documentation of each
//! option, and the table of its layer if it has one, name the default, and a test compares them.

/// Makes a module of constants for each type with options, and for tests a list of all rows: the
/// file of the type, the option and its default.
macro_rules! defaults {
    ($(
        $(#[$docs:meta])+
        $module:ident in $file:literal { $($option:ident: $type:ty = $value:expr;)+ }
    )+) => {
        $(
            $(#[$docs])+
            pub(crate) mod $module {
                #[allow(unused_imports)] // Not every module has a time.
                use super::*;

                $(pub(crate) const $option: $type = $value;)+
            }
        )+

        #[cfg(test)]
        fn all() -> Vec<(&'static str, String, String)> {
            use tests::Told;
            vec![$($(
                (include_str!($file), stringify!($option).to_lowercase(), $module::$option.told()),
            )+)+]
        }
    };
}

use std::time::Duration;

const MIB: usize = 1024 * 1024;

defaults! {
    /// Of a [`DistributedLockLayer`](crate::DistributedLockLayer).
    lock in "http/lock/layer.rs" {
        WAIT: Duration = Duration::from_secs(5);
        RETRY_AFTER: Duration = Duration::from_secs(1);
        MAX_KEYS_PER_REQUEST: usize = 64;
    }

    /// Of an [`IdempotencyLayer`](crate::IdempotencyLayer).
    idempotency in "http/idempotency/layer.rs" {
        RETAIN: Duration = Duration::from_secs(24 * 3600);
        WAIT: Duration = Duration::from_secs(5);
        MAX_REQUEST: usize = MIB;
        MAX_RESPONSE: usize = MIB;
        RETRY_AFTER: Duration = Duration::from_secs(1);
        STORE_WITHIN: Duration = Duration::from_secs(5);
        READ_WITHIN: Duration = Duration::from_secs(5);
    }

    /// Of a [`SingleFlightLayer`](crate::SingleFlightLayer).
    single_flight in "http/single_flight/layer.rs" {
        WAIT: Duration = Duration::from_secs(10);
        MAX_RESPONSE: usize = MIB;
        READ_WITHIN: Duration = Duration::from_secs(5);
    }

    /// Of a [`RequestKey`](crate::key::RequestKey).
    key in "key/builder.rs" {
        MAX_VALUE_LEN: usize = 512;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default, as the documentation says it.
    pub(super) trait Told {
        fn told(&self) -> String;
    }

    impl Told for Duration {
        fn told(&self) -> String {
            match self.as_secs() {
                hours if hours >= 3600 => format!("{} h", hours / 3600),
                seconds => format!("{seconds} s"),
            }
        }
    }

    impl Told for usize {
        fn told(&self) -> String {
            match self / MIB {
                0 => self.to_string(),
                mib => format!("{mib} MiB"),
            }
        }
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
        for (file, option, default) in all() {
            let docs = docs(file, &option);
            let named = format!("Default: {default}");
            let is_whole = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            let is_named = docs.split(&named).skip(1).any(is_whole);
            assert!(is_named, "{option}: `{docs}` does not say `{named}`");
            let link = format!("[`{option}`](Self::{option})");
            let mut rows = file.lines().filter(|line| line.starts_with("/// | [`"));
            if rows.clone().next().is_some() {
                let row = rows.find(|row| row.contains(&link));
                let row = row.expect("options have a row");
                assert!(
                    row.contains(&default),
                    "{option}: `{row}` does not say {default}"
                );
            }
        }
    }
}
