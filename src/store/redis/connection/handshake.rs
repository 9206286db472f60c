//! The commands that a new connection begins with, in one round trip.
//!
//! | command | purpose |
//! |---|---|
//! | CLIENT SETNAME | the name by which operators recognize the connection in CLIENT LIST |
//! | CLIENT INFO | the id by which a later connection has this connection closed |
//! | TIME | the floor of tokens |
//! | INFO memory | a warning if the server evicts keys |
//! | INFO persistence | a warning if the server forgets records |
//! | INFO server | the server's uptime and `run_id` |
//! | CLIENT KILL | closes the lane's last connection to this server; ECHO if there is none |
//! | ROLE | checks that the server is a primary; only sent where a fail-over is possible |
//! | SCRIPT LOAD | loads the scripts in daily use, so that no call is sent a second time by text |

use redis::{Value, aio::MultiplexedConnection, pipe};

use super::{Connector, Peer, Predecessor};
use crate::{
    Error,
    store::redis::{
        explain, script,
        topology::{Server, check_role},
    },
    trace,
};

/// The result of a successful handshake.
pub(super) struct Accepted {
    pub(super) predecessors_closed: bool,
    pub(super) peer: Option<Peer>,
}

impl Connector {
    pub(super) async fn shake_hands(
        &self,
        server: &Server,
        connection: &mut MultiplexedConnection,
    ) -> Result<Accepted, Error> {
        let predecessors = self.lane.as_ref().map(|lane| &lane.predecessors);
        let predecessor = predecessors.and_then(|all| all.lock().get(&server.address).cloned());
        let mut commands = pipe();
        commands
            .cmd("CLIENT")
            .arg("SETNAME")
            .arg(&*self.client_name);
        commands.cmd("CLIENT").arg("INFO").cmd("TIME");
        // Servers before 7.0 accept one section for each INFO.
        commands.cmd("INFO").arg("memory");
        commands.cmd("INFO").arg("persistence");
        commands.cmd("INFO").arg("server");
        match predecessor.as_ref().and_then(|last| last.peer.as_ref()) {
            Some(peer) => commands.add_command(peer.kill()),
            None => commands.cmd("ECHO").arg("first"),
        };
        if self.upstream.can_fail_over() {
            commands.cmd("ROLE");
        }
        for script in script::in_daily_use() {
            commands.add_command(script.load(self.upstream.floor_by_clock()));
        }
        let replies = connection
            .send_packed_commands(&commands, 0, commands.len())
            .await
            .map_err(|error| explain::cannot_connect(&server.address, error))?;

        if let Some(error) = replies.iter().find_map(explain::temporary) {
            return Err(error);
        }
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        // A server that denies CLIENT SETNAME only shows no name.
        let _named = next();
        let (client_info, time, memory, persistence) = (next(), next(), next(), next());
        let (info, killed) = (next(), next());
        if self.upstream.can_fail_over() {
            check_role(&server.address, next())?;
        }
        self.floors.raise_all(microseconds(&time).unwrap_or(0));
        if predecessors.is_some() && predecessor.is_none() {
            warn_if_evicting(&memory);
        }
        if let Some(lane) = &self.lane {
            lane.persistence
                .connected(&server.address, text(&persistence));
        }
        // A denied CLIENT KILL will be denied again, and a connection without a name cannot be killed.
        let predecessors_closed = predecessor
            .is_none_or(|last| last.predecessors_closed && last.peer.is_some())
            && !matches!(killed, Value::ServerError(_));
        let peer = Peer::read(&server.address, &client_info);
        if let Some(predecessors) = predecessors {
            let this = Predecessor {
                peer: peer.clone(),
                predecessors_closed,
            };
            predecessors.lock().insert(server.address.clone(), this);
        }
        self.upstream.connected(&server.address, text(&info));
        Ok(Accepted {
            predecessors_closed,
            peer,
        })
    }
}

fn warn_if_evicting(memory: &Value) {
    let policy = text(memory).and_then(|info| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("maxmemory_policy:"))
    });
    if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
        trace::redis_evicts(policy);
    }
}

/// Reads the reply to TIME.
fn microseconds(reply: &Value) -> Option<u64> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let number = |part| text(part)?.parse::<u64>().ok();
    Some(number(parts.first()?)? * 1_000_000 + number(parts.get(1)?)?)
}

pub(super) fn text(reply: &Value) -> Option<&str> {
    match reply {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::VerbatimString { text, .. } => Some(text),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
