//! The name of a connection on the server, and the command that closes the connection.

use redis::{Cmd, Value, cmd};

use crate::store::redis::operations::text;

/// The name of a connection on its server.
///
/// The ids of connections start anew when a server restarts, so the address is compared as well: no
/// other client is closed by mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    id: String,
    address: String,
}

impl Peer {
    /// Reads the reply to CLIENT INFO: `id=3 addr=127.0.0.1:53412 …`.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let info = text(reply)?;
        let field = |name| info.split_whitespace().find_map(|f| f.strip_prefix(name));
        Some(Self {
            id: field("id=")?.to_owned(),
            address: field("addr=")?.to_owned(),
        })
    }

    /// The command that closes the connection from the server's side.
    pub(crate) fn kill(&self) -> Cmd {
        let mut kill = cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(&self.id);
        kill.arg("ADDR").arg(&self.address);
        kill
    }
}
