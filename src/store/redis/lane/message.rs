//! Messages: one command or several that are sent together.
//!
//! ```text
//! Message: n commands ──> Flight::send ──> the connection's buffer
//!                             └──> Flight { calls: n, reply_future } ──> Replies, in the order of the commands
//! ```

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use redis::{Cmd, Pipeline, RedisResult, Value};
use smallvec::{SmallVec, smallvec};
use tokio::{task::unconstrained, time::Instant};
use tokio_util::sync::ReusableBoxFuture;

use super::super::{connection::Connection, operations::Joint};

/// Commands that are sent together: one, most of the time.
pub(super) type Message = SmallVec<[Cmd; 1]>;

/// The joint scripts of a message, in their order.
pub(super) type Joints = SmallVec<[Joint; 4]>;

/// A message that was sent.
pub(super) struct Flight {
    pub(super) sent: Instant,
    /// The number of calls in the message. They are the first calls in flight when the replies
    /// come.
    pub(super) calls: usize,
    /// The joint scripts, whose replies come first.
    pub(super) joints: Joints,
    reply_future: ReplyFuture,
    /// The replies, if they came with the first poll.
    replies: Option<RedisResult<Replies>>,
}

/// The future of the replies. Its box is used again for the next message.
pub(super) type ReplyFuture = ReusableBoxFuture<'static, RedisResult<Replies>>;

/// The replies to a message.
pub(super) struct Replies {
    /// One for each command.
    pub(super) values: smallvec::IntoIter<[Value; 1]>,
    /// A command whose buffers can be used again.
    pub(super) spare: Option<Cmd>,
}

/// Boxes the future, in a spare box if there is one.
fn boxed(
    spare: Option<ReplyFuture>,
    future: impl Future<Output = RedisResult<Replies>> + Send + 'static,
) -> ReplyFuture {
    match spare {
        Some(mut spare) => {
            spare.set(future);
            spare
        }
        None => ReplyFuture::new(future),
    }
}

impl Flight {
    /// Sends the commands of `calls` calls. When the method returns, the commands are in the
    /// connection's buffer, if the buffer has room. The replies wake `waker`.
    pub(super) fn send(
        mut commands: Message,
        calls: usize,
        joints: Joints,
        connection: &Connection,
        spare: Option<ReplyFuture>,
        waker: &Waker,
    ) -> Self {
        let mut connection = connection.multiplexed.clone();
        // A single command needs no pipeline, and its buffers are used again.
        let only = if commands.len() == 1 {
            commands.pop()
        } else {
            None
        };
        let reply_future = match only {
            Some(command) => boxed(spare, async move {
                let value = connection.send_packed_command(&command).await?;
                Ok(Replies {
                    values: smallvec![value].into_iter(),
                    spare: Some(command),
                })
            }),
            None => boxed(spare, async move {
                let all = commands.len();
                let mut pipeline = Pipeline::with_capacity(all);
                for command in commands {
                    pipeline.add_command(command);
                }
                let values = connection.send_packed_commands(&pipeline, 0, all).await?;
                Ok(Replies {
                    values: SmallVec::from_vec(values).into_iter(),
                    spare: None,
                })
            }),
        };
        let mut flight = Self {
            sent: Instant::now(),
            calls,
            joints,
            reply_future,
            replies: None,
        };
        // The first poll puts the message into the connection's buffer. If this thread pauses in
        // that poll, the replies can be there before its end, and no later event wakes the
        // driver for them.
        if let Poll::Ready(replies) = flight.poll(&mut Context::from_waker(waker)) {
            flight.replies = Some(replies);
            waker.wake_by_ref();
        }
        flight
    }

    /// Polls for the replies, which are returned once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Replies>> {
        if let Some(replies) = self.replies.take() {
            return Poll::Ready(replies);
        }
        // Unconstrained, because the first poll sends the message and must not be put off when the
        // task's budget is spent.
        pin!(unconstrained(self.reply_future.get_pin())).poll(cx)
    }

    /// The box, to be used again once the replies were taken.
    pub(super) fn into_spare(self) -> ReplyFuture {
        self.reply_future
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight")
            .field("sent", &self.sent)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}
