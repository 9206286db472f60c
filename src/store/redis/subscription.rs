//! Hints: one channel for each instance, listened to on a connection of its own.

use std::{io, sync::Arc, time::Duration};

use futures_util::StreamExt;
use redis::aio::PubSub;
use tokio::{
    sync::mpsc::UnboundedSender,
    time::{sleep, timeout},
};

use super::{
    explain,
    primary::{Primary, ask_role, check_role},
    reply,
};
use crate::{Error, store::Hint, trace};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Listens until nobody receives the hints any more. After every interruption, and when another server has become the
/// primary, it subscribes again, and then says so.
pub(super) async fn listen(
    primary: Arc<Primary>,
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
        let listening = listen_once(&primary, &channel, limit, &hints, subscribed);
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
    primary: &Primary,
    channel: &str,
    limit: Duration,
    hints: &UnboundedSender<Hint>,
    subscribed: impl FnOnce(),
) -> Error {
    let (mut connection, address) = match timeout(limit, subscribe(primary, channel, limit)).await {
        Ok(Ok(subscribed)) => subscribed,
        Ok(Err(error)) => return error,
        Err(_) => return explain::cannot_connect_in_time(primary.name(), limit),
    };
    subscribed();
    let mut messages = connection.on_message();
    let listening = async {
        while let Some(message) = messages.next().await {
            if let Some(hint) = reply::hint(message.get_payload_bytes()) {
                let _ = hints.send(hint);
            }
        }
        explain::connection_broke(io::Error::from(io::ErrorKind::ConnectionReset).into())
    };
    tokio::select! {
        error = listening => error,
        () = primary.moved_from(&address) => explain::primary_moved(),
    }
}

async fn subscribe(
    primary: &Primary,
    channel: &str,
    limit: Duration,
) -> Result<(PubSub, Arc<str>), Error> {
    let server = primary.find(limit).await?;
    let client = server.for_hints()?;
    let failed = |error| explain::cannot_connect(&server.address, error);
    if primary.moves() {
        // Not on the subscription's own connection, which may only subscribe.
        let role = ask_role(&client).await.map_err(failed)?;
        check_role(&server.address, role)?;
    }
    let mut connection = client.get_async_pubsub().await.map_err(failed)?;
    connection.subscribe(channel).await.map_err(failed)?;
    primary.found(&server.address);
    Ok((connection, server.address))
}
