//! The Lua scripts.

use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, cmd};

/// A script, in two versions.
#[derive(Debug)]
pub(super) struct Script {
    /// For a server that nobody takes the place of.
    fixed: Text,
    /// For one of several: tokens follow its clock.
    by_clock: Text,
}

/// A script's text, with the hash that the server knows it by.
#[derive(Debug)]
struct Text {
    text: String,
    hash: String,
}

pub(super) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/acquire.lua")));
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/renew.lua")));
pub(super) static RENEW_ALONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/renew_alone.lua")));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/release.lua")));
pub(super) static RELEASE_ALONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/release_alone.lua")));
pub(super) static FORCE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/force_release.lua")));
pub(super) static RAISE_FENCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/raise_fence.lua")));
pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/inspect.lua")));

/// Those on the way of every request. They are loaded with each connection, so that a call of one is not sent a second
/// time, after others, unless somebody flushed the server's scripts meanwhile.
pub(super) fn in_daily_use() -> [&'static Script; 4] {
    [&ACQUIRE, &RENEW, &RENEW_ALONE, &RELEASE]
}

/// What several scripts have in common. Each includes it only where it needs it: on the short way of a request, the
/// server does not even define a function.
const PARTS: [(&str, &str); 3] = [
    ("--@include fence.lua", include_str!("lua/fence.lua")),
    ("--@include queue.lua", include_str!("lua/queue.lua")),
    ("--@include value.lua", include_str!("lua/value.lua")),
];

/// The least that a token must exceed, in both versions.
const FLOOR: &str = "--@include floor.lua";

impl Script {
    fn new(source: &str) -> Self {
        let source = PARTS.iter().fold(source.to_owned(), |text, (mark, part)| {
            text.replace(mark, part)
        });
        let with_floor = |part| Text::new(source.replace(FLOOR, part));
        Self {
            fixed: with_floor(include_str!("lua/floor.lua")),
            by_clock: with_floor(include_str!("lua/floor_by_clock.lua")),
        }
    }

    fn text(&self, by_clock: bool) -> &Text {
        if by_clock {
            &self.by_clock
        } else {
            &self.fixed
        }
    }

    /// Begins a command that calls the script with so many keys.
    pub(super) fn call(&self, by: By, by_clock: bool, keys: u8, command: &mut Cmd) {
        let script = self.text(by_clock);
        let (name, script) = match by {
            By::Hash => ("EVALSHA", &script.hash),
            By::Text => ("EVAL", &script.text),
        };
        command.write_arg(name.as_bytes());
        command.write_arg(script.as_bytes());
        command.write_arg(&[b'0' + keys]);
    }

    pub(super) fn load(&self, by_clock: bool) -> Cmd {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text(by_clock).text);
        load
    }
}

impl Text {
    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// How the server is told which script is meant.
#[derive(Debug, Clone, Copy)]
pub(super) enum By {
    /// The normal way: the server knows the script.
    Hash,
    /// For a server that has forgotten the script. It will know it afterwards.
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found() {
        let scripts = [
            &ACQUIRE,
            &RENEW,
            &RENEW_ALONE,
            &RELEASE,
            &RELEASE_ALONE,
            &FORCE_RELEASE,
            &RAISE_FENCE,
            &INSPECT,
        ];
        let texts = scripts.map(|script| [&script.fixed.text, &script.by_clock.text]);
        for text in texts.as_flattened() {
            assert!(!text.contains("@include"), "{text}");
        }
    }
}
