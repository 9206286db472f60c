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
//! | CLIENT KILL | closes the store's strays at this server, if there are any |
//! | ROLE | checks that the server is a primary; only sent where a fail-over is possible |
//! | SCRIPT LOAD | loads the scripts in daily use, so that no call is sent a second time by text |

use redis::{Value, aio::MultiplexedConnection, pipe};

use super::{Connector, Peer};
use crate::{
    Error,
    store::redis::{
        explain,
        operations::text,
        script,
        topology::{Server, check_role},
    },
};

impl Connector {
    /// Makes the connection ready for calls. Returns its name on the server, if the server tells.
    pub(super) async fn shake_hands(
        &self,
        server: &Server,
        connection: &mut MultiplexedConnection,
    ) -> Result<Option<Peer>, Error> {
        let strays = self.strays.at(&server.address);
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
        for stray in &strays {
            commands.add_command(stray.kill());
        }
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
        // Without the clock, nothing tells a counter that was lost from one that was not.
        if let Value::ServerError(error) = time {
            return Err(explain::refused(error.into()));
        }
        let info = next();
        for stray in &strays {
            self.strays.met(&server.address, stray, &next());
        }
        if self.upstream.can_fail_over() {
            check_role(&server.address, next())?;
        }
        self.floors.raise_all(microseconds(&time).unwrap_or(0));
        let infos = [text(&memory), text(&persistence)];
        self.persistence.connected(&server.address, infos);
        self.upstream.connected(&server.address, text(&info));
        Ok(Peer::read(&client_info))
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
