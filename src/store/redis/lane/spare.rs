//! The buffers that a lane uses again.
//!
//! A lane writes the same few kinds of commands again and again. A command whose reply has come
//! goes back here, with its buffers, and the next call is written into it.

use redis::{Arg, Cmd};

use super::message::ReplyFuture;

/// The number of commands, and of boxes, that are kept.
const MOST: usize = 64;
/// The size of the largest command that is kept, in bytes. A command with a record may be very
/// large.
const LARGEST: usize = 4096;
/// The room in a new command: enough for most calls.
const USUAL_ARGUMENTS: usize = 12;
const USUAL_SIZE: usize = 384;

/// Keeps commands and the boxes of reply futures for later messages, so that a call allocates
/// neither.
#[derive(Debug, Default)]
pub(super) struct Spare {
    commands: Vec<Cmd>,
    reply_futures: Vec<ReplyFuture>,
    /// Where an argument is put together.
    pub(super) scratch: Vec<u8>,
}

impl Spare {
    /// An empty command for so many calls. `is_alone`: the command is the only one of its message.
    /// Commands of larger messages do not come back.
    pub(super) fn command(&mut self, is_alone: bool, calls: usize) -> Cmd {
        let spare = if is_alone { self.commands.pop() } else { None };
        spare.unwrap_or_else(|| Cmd::with_capacity(calls * USUAL_ARGUMENTS, calls * USUAL_SIZE))
    }

    pub(super) fn reply_future(&mut self) -> Option<ReplyFuture> {
        self.reply_futures.pop()
    }

    /// Keeps a command, unless the command is large or enough are kept.
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
