//! The hints of all instances of a store, on one connection that only listens.
//!
//! Every session that listens is woken by every notification of its database, so a store has one,
//! however many instances use it. An instance has a channel of its own.
//!
//! Behind a pooler, LISTEN may be accepted without anything ever arriving. So a message is sent to
//! the listener first, on another connection: what a session tells itself arrives even there. If
//! the message does not arrive, there are no hints, and waiting attempts ask again after a short
//! time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{interval, sleep},
};
use tokio_postgres::{Notification, types::Type};

use super::{
    batch::{channel, hint},
    connect::{SILENT_LIMITS, Server, Session, name},
    sweep::Sweeper,
};
use crate::{
    Error,
    store::{Hint, Hints, Instance, home::Home},
    sync::{HashMap, Mutex, random, unique_id},
    time::timeout,
    trace::{self, ConnectResult, Connection},
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The time between two checks of the connection.
const CHECKED_EVERY: Duration = Duration::from_secs(5);
/// After this time it is tried again whether messages arrive.
const MUTE_FOR: Duration = Duration::from_secs(60);

/// The instances that receive hints.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    by_instance: Mutex<HashMap<Instance, UnboundedSender<Hint>>>,
    /// Whether messages do not arrive.
    is_mute: AtomicBool,
    /// Tells the listener of new instances; with its runtime.
    listener: Mutex<Option<(runtime::Id, UnboundedSender<Instance>)>>,
}

impl Watchers {
    pub(super) fn sends_hints(&self) -> bool {
        !self.is_mute.load(Ordering::Relaxed)
    }

    pub(super) fn tell_all(&self, hint: &Hint) {
        for watcher in self.by_instance.lock().values() {
            let _ = watcher.send(hint.clone());
        }
    }

    fn tell(&self, instance: Instance, hint: Hint) {
        if let Some(watcher) = self.by_instance.lock().get(&instance) {
            let _ = watcher.send(hint);
        }
    }

    /// Removes the instances that have left, and returns them.
    fn leave(&self) -> Vec<Instance> {
        let mut left = Vec::new();
        self.by_instance.lock().retain(|instance, watcher| {
            if watcher.is_closed() {
                left.push(*instance);
            }
            !watcher.is_closed()
        });
        left
    }

    fn instances(&self) -> Vec<Instance> {
        self.by_instance.lock().keys().copied().collect()
    }
}

/// Subscribes an instance. Called within the runtime that becomes the home of the store.
pub(super) fn watch(
    server: &Arc<Server>,
    home: &Home,
    sweeper: Sweeper,
    instance: Instance,
) -> Hints {
    let (sender, hints) = unbounded_channel();
    let watchers = &server.watchers;
    watchers.by_instance.lock().insert(instance, sender);
    let resident = home.settle();
    let here = Handle::current().id();
    let mut listener = watchers.listener.lock();
    let known = listener.as_ref().filter(|(at, _)| *at == here);
    if known.is_some_and(|(_, new)| new.send(instance).is_ok()) {
        return hints;
    }
    let (new, arriving) = unbounded_channel();
    *listener = Some((here, new));
    let task = Listener {
        server: server.clone(),
        arriving,
        probe: format!("tdl_probe_{}", unique_id()),
    };
    tokio::spawn(async move {
        tokio::select! {
            () = task.run() => {}
            () = sweeper.run() => {}
        }
        drop(resident);
    });
    hints
}

struct Listener {
    server: Arc<Server>,
    arriving: UnboundedReceiver<Instance>,
    probe: String,
}

