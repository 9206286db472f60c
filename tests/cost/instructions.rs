//! The server's instructions for a lock and its release, counted by callgrind: unlike time, they do
//! not depend on the other work of the machine.
//!
//! A count is the difference of two runs of a server, so that its start does not count. The
//! commands are those of a store, for messages of a given number of calls (`joint.lua`): a store
//! itself decides the size of its messages.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use redis::{Client, Pipeline, Value, aio::MultiplexedConnection, pipe};
use tower_distributed_lock::store::RedisStore;

use crate::{
    ALONE, COMPARE_AND_DELETE,
    support::{
        eventually,
        redis_server::{RedisServer, binary},
        words::*,
    },
};

/// The number of locks in a message, and the most instructions of a lock and its release, as a
/// multiple of those by hand. 1.13 was counted; counts of one server vary by 3 %.
const BAR: (usize, f64) = (16, 1.2);
/// Messages that are counted beside, for the record.
const SMALLER: [usize; 3] = [1, 2, 4];
/// The locks of the shorter and of the longer run.
const LOCKS: [usize; 2] = [320, 1600];

/// What a message of locks, and one of releases, consist of.
struct Messages {
    lock: Pipeline,
    release: Pipeline,
}

/// A call as a store has sent it: the hash of its script, its names and its arguments.
struct Sent {
    hash: String,
    names: Vec<String>,
    arguments: Vec<String>,
}

impl Sent {
    /// The command that makes the call for so many keys, each in a bucket of its own.
    fn joint(&self, calls: usize) -> Pipeline {
        let mut message = pipe();
        let command = message.cmd("EVALSHA").arg(&self.hash);
        let (names, in_common, of_each) = match (&self.arguments[..], calls) {
            (arguments, 1) => (&self.names[..], vec![], arguments.to_vec()),
            ([value, lease, floor, queueing], _) => {
                let in_common = vec![lease, floor, queueing];
                (&self.names[..], in_common, vec![value.clone()])
            }
            (arguments, _) => (&self.names[..1], vec![], arguments.to_vec()),
        };
        command.arg(names.len() * calls);
        for name in names {
            for n in 0..calls {
                command.arg(name.replace("{b2089}", &format!("{{b{}}}", 1000 + n)));
            }
        }
        command.arg(in_common);
        for _ in 0..calls {
            command.arg(&of_each);
        }
        message
    }
}

/// The acquire and the release of a store with default settings.
async fn sent_by_a_store() -> [Sent; 2] {
    let server = RedisServer::start_with(&["--slowlog-log-slower-than", "0"]).await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let (key, owner) = (key("orders/42"), owner());
    store.take(&key, owner).await;
    store.free(&key, owner).await;
    let log: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        server.send(&["SLOWLOG", "GET", "-1"]).await;
    let commands = log.into_iter().map(|entry| entry.3);
    let scripts = commands.filter(|command| command[0] == "EVALSHA");
    let sent = scripts.map(|command| {
        let (names, arguments) = command[3..].split_at(command[2].parse().unwrap());
        Sent {
            hash: command[1].clone(),
            names: names.to_vec(),
            arguments: arguments.to_vec(),
        }
    });
    let mut sent: Vec<_> = sent.collect();
    // The newest is the first.
    sent.reverse();
    <[_; 2]>::try_from(sent).unwrap_or_else(|sent| panic!("{} scripts", sent.len()))
}

fn by_hand(calls: usize, value: &str) -> Messages {
    let hash = redis::Script::new(COMPARE_AND_DELETE).get_hash().to_owned();
    let (mut lock, mut release) = (pipe(), pipe());
    for n in 0..calls {
        let name = format!("tdl:2:{{b{}}}:lock:orders/42", 1000 + n);
        let set = lock.cmd("SET").arg(&name).arg(value);
        set.arg("NX").arg("PX").arg(30_000);
        let script = release.cmd("EVALSHA").arg(&hash).arg(1);
        script.arg(&name).arg(value);
    }
    Messages { lock, release }
}

