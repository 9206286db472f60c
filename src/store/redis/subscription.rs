//! Hints: one channel for each instance, listened to on a connection of its own.

use std::{io, time::Duration};

use futures_util::StreamExt;
use redis::aio::PubSub;
use tokio::{
    sync::mpsc::UnboundedSender,
    time::{sleep, timeout},
};

use super::{explain, primary::Server, reply, routes::Station};
use crate::{Error, store::Hint, sync::random, trace};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Listens until nobody receives the hints any more. Subscribes again after every interruption, and when leases have moved to
/// another server. Each time, once the server has confirmed the subscription, says from when on hints arrive again:
/// those published before are lost.
pub(super) async fn listen(
    station: Station,
    channel: String,
    limit: Duration,
    hints: UnboundedSender<Hint>,
) {
    let mut has_listened = false;
    let mut interrupted = false;
    let mut pause = FIRST_PAUSE;
    loop {
        let subscribed = || {
            if !has_listened {
                let _ = hints.send(Hint::Listening);
            }
            if interrupted && hints.send(Hint::Reconnected).is_ok() {
                trace::resubscribed();
            }
            has_listened = true;
            pause = FIRST_PAUSE;
        };
        let listening = listen_once(&station, &channel, limit, &hints, subscribed);
        tokio::select! {
            () = hints.closed() => return,
            error = listening => if !interrupted {
                trace::subscription_lost(&error);
            },
        }
        interrupted = true;
        tokio::select! {
            () = hints.closed() => return,
            () = sleep(jittered(pause)) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

/// Between half of a pause and all of it: a fleet that was cut off at one time does not come back at one time.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + random() / 2.0)
}

/// Listens until the connection ends, and says why it did.
async fn listen_once(
    station: &Station,
    channel: &str,
    limit: Duration,
    hints: &UnboundedSender<Hint>,
    subscribed: impl FnOnce(),
) -> Error {
    let (mut connection, (server, version)) =
        match timeout(limit, subscribe(station, channel, limit)).await {
            Ok(Ok(subscribed)) => subscribed,
            Ok(Err(error)) => {
                station.doubt();
                return error;
            }
            Err(_) => {
                station.doubt();
                return explain::cannot_connect_in_time(station.name(), limit);
            }
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
        () = station.moved_from(&server) => explain::primary_moved(),
        error = station.tell_of_moved_slots(version, hints) => error,
    }
}

async fn subscribe(
    station: &Station,
    channel: &str,
    limit: Duration,
) -> Result<(PubSub, (Server, u64)), Error> {
    let (server, version) = station.find(limit).await?;
    let client = server.for_hints()?;
    let failed = |error| explain::cannot_connect(&server.address, error);
    let mut connection = client.get_async_pubsub().await.map_err(failed)?;
    // Returns once the server has confirmed it.
    connection.subscribe(channel).await.map_err(failed)?;
    station.found(&server);
    Ok((connection, (server, version)))
}