impl Listener {
    async fn run(mut self) {
        let mut is_interrupted = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = self.connect().await;
            trace::connected(Connection::Hints, ConnectResult::of(&connected));
            let listened = match connected {
                Ok((session, true)) => {
                    pause = FIRST_PAUSE;
                    self.server.watchers.is_mute.store(false, Ordering::Relaxed);
                    if std::mem::take(&mut is_interrupted) {
                        trace::listening_again();
                        self.server.watchers.tell_all(&Hint::Reconnected);
                    } else {
                        self.server.watchers.tell_all(&Hint::Listening);
                    }
                    self.listen(session).await
                }
                Ok((session, false)) => {
                    if !self.server.watchers.is_mute.swap(true, Ordering::Relaxed) {
                        trace::no_hints();
                    }
                    // The server may have been slow: that is found out by another connection.
                    match timeout(MUTE_FOR, self.listen(session)).await {
                        Some(listened) => listened,
                        None => continue,
                    }
                }
                Err(error) => Err(error),
            };
            match listened {
                Ok(()) => return,
                Err(error) if !is_interrupted => trace::listener_lost(&error),
                Err(_) => {}
            }
            is_interrupted = true;
            self.ask_elsewhere().await;
            sleep(pause.mul_f64(0.5 + random() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.server.watchers.leave();
            if self.all_left() {
                return;
            }
        }
    }

    /// Whether no instance is left. The next one starts another listener.
    fn all_left(&mut self) -> bool {
        let mut listener = self.server.watchers.listener.lock();
        let all_left = self.server.watchers.by_instance.lock().is_empty();
        if all_left {
            self.arriving.close();
            listener.take_if(|(_, new)| new.is_closed());
        }
        all_left
    }

    /// Makes the connection. Returns whether messages arrive: then it listens to all channels.
    async fn connect(&mut self) -> Result<(Session, bool), Error> {
        let server = &self.server;
        let opened = server.open(&server.listen);
        let mut session = server.in_time(server.limit, opened).await?;
        self.say(&session, "LISTEN", &self.probe).await?;
        let notify = "SELECT pg_notify($1, '')";
        let probe = server.query(notify, &[(&self.probe, Type::TEXT)]).await;
        // A server that has no connection left for it is asked again later, as a mute one.
        if probe.is_err() {
            return Ok((session, false));
        }
        let arrives = async {
            while let Some(message) = session.messages.recv().await {
                if message.channel() == self.probe {
                    return Ok(());
                }
            }
            Err(closed())
        };
        let arrives = timeout(server.limit, arrives).await.transpose()?.is_some();
        if arrives {
            for instance in server.watchers.instances() {
                self.say(&session, "LISTEN", &channel(instance)).await?;
            }
        }
        Ok((session, arrives))
    }

    /// Passes hints on until no instance is left.
    async fn listen(&mut self, mut session: Session) -> Result<(), Error> {
        let mut checks = interval(CHECKED_EVERY);
        loop {
            tokio::select! {
                message = session.messages.recv() => {
                    self.pass_on(&message.ok_or_else(closed)?);
                }
                new = self.arriving.recv() => {
                    let Some(instance) = new else {
                        // The store, or another runtime, has another listener.
                        return Ok(());
                    };
                    if self.server.watchers.sends_hints() {
                        self.say(&session, "LISTEN", &channel(instance)).await?;
                        self.server.watchers.tell(instance, Hint::Listening);
                    }
                }
                _ = checks.tick() => self.check(&session).await?,
            }
            if self.all_left() {
                return Ok(());
            }
        }
    }

    /// Checks that the server answers, and forgets the instances that have left. Behind a pooler,
    /// no connection ends when another server takes over: that is noticed here.
    async fn check(&self, session: &Session) -> Result<(), Error> {
        for instance in self.server.watchers.leave() {
            self.say(session, "UNLISTEN", &channel(instance)).await?;
        }
        let limit = self.server.limit * SILENT_LIMITS;
        self.server
            .in_time(limit, self.server.greet(&session.client))
            .await
    }

    /// Asks who the server is where the calls go to, if hints come from another address: a pooler
    /// keeps the connections of the lanes when another server takes over.
    async fn ask_elsewhere(&self) {
        let Server { config, listen, .. } = &*self.server;
        if name(config) != name(listen) {
            let _ = self.server.connect().await;
        }
    }

    /// LISTEN and its relatives, which have no parameters.
    async fn say(&self, session: &Session, verb: &str, channel: &str) -> Result<(), Error> {
        let sql = format!("{verb} \"{channel}\"");
        let limit = self.server.limit * SILENT_LIMITS;
        self.server.in_time(limit, session.query(&sql, &[])).await?;
        Ok(())
    }

    fn pass_on(&self, message: &Notification) {
        let instance = message.channel().strip_prefix("tdl_");
        let instance = instance.and_then(|instance| instance.parse().ok());
        if let (Some(instance), Some(hint)) = (instance, hint(message.payload())) {
            self.server.watchers.tell(instance, hint);
        }
    }
}

fn closed() -> Error {
    Error::broken("the connection to PostgreSQL has ended", None)
}
