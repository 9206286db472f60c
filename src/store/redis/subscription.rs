//! The subscription of an instance: receives the hints on the instance's channel, on a separate
//! connection.
//!
//! A message is a kind and a key, such as `free orders/42` (see `hint` in `queue.lua`).
//!
//! A subscription is silent while there are no hints. It is made again on the same connection from
//! time to time, which changes nothing, and a connection on which the server does not confirm it is
//! replaced. (A PING would do, too, but needs one more right.)

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt};
use redis::{
    Msg,
    aio::{PubSub, PubSubSink},
};
use tokio::{
    sync::mpsc::UnboundedSender,
    time::{sleep, sleep_until, timeout},
};

use super::{
    explain,
    lane::BackOff,
    topology::{Change, HintSource, Topology},
};
use crate::{
    Error, LockKey,
    store::Hint,
    trace::{self, ConnectResult},
};

/// The time between two checks of a subscription.
const CHECKED_EVERY: Duration = Duration::from_secs(5);

/// Listens to one channel.
pub(super) struct Listener {
    pub(super) topology: Arc<Topology>,
    pub(super) channel: String,
    pub(super) limit: Duration,
    pub(super) hints: UnboundedSender<Hint>,
}

impl Listener {
    /// Listens until the receiver of the hints is dropped. Subscribes again after every
    /// interruption, and when hints arrive at another server than before.
    ///
    /// Hints that are published without a subscription are lost. [`Hint::Listening`] is sent when
    /// the server has confirmed the first subscription, and [`Hint::Reconnected`] when the
    /// server has confirmed one after an interruption.
    pub(super) async fn listen(self) {
        let hints = &self.hints;
        let mut has_listened = false;
        let mut is_interrupted = false;
        let mut back_off = BackOff::default();
        loop {
            let subscribed = || {
                if !has_listened {
                    let _ = hints.send(Hint::Listening);
                }
                if is_interrupted && hints.send(Hint::Reconnected).is_ok() {
                    trace::resubscribed();
                }
                is_interrupted = false;
                has_listened = true;
                back_off = BackOff::default();
            };
            tokio::select! {
                () = hints.closed() => return,
                error = self.listen_once(subscribed) => if !is_interrupted {
                    trace::subscription_lost(&error);
                },
            }
            is_interrupted = true;
            tokio::select! {
                () = hints.closed() => return,
                () = sleep_until(back_off.lengthen(self.limit)) => {}
            }
        }
    }

    /// Listens until the subscription ends, and returns the reason. Calls `subscribed` when the
    /// server has confirmed the subscription.
    async fn listen_once(&self, subscribed: impl FnOnce()) -> Error {
        let subscribing = timeout(self.limit, self.subscribe()).await;
        let subscribing = subscribing.unwrap_or_else(|_| {
            let name = self.topology.name();
            Err(explain::cannot_connect_in_time(name, self.limit))
        });
        trace::connected(trace::Connection::Hints, ConnectResult::of(&subscribing));
        let (connection, mut source) = match subscribing {
            Ok(subscription) => subscription,
            Err(error) => {
                self.topology.mark_stale();
                return error;
            }
        };
        subscribed();
        let (sink, messages) = connection.split();
        tokio::select! {
            error = self.forward(messages) => error,
            error = self.watch_changes(&mut source) => error,
            error = self.check(sink) => error,
        }
    }

    async fn subscribe(&self) -> Result<(PubSub, HintSource), Error> {
        let source = self.topology.hint_source(self.limit).await?;
        let client = source.server.client_for_hints().await?;
        let failed = |error| explain::cannot_connect(&source.server.address, error);
        let mut connection = client.get_async_pubsub().await.map_err(failed)?;
        // `subscribe` returns once the server has confirmed the subscription.
        connection.subscribe(&self.channel).await.map_err(failed)?;
        self.topology.subscribed(&source);
        Ok((connection, source))
    }

    /// Passes hints on until the connection ends.
    async fn forward(&self, mut messages: impl Stream<Item = Msg> + Unpin) -> Error {
        while let Some(message) = messages.next().await {
            if let Some(hint) = hint(message.get_payload_bytes()) {
                let _ = self.hints.send(hint);
            }
        }
        explain::connection_ended()
    }

    /// Subscribes again on the same connection, until the server does not confirm that in time.
    async fn check(&self, mut connection: PubSubSink) -> Error {
        loop {
            sleep(CHECKED_EVERY).await;
            match timeout(self.limit, connection.subscribe(&self.channel)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return explain::connection_broke(error),
                Err(_) => return explain::no_answer(self.limit),
            }
        }
    }

    /// Reports moved keys until hints arrive at another server.
    async fn watch_changes(&self, source: &mut HintSource) -> Error {
        loop {
            match self.topology.changed(source).await {
                Change::KeysMoved(keys) => {
                    let _ = self.hints.send(Hint::Moved(keys));
                }
                Change::OtherSource => return explain::subscription_moves(),
            }
        }
    }
}

/// Reads a message on an instance's channel: the kind of hint, a space, and the key, as in `free
/// orders/42`.
fn hint(message: &[u8]) -> Option<Hint> {
    let (kind, key) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let key = LockKey::new(key).ok()?;
    match kind {
        "free" => Some(Hint::Free(key)),
        "next" => Some(Hint::Next(key)),
        "wanted" => Some(Hint::Wanted(key)),
        _ => None,
    }
}
