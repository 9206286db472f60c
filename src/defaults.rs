//! The defaults of all options: a row for each. The documentation of each option, and the table of
//! its type if it has one, name the default, and a test compares them, also with the sentences that
//! name a default in the README and in the guide.

/// Makes a module of constants for each type with options, and for tests, which need all features,
/// a list of all rows: the file of the type, the option and its default.
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

        #[cfg(all(test, feature = "postgres", feature = "redis"))]
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
    /// Of [`Locks`](crate::Locks).
    locks in "locks/config.rs" {
        LEASE: Duration = Duration::from_secs(30);
        MAX_HOLD: Duration = Duration::from_secs(600);
        WAIT_LIMIT: Duration = Duration::from_secs(10);
        LONGEST_LINE: usize = 1024;
        MAX_KEYS: usize = 131_072;
        FAIL_FAST: bool = false;
        POLL_INTERVAL: Duration = Duration::from_secs(1);
        WAITER_DEADLINE: Duration = Duration::from_secs(3);
        PASS_TURNS: u32 = 16;
        PASS_TIME: Duration = Duration::from_millis(10);
    }

    /// Of a [`RedisStore`](crate::RedisStore).
    #[cfg(feature = "redis")]
    redis in "store/redis/builder.rs" {
        PREFIX: &str = "tdl";
        LANES: usize = 1;
        TIMEOUT: Duration = Duration::from_secs(1);
    }

    /// Of a [`QuorumStore`](crate::QuorumStore).
    quorum in "store/quorum/builder.rs" {
        NODE_TIMEOUT: Duration = Duration::from_millis(200);
        FENCING: bool = true;
    }

    /// Of a [`PostgresStore`](crate::PostgresStore).
    #[cfg(feature = "postgres")]
    postgres in "store/postgres/builder.rs" {
        SCHEMA: &str = "tdl";
        TIMEOUT: Duration = Duration::from_secs(1);
        CONNECTIONS: usize = 2;
        FENCED: bool = false;
    }

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

#[cfg(all(test, feature = "postgres", feature = "redis"))]
mod tests {
    use super::*;

    /// A default, as the documentation says it.
    pub(super) trait Told {
        fn told(&self) -> String;
    }

    impl Told for Duration {
        fn told(&self) -> String {
            match (self.as_secs(), self.as_millis()) {
                (0, millis) => format!("{millis} ms"),
                (seconds @ ..300, _) => format!("{seconds} s"),
                (seconds @ ..3600, _) => format!("{} min", seconds / 60),
                (seconds, _) => format!("{} h", seconds / 3600),
            }
        }
    }

    impl Told for usize {
        fn told(&self) -> String {
            match *self {
                few @ ..1000 => few.to_string(),
                many @ ..MIB => format!("{},{:03}", many / 1000, many % 1000),
                bytes => format!("{} MiB", bytes / MIB),
            }
        }
    }

    impl Told for u32 {
        fn told(&self) -> String {
            (*self as usize).told()
        }
    }

    impl Told for bool {
        fn told(&self) -> String {
            (if *self { "yes" } else { "no" }).to_owned()
        }
    }

    impl Told for &str {
        fn told(&self) -> String {
            format!("`{self}`")
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
                let cell = row
                    .split(" | ")
                    .nth(2)
                    .expect("the default is the cell after the option");
                assert!(
                    cell.contains(&default),
                    "{option}: `{row}` does not say {default}"
                );
            }
        }
    }

    #[test]
    fn the_readme_and_the_guide_name_the_defaults() {
        let readme = include_str!("../README.md");
        let guarantees = include_str!("guide/guarantees.rs");
        let operating = include_str!("guide/operating.rs");
        let (lease, max_hold) = (locks::LEASE.told(), locks::MAX_HOLD.told());
        let (wait, wait_limit) = (lock::WAIT.told(), locks::WAIT_LIMIT.told());
        let (line, keys) = (locks::LONGEST_LINE.told(), locks::MAX_KEYS.told());
        let (turns, time) = (locks::PASS_TURNS.told(), locks::PASS_TIME.told());
        let poll = locks::POLL_INTERVAL.told();
        let setting = |path: &str, option: &str| format!("[`{option}`](crate::{path}::{option})");
        let of_locks = |option| setting("LocksBuilder", option);
        let of_layer = setting("DistributedLockLayer", "wait");
        for (file, sentence) in [
            (
                readme,
                format!("A request waits for up to {wait}, and then gets 423."),
            ),
            (
                readme,
                format!("The key of a crashed process is free after its lease ({lease})."),
            ),
            (readme, format!("stops after {turns} turns or {time} once")),
            (
                guarantees,
                format!("for up to {turns} turns or {time} after"),
            ),
            (
                guarantees,
                format!("{} ({poll}) at least", of_locks("poll_interval")),
            ),
            (guarantees, format!("| {} | {lease} |", of_locks("lease"))),
            (guarantees, format!("| {of_layer} of the layer | {wait} |")),
            (
                guarantees,
                format!("](crate::Locks::lock) | {wait_limit} |"),
            ),
            (
                guarantees,
                format!("| {} | {max_hold} |", of_locks("max_hold")),
            ),
            (operating, format!("{} ({keys})", of_locks("max_keys"))),
            (operating, format!("{} ({line})", of_locks("longest_line"))),
            (operating, format!("is free after the lease ({lease}).")),
            (operating, format!("{} ({max_hold}).", of_locks("max_hold"))),
            (
                operating,
                format!("more than {line} requests of one process"),
            ),
            (operating, format!("more than {keys} keys in use")),
            (
                include_str!("guide/redis.rs"),
                format!("{} ({poll})", of_locks("poll_interval")),
            ),
            (
                include_str!("guide/services.rs"),
                format!("A request waits for up to {wait},"),
            ),
            (
                include_str!("guide/comparison.rs"),
                format!("waits up to {wait} for the answer"),
            ),
            (
                include_str!("guide/work.rs"),
                format!("{} is {max_hold} by default", of_locks("max_hold")),
            ),
        ] {
            let words: Vec<&str> = file
                .split_whitespace()
                .filter(|word| *word != "//!")
                .collect();
            assert!(
                words.join(" ").contains(&sentence),
                "`{sentence}` is not there"
            );
        }
    }
}
