//! Writes the arguments of a command.

use std::{iter, time::Duration};

use redis::{Cmd, RedisWrite};

use super::{
    super::{
        floors::{Floors, Fraction},
        names::{Name, Names, bucket, put_number},
        script::{By, Script},
        value,
    },
    Call,
};
use crate::{
    LockKey,
    store::{Mode, Owner},
    time::FAR,
};

/// The settings that all commands on one connection have in common.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Dialect<'a> {
    pub(in super::super) names: &'a Names,
    pub(in super::super) floors: &'a Floors,
    /// Set if tokens follow the server's clock.
    pub(in super::super) fraction: Option<Fraction>,
}

/// Writes a command argument by argument, as bytes and without `fmt`, because every lock pays for
/// this.
pub(super) struct Writer<'a> {
    pub(super) by: By,
    pub(super) dialect: Dialect<'a>,
    /// The further calls that the script makes.
    pub(super) others: &'a [&'a Call],
    pub(super) command: &'a mut Cmd,
    /// Where an argument is put together: `Cmd` takes many small pieces slowly.
    pub(super) scratch: &'a mut Vec<u8>,
}

impl Writer<'_> {
    /// Starts the command, with the names of a key, and of the keys of the other calls.
    pub(super) fn script(&mut self, script: &Script, key: &LockKey, names: &[Name]) {
        self.start(script, names.len() * (1 + self.others.len()));
        let (prefix, others) = (self.dialect.names, self.others);
        for name in names {
            for key in iter::once(key).chain(others.iter().filter_map(|call| call.key())) {
                self.arg(|to| {
                    prefix.start(bucket(key), to);
                    name.write(key, to);
                });
            }
        }
    }

    /// Writes an argument.
    pub(super) fn arg(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.clear();
        write(self.scratch);
        self.command.write_arg(self.scratch);
    }

    /// Starts the command, up to the number of its names.
    pub(super) fn start(&mut self, script: &Script, names: usize) {
        let by_clock = self.dialect.fraction.is_some();
        script.call(self.by, by_clock, names, self.command);
    }

    /// Writes the floor of a key's tokens at the time of the sending. A call that is repeated on
    /// another connection must carry the floor which that connection has raised.
    pub(super) fn floor(&mut self, key: &LockKey) {
        let Dialect {
            floors, fraction, ..
        } = self.dialect;
        self.arg(|to| floors.write(key, fraction, to));
    }

    /// Writes a lease without its fingerprint.
    pub(super) fn lease(&mut self, owner: Owner) {
        let label = self.dialect.names.label();
        self.arg(|to| value::lease(owner, label, None, to));
    }

    /// Writes a holder of a key that is shared or counted.
    pub(super) fn holder(&mut self, owner: Owner, mode: Mode) {
        let label = self.dialect.names.label();
        self.arg(|to| value::holder(owner, mode, label, to));
    }

    pub(super) fn number(&mut self, number: u64) {
        self.arg(|to| put_number(number, to));
    }
}

/// Converts to milliseconds, rounded up, because the store must not end a lease before the holder
/// does.
pub(in super::super) fn millis(duration: Duration) -> u64 {
    let duration = duration.min(FAR);
    let below_a_second = duration.subsec_nanos().div_ceil(1_000_000);
    (duration.as_secs() * 1000 + u64::from(below_a_second)).max(1)
}
