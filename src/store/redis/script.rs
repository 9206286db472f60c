//! The Lua scripts, put together from the files in `lua/`.
//!
//! A line `--@include part.lua` in a script is replaced by that file. Every script exists in two
//! versions, which differ in the floor of the tokens: `floor.lua` or `floor_by_clock.lua`.
//!
//! ```text
//! acquire.lua                      acquire.lua, as it is sent
//!   if the key is in use:
//!     --@include queue.lua    ──▶    the text of queue.lua
//!     --@include contend.lua  ──▶    the text of contend.lua
//! --@include tokens.lua       ──▶  the text of tokens.lua, and in it
//!                                  the text of floor.lua; or of floor_by_clock.lua, behind Sentinel and in a Cluster
//! ```

use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, cmd};

/// A script, in two versions.
#[derive(Debug)]
pub(super) struct Script {
    /// For a server that is never replaced by another one.
    fixed: Text,
    /// For a server that another one can replace: tokens follow the server's clock.
    by_clock: Text,
}

/// The text of a script, and the hash by which EVALSHA calls the script.
#[derive(Debug)]
struct Text {
    text: String,
    hash: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal,)*) => {
        $(
            pub(super) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(include_str!(concat!("lua/", $file))));
        )*

        #[cfg(test)]
        static ALL: &[&LazyLock<Script>] = &[$(&$name),*];
    };
}

scripts! {
    ACQUIRE = "acquire.lua",
    ACQUIRE_SHARED = "acquire_shared.lua",
    RENEW = "renew.lua",
    RENEW_ALONE = "renew_alone.lua",
    RENEW_SHARED = "renew_shared.lua",
    RELEASE = "release.lua",
    RELEASE_ALONE = "release_alone.lua",
    RELEASE_SHARED = "release_shared.lua",
    FORCE_RELEASE = "force_release.lua",
    RAISE_FENCE = "raise_fence.lua",
    INSPECT = "inspect.lua",
    PING = "ping.lua",
}

/// The scripts on the way of every request. They are loaded with each connection, so that a call is
/// sent a second time, after other calls, only if the server's scripts were flushed meanwhile.
pub(super) fn in_daily_use() -> [&'static Script; 7] {
    [
        &ACQUIRE,
        &RENEW,
        &RENEW_ALONE,
        &RELEASE,
        &ACQUIRE_SHARED,
        &RENEW_SHARED,
        &RELEASE_SHARED,
    ]
}

/// The parts that several scripts share. A script includes a part only on the branch that needs it:
/// on the way of an uncontended request, the server does not even define a function. A part comes
/// before the parts that it includes.
const PARTS: [(&str, &str); 8] = [
    ("--@include tokens.lua", include_str!("lua/tokens.lua")),
    ("--@include refill.lua", include_str!("lua/refill.lua")),
    ("--@include contend.lua", include_str!("lua/contend.lua")),
    ("--@include holders.lua", include_str!("lua/holders.lua")),
    ("--@include fence.lua", include_str!("lua/fence.lua")),
    ("--@include queue.lua", include_str!("lua/queue.lua")),
    ("--@include value.lua", include_str!("lua/value.lua")),
    ("--@include joint.lua", include_str!("lua/joint.lua")),
];

/// The line that is replaced by a different file in each version.
const FLOOR: &str = "--@include floor.lua";

impl Script {
    fn new(source: &str) -> Self {
        let source = PARTS.iter().fold(source.to_owned(), |text, (mark, part)| {
            text.replace(mark, part)
        });
        let with_floor = |part| {
            let text = source.replace(FLOOR, part);
            debug_assert!(!text.contains("@include"), "an unknown part in {text}");
            Text::new(without_comments(&text))
        };
        Self {
            fixed: with_floor(include_str!("lua/floor.lua")),
            by_clock: with_floor(include_str!("lua/floor_by_clock.lua")),
        }
    }

    /// The version of the script for a server.
    fn text(&self, by_clock: bool) -> &Text {
        if by_clock {
            &self.by_clock
        } else {
            &self.fixed
        }
    }

    /// Writes the start of a command that calls the script, up to the number of keys.
    pub(super) fn call(&self, by: By, by_clock: bool, keys: usize, command: &mut Cmd) {
        let script = self.text(by_clock);
        let (name, script) = match by {
            By::Hash => ("EVALSHA", &script.hash),
            By::Text => ("EVAL", &script.text),
        };
        command.write_arg(name.as_bytes());
        command.write_arg(script.as_bytes());
        command.write_arg(itoa::Buffer::new().format(keys).as_bytes());
    }

    /// The command that loads the script.
    pub(super) fn load(&self, by_clock: bool) -> Cmd {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text(by_clock).text);
        load
    }
}

/// The lines that a server needs: every connection loads the scripts.
fn without_comments(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.flat_map(|line| [line, "\n"]).collect()
}

impl Text {
    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// How a command names the script.
#[derive(Debug, Clone, Copy)]
pub(super) enum By {
    /// EVALSHA, for a server that has the script.
    Hash,
    /// EVAL, for a server that does not have the script. The server keeps the script afterwards.
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_replaced_and_no_comment_is_sent() {
        let texts = ALL
            .iter()
            .map(|script| [&script.fixed.text, &script.by_clock.text]);
        for text in texts.flatten() {
            assert!(text.lines().count() > 1 && !text.contains("--"), "{text}");
        }
    }
}