/// A server under callgrind.
struct Counted {
    child: Child,
    port: u16,
    log: std::path::PathBuf,
}

impl Counted {
    async fn start(folder: &Path) -> (Self, MultiplexedConnection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let log = folder.join(format!("callgrind-{port}.log"));
        let child = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(format!("--log-file={}", log.display()))
            .arg(binary())
            .current_dir(folder)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            // The server's own work would count as well.
            .args(["--save", "", "--appendonly", "no", "--hz", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port, log };
        let mut connection = None;
        eventually("the server answers under callgrind", async || {
            let client = Client::open(server.url()).unwrap();
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
            let connecting = client.get_multiplexed_async_connection_with_config(&config);
            connection = connecting.await.ok();
            connection.is_some()
        })
        .await;
        (server, connection.unwrap())
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends the server, and returns the instructions that it has run.
    async fn end(mut self, mut connection: MultiplexedConnection) -> u64 {
        let mut shutdown = redis::cmd("SHUTDOWN");
        let _: redis::RedisResult<Value> =
            (shutdown.arg("NOSAVE").query_async(&mut connection)).await;
        eventually("the server has ended", async || {
            self.child.try_wait().unwrap().is_some()
        })
        .await;
        let log = std::fs::read_to_string(&self.log).unwrap();
        let collected = log.lines().find_map(|line| line.split_once("Collected :"));
        let (_, count) = collected.unwrap_or_else(|| panic!("no count: {log}"));
        count.trim().parse().unwrap()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's instructions for one lock and its release.
async fn instructions(folder: &Path, calls: usize, messages: &Messages) -> f64 {
    let mut counts = [0; 2];
    for (count, locks) in counts.iter_mut().zip(LOCKS) {
        let (server, mut connection) = Counted::start(folder).await;
        let script = redis::Script::new(COMPARE_AND_DELETE);
        script.load_async(&mut connection).await.unwrap();
        // A store loads its scripts when it connects.
        eventually("a store connects", async || {
            RedisStore::connect(server.url()).await.is_ok()
        })
        .await;
        for _ in 0..locks / calls {
            for message in [&messages.lock, &messages.release] {
                let replies: Vec<Value> = message.query_async(&mut connection).await.unwrap();
                assert!(replies.iter().all(is_done), "{replies:?}");
            }
        }
        *count = server.end(connection).await;
    }
    let [short, long] = counts;
    (long - short) as f64 / (LOCKS[1] - LOCKS[0]) as f64
}

/// Whether a reply says that a key was taken or freed; that of a joint script, that all were.
fn is_done(reply: &Value) -> bool {
    match reply {
        Value::Okay => true,
        Value::Int(number) => *number > 0,
        Value::Array(replies) => replies.iter().all(is_done),
        _ => false,
    }
}

#[tokio::test]
async fn a_lock_and_its_release_take_few_instructions_of_the_server() {
    let _alone = ALONE.lock().await;
    let version = Command::new("valgrind").arg("--version").output();
    if !version.is_ok_and(|it| it.status.success()) {
        eprintln!("NO VALGRIND: the instructions of the server are not counted");
        return;
    }
    let [acquire, release] = sent_by_a_store().await;
    let value = acquire.arguments[0].clone();
    let folder = std::env::temp_dir().join(format!("tdl-callgrind-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let sizes: Vec<usize> = if std::env::var_os("TDL_ALL_MESSAGES").is_some() {
        SMALLER.into_iter().chain([BAR.0]).collect()
    } else {
        vec![BAR.0]
    };
    let mut ratio = f64::MAX;
    for calls in sizes {
        let ours = Messages {
            lock: acquire.joint(calls),
            release: release.joint(calls),
        };
        let hand = by_hand(calls, &value);
        let hand = instructions(&folder, calls, &hand).await;
        let ours = instructions(&folder, calls, &ours).await;
        ratio = ours / hand;
        println!("messages of {calls}: {ours:.0} instructions, by hand {hand:.0}: {ratio:.2} ×");
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(ratio <= BAR.1, "{ratio:.2} × those by hand");
}
