//! Writes the arguments of a command.

use std::time::Duration;

use redis::{Cmd, RedisWrite};

use super::super::{
    floors::{Floors, Fraction},
    names::{Name, Names, put_number},
    script::{By, Script},
    value,
};
use crate::{
    LockKey,
    store::{Mode, Owner},
};

/// The longest duration in a command. Redis can add this duration to its clock without an overflow.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

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
    pub(super) command: &'a mut Cmd,
}

impl Writer<'_> {
    /// Starts the command, with the names of a key.
    pub(super) fn script(&mut self, script: &Script, key: &LockKey, names: &[Name]) {
        self.start(script, names.len());
        for name in names {
            let mut to = self.command.bufmut_for_next_arg(0);
            self.dialect.names.write(*name, key, &mut to);
        }
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
        floors.write(key, fraction, &mut self.command.bufmut_for_next_arg(0));
    }

    /// Writes a lease without its fingerprint.
    pub(super) fn lease(&mut self, owner: Owner) {
        let label = self.dialect.names.label();
        let mut to = self.command.bufmut_for_next_arg(0);
        value::lease(owner, label, None, &mut to);
    }

    /// Writes a holder of a key that is shared or counted.
    pub(super) fn holder(&mut self, owner: Owner, mode: Mode) {
        let label = self.dialect.names.label();
        let mut to = self.command.bufmut_for_next_arg(0);
        value::holder(owner, mode, label, &mut to);
    }

    pub(super) fn number(&mut self, number: u64) {
        put_number(number, &mut self.command.bufmut_for_next_arg(0));
    }
}

/// Converts to milliseconds, rounded up, because the store must not end a lease before the holder
/// does.
pub(in super::super) fn millis(duration: Duration) -> u64 {
    let duration = duration.min(FAR);
    let below_a_second = duration.subsec_nanos().div_ceil(1_000_000);
    (duration.as_secs() * 1000 + u64::from(below_a_second)).max(1)
}
