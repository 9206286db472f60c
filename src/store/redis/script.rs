//! The Lua scripts, and calls of them.

use std::sync::LazyLock;

use redis::{Cmd, cmd};

/// A script, with the hash that the server knows it by.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    hash: String,
}

pub(super) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/acquire.lua")));
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/renew.lua")));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/release.lua")));
pub(super) static FORCE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/force_release.lua")));
pub(super) static RAISE_FENCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/raise_fence.lua")));
pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/inspect.lua")));

/// Those on the way of every request. They are loaded with each connection, so that a call of one is not sent a second
/// time, after others, unless somebody flushed the server's scripts meanwhile.
pub(super) fn in_daily_use() -> [&'static Script; 3] {
    [&ACQUIRE, &RENEW, &RELEASE]
}

/// What several scripts have in common. Each includes it only where it needs it: on the short way of a request, the
/// server does not even define a function.
const PARTS: [(&str, &str); 3] = [
    ("--@include fence.lua", include_str!("lua/fence.lua")),
    ("--@include queue.lua", include_str!("lua/queue.lua")),
    ("--@include value.lua", include_str!("lua/value.lua")),
];

impl Script {
    fn new(source: &str) -> Self {
        let text = PARTS.iter().fold(source.to_owned(), |text, (mark, part)| {
            text.replace(mark, part)
        });
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    pub(super) fn load(&self) -> Cmd {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text);
        load
    }
}

/// One call of a script.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new<const K: usize, const A: usize>(
        script: &'static Script,
        keys: [String; K],
        args: [Vec<u8>; A],
    ) -> Self {
        Self {
            script,
            keys: keys.into(),
            args: args.into(),
        }
    }

    pub(super) fn arg(mut self, arg: Vec<u8>) -> Self {
        self.args.push(arg);
        self
    }

    /// The normal way: the server knows the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// For a server that has forgotten the script. It will know it afterwards.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len());
        command.arg(&self.keys[..]);
        for arg in &self.args {
            command.arg(arg);
        }
        command
    }
}

/// A number as an argument.
pub(super) fn number(number: impl Into<u64>) -> Vec<u8> {
    number.into().to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found() {
        let scripts = [
            &ACQUIRE,
            &RENEW,
            &RELEASE,
            &FORCE_RELEASE,
            &RAISE_FENCE,
            &INSPECT,
        ];
        for script in scripts {
            assert!(!script.text.contains("@include"), "{}", script.text);
        }
    }
}
