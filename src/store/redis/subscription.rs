//! Hints: one channel for each instance, listened to on a connection of its own.

use std::{io, time::Duration};

use futures_util::StreamExt;
use redis::{Client, RedisError};
use tokio::{
    sync::mpsc::UnboundedSender,
    time::{sleep, timeout},
};

use super::reply;
use crate::{store::Hint, trace};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Listens until nobody receives the hints any more. After every interruption it subscribes again, and then says so.
pub(super) async fn listen(
    client: Client,
    channel: String,
    limit: Duration,
    hints: UnboundedSender<Hint>,
) {
    let mut interrupted = false;
    let mut pause = FIRST_PAUSE;
    loop {
        let subscribed = || {
            if interrupted && hints.send(Hint::Reconnected).is_ok() {
                trace::resubscribed();
            }
            pause = FIRST_PAUSE;
        };
        let listening = listen_once(&client, &channel, limit, &hints, subscribed);
        tokio::select! {
            () = hints.closed() => return,
            error = listening => if !interrupted {
                trace::subscription_lost(&error);
            },
        }
        interrupted = true;
        tokio::select! {
            () = hints.closed() => return,
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

/// Listens until the connection ends, and says why it did.
async fn listen_once(
    client: &Client,
    channel: &str,
    limit: Duration,
    hints: &UnboundedSender<Hint>,
    subscribed: impl FnOnce(),
) -> RedisError {
    let subscribing = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok(connection)
    };
    let mut connection = match timeout(limit, subscribing).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return error,
        Err(_) => return io::Error::from(io::ErrorKind::TimedOut).into(),
    };
    subscribed();
    let mut messages = connection.on_message();
    while let Some(message) = messages.next().await {
        if let Some(hint) = reply::hint(message.get_payload_bytes()) {
            let _ = hints.send(hint);
        }
    }
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}
