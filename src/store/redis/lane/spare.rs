//! What a lane keeps of one message for the next.

use redis::{Arg, Cmd};

use super::flight::ReplyFuture;

/// How many of each are kept, and how large a command is at most: one with a record may be very large.
const MOST: usize = 64;
const LARGEST: usize = 4096;

/// Commands and boxes of futures that are used again, so that a call allocates neither.
#[derive(Debug, Default)]
pub(super) struct Spare {
    commands: Vec<Cmd>,
    reply_futures: Vec<ReplyFuture>,
}

impl Spare {
    /// An empty command.
    pub(super) fn command(&mut self) -> Cmd {
        self.commands.pop().unwrap_or_default()
    }

    pub(super) fn reply_future(&mut self) -> Option<ReplyFuture> {
        self.reply_futures.pop()
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

    pub(super) fn keep_reply_future(&mut self, reply_future: ReplyFuture) {
        if self.reply_futures.len() < MOST {
            self.reply_futures.push(reply_future);
        }
    }
}
