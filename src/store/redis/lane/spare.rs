//! What a lane keeps of one message for the next.

use redis::{Arg, Cmd};

use super::flight::Landing;

/// How many of each are kept, and how large a command is at most: one with a record may be very large.
const MOST: usize = 64;
const LARGEST: usize = 4096;

/// Commands and boxes of futures that are used again, so that a call allocates neither.
#[derive(Debug, Default)]
pub(super) struct Spare {
    commands: Vec<Cmd>,
    landings: Vec<Landing>,
}

impl Spare {
    /// An empty command.
    pub(super) fn command(&mut self) -> Cmd {
        self.commands.pop().unwrap_or_default()
    }

    pub(super) fn landing(&mut self) -> Option<Landing> {
        self.landings.pop()
    }

    pub(super) fn keep_command(&mut self, mut command: Cmd) {
        let size = |arg| match arg {
            Arg::Simple(arg) => <[u8]>::len(arg),
            _ => 0,
        };
        if self.commands.len() < MOST && command.args_iter().map(size).sum::<usize>() <= LARGEST {
            command.clear();
            self.commands.push(command);
        }
    }

    pub(super) fn keep_landing(&mut self, landing: Landing) {
        if self.landings.len() < MOST {
            self.landings.push(landing);
        }
    }
}
