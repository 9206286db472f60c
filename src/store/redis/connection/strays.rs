//! The connections that a store has given up, and that the server may still read from.
//!
//! Commands can lie unread in the buffers of a server that hangs, long after the client has closed
//! its end. Every new connection therefore has the server close the strays of the store first
//! (CLIENT KILL), and so does a release in doubt, for a connection of the pool that was given up
//! meanwhile:
//!
//! ```text
//! lane: the connection breaks ──▶ its peer is a stray, and the outcome of its calls is unknown
//!       the next handshake: CLIENT KILL ──▶ no stray is left ──▶ a release in doubt settles its owner
//!                           denied ───────▶ strays are left for good ──▶ "not yet", until the lease is over
//! ```
//!
//! The strays at one server say nothing about another one. After a fail-over, those at the old
//! primary cannot be closed from the new one, and need not be: the new server has the role of a
//! primary already (ROLE), and so does not replicate later writes of the old one, which forgets
//! those writes before any server replicates from it again.

use std::{collections::HashMap, sync::Arc};

use redis::Value;

use super::Peer;
use crate::{store::redis::explain, sync::Mutex};

/// The strays of a store, by the address of their server.
#[derive(Debug, Default)]
pub(crate) struct Strays(Mutex<HashMap<Arc<str>, AtServer>>);

#[derive(Debug, Default)]
struct AtServer {
    open: Vec<Peer>,
    /// A stray cannot be closed: the server has denied the command, or the name of the connection.
    is_hopeless: bool,
}

impl Strays {
    /// Adds a connection. `None` stands for one whose name on the server is not known.
    pub(super) fn add(&self, server: &Arc<str>, peer: Option<Peer>) {
        let mut servers = self.0.lock();
        let at_server = servers.entry(server.clone()).or_default();
        at_server.is_hopeless |= peer.is_none();
        at_server.open.extend(peer);
    }

    /// The strays at a server, which are to be closed.
    pub(super) fn at(&self, server: &Arc<str>) -> Vec<Peer> {
        let servers = self.0.lock();
        let at_server = servers.get(server);
        at_server.map_or_else(Vec::new, |it| it.open.clone())
    }

    /// Takes the reply to the command that closes a stray. A command that is denied will be denied
    /// again.
    pub(super) fn met(&self, server: &Arc<str>, stray: &Peer, reply: &Value) {
        if explain::temporary(reply).is_some() {
            return;
        }
        let is_denied = matches!(reply, Value::ServerError(_));
        if let Some(at_server) = self.0.lock().get_mut(server) {
            at_server.open.retain(|peer| peer != stray);
            at_server.is_hopeless |= is_denied;
        }
    }

    /// Whether a command on an earlier connection to the server may still take effect.
    pub(super) fn are_left_at(&self, server: &Arc<str>) -> bool {
        let servers = self.0.lock();
        let at_server = servers.get(server);
        at_server.is_some_and(|it| it.is_hopeless || !it.open.is_empty())
    }
}
