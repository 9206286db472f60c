//! The record of a run: all that the checker knows.
//!
//! A file of JSON lines, one event each. Times are microseconds since the start of the run.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
    sync::Mutex,
    time::Instant,
};

use serde::{Deserialize, Serialize};

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    Run(Run),
    Request(Request),
    Fault(Fault),
    Sample(Sample),
    /// The machine did not let the test itself run for so long.
    Lag {
        at: u64,
        until: u64,
    },
    /// No client asks from here on, and all faults are over.
    Quiet {
        at: u64,
    },
    /// All deposits of an account that the ledger has written, in that order.
    Entries {
        account: String,
        fenced: bool,
        entries: Vec<Entry>,
    },
    /// The idempotency keys of all payments that were really made, in that order.
    Payments {
        keys: Vec<String>,
    },
    /// A name that is left in the store at the end; without `ttl_ms`, one that never expires.
    InStore {
        node: usize,
        name: String,
        ttl_ms: Option<u64>,
    },
    /// The work that is left in a replica's locks at the end.
    Stats {
        replica: usize,
        keys: u64,
        waiting: u64,
        leases: u64,
        calls: u64,
    },
    /// A line that a replica wrote to its standard error.
    Stderr {
        line: String,
    },
    /// A replica ended; `well` if on request and with success.
    Ended {
        replica: usize,
        well: bool,
    },
    End {
        at: u64,
    },
}

/// The settings of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) store: String,
    pub(crate) seconds: u64,
    pub(crate) replicas: usize,
    pub(crate) lease_ms: u64,
    /// How long a key may stand still for no other reason than a busy machine.
    pub(crate) slack_ms: u64,
}

/// One request and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) at: u64,
    pub(crate) until: u64,
    pub(crate) replica: usize,
    pub(crate) asked: Asked,
    /// The client closed its connection before the answer came, as planned.
    pub(crate) abandoned: bool,
    /// `None` if the connection ended without an answer, or none came in time.
    pub(crate) answer: Option<Answer>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    Deposit {
        account: String,
        fenced: bool,
        id: String,
    },
    Payment {
        key: String,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    /// Of a deposit that was written.
    pub(crate) token: Option<u64>,
    pub(crate) balance: Option<i64>,
    /// `Idempotent-Replayed`.
    pub(crate) replayed: bool,
    /// `Idempotency-Stored`: absent where the answer is stored for sure.
    pub(crate) stored: Option<String>,
}

/// A fault, from its beginning until all works again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) at: u64,
    pub(crate) until: u64,
    pub(crate) kind: Kind,
    /// The number of the replica or the node.
    pub(crate) target: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// SIGSTOP and SIGCONT of a replica.
    PauseReplica,
    /// SIGKILL of a replica, and a new one.
    KillReplica,
    /// All connections to the store are closed.
    CutConnections,
    /// Commands arrive, replies are held back; then the connections are closed.
    HoldReplies,
    /// SIGSTOP and SIGCONT of the server, or of a majority.
    FreezeStore,
    /// SIGKILL of the server, which comes back empty.
    KillStore,
    /// Every server is out of memory.
    FillStore,
    /// SCRIPT FLUSH on every server.
    ForgetScripts,
    /// FLUSHALL on every server.
    ForgetEverything,
    /// SIGSTOP and SIGCONT of one node of a quorum.
    FreezeNode,
    /// SIGKILL of one node of a quorum, which comes back empty.
    KillNode,
}

/// How large a process is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at: u64,
    pub(crate) process: u32,
    pub(crate) memory_kb: u64,
    pub(crate) descriptors: u64,
}

/// A deposit in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// The last deposit when this one read the account; empty for the first.
    pub(crate) previous: String,
    pub(crate) token: u64,
    pub(crate) balance: i64,
}

/// Writes events to a file, from any task.
pub(crate) struct Recorder {
    start: Instant,
    file: Mutex<BufWriter<File>>,
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> Self {
        let file = File::create(path).expect("the record can be written");
        Self {
            start: Instant::now(),
            file: Mutex::new(BufWriter::new(file)),
        }
    }

    /// Microseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    pub(crate) fn add(&self, event: &Event) {
        let mut line = serde_json::to_string(event).unwrap();
        line.push('\n');
        let mut file = self.file.lock().unwrap();
        file.write_all(line.as_bytes()).unwrap();
        if matches!(event, Event::End { .. }) {
            file.flush().unwrap();
        }
    }
}

pub(crate) fn read(path: &Path) -> Vec<Event> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parse = |line: std::io::Result<String>| {
        let line = line.unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    };
    BufReader::new(file).lines().map(parse).collect()
}
