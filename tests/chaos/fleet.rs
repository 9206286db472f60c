//! The processes of a run: servers of the store behind proxies, a server for the ledger itself, and
//! replicas.

use std::{
    fs::{File, OpenOptions},
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::Mutex,
    time::Duration,
};

use tokio::{
    sync::Mutex as AsyncMutex,
    task::block_in_place,
    time::{Instant, sleep},
};

use crate::{
    Settings,
    record::{Event, Sample},
    support::{PATIENCE, proxy::Proxy, redis_server::RedisServer, replica::Replica},
};

/// All processes. A fault locks its process, so that two faults never hit the same process at once.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Node>,
    replicas: Vec<Slot>,
    /// Where the accounts are: no fault hits this server.
    ledger: RedisServer,
    lease: Duration,
    stderr: PathBuf,
}

/// A server of the store, which replicas reach through a proxy.
pub(crate) struct Node {
    pub(crate) server: AsyncMutex<RedisServer>,
    pub(crate) proxy: Mutex<Proxy>,
}

struct Slot {
    replica: AsyncMutex<Replica>,
    /// `None` while the replica is dead.
    addr: Mutex<Option<SocketAddr>>,
}

impl Fleet {
    pub(crate) async fn start(settings: &Settings, stderr: PathBuf) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..settings.nodes() {
            let server = RedisServer::start().await;
            let proxy = Proxy::start(server.port()).await;
            nodes.push(Node {
                server: AsyncMutex::new(server),
                proxy: Mutex::new(proxy),
            });
        }
        File::create(&stderr).expect("the replicas' standard error has a file");
        let mut fleet = Self {
            nodes,
            replicas: Vec::new(),
            ledger: RedisServer::start().await,
            lease: settings.lease,
            stderr,
        };
        for number in 0..settings.replicas {
            let replica = fleet.start_replica(number).await;
            fleet.replicas.push(Slot {
                addr: Mutex::new(Some(replica.addr())),
                replica: AsyncMutex::new(replica),
            });
        }
        fleet
    }

    pub(crate) fn size(&self) -> usize {
        self.replicas.len()
    }

    /// The address of a replica, unless that replica is dead.
    pub(crate) fn addr(&self, replica: usize) -> Option<SocketAddr> {
        *self.replicas[replica].addr.lock().unwrap()
    }

    pub(crate) async fn pause(&self, number: usize, lasts: Duration) {
        let replica = self.replicas[number].replica.lock().await;
        replica.freeze();
        sleep(lasts).await;
        replica.thaw();
    }

    /// Kills a replica, and starts a new one in its place after a while.
    pub(crate) async fn kill(&self, number: usize, lasts: Duration) {
        let slot = &self.replicas[number];
        let mut replica = slot.replica.lock().await;
        slot.addr.lock().unwrap().take();
        block_in_place(|| replica.kill());
        sleep(lasts).await;
        *replica = self.start_replica(number).await;
        *slot.addr.lock().unwrap() = Some(replica.addr());
    }

    /// One replica never dies, so that its memory can be watched; the choice hits all the others.
    pub(crate) fn mortal(&self, target: usize) -> usize {
        1 + target % (self.size() - 1)
    }

    /// How large each replica is now, and which one has ended by itself.
    pub(crate) async fn samples(&self, at: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, slot) in self.replicas.iter().enumerate() {
            // Not during a fault of that replica.
            let Ok(mut replica) = slot.replica.try_lock() else {
                continue;
            };
            let process = replica.process();
            if replica.has_ended() {
                let replica = number;
                events.push(Event::Ended {
                    replica,
                    well: false,
                });
            } else if let Some((memory_kb, descriptors)) = size_of(process) {
                events.push(Event::Sample(Sample {
                    at,
                    process,
                    memory_kb,
                    descriptors,
                }));
            }
        }
        events
    }

    /// Asks each replica to end.
    pub(crate) async fn terminate(self) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, slot) in self.replicas.into_iter().enumerate() {
            let replica = slot.replica.into_inner();
            let well = block_in_place(|| replica.terminate());
            events.push(Event::Ended {
                replica: number,
                well,
            });
        }
        events
    }

    /// Each name in the store, with the node and the remaining time to live.
    pub(crate) async fn names(&self) -> Vec<Event> {
        let mut names = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let server = node.server.lock().await;
            for name in server.send::<Vec<String>>(&["KEYS", "*"]).await {
                let ttl: i64 = server.send(&["PTTL", &name]).await;
                // The name expired in between.
                if ttl == -2 {
                    continue;
                }
                names.push(Event::InStore {
                    node: number,
                    name,
                    ttl_ms: u64::try_from(ttl).ok(),
                });
            }
        }
        names
    }

    /// Starts a replica. One that ends at once, because the store is away, is started again.
    async fn start_replica(&self, number: usize) -> Replica {
        let proxies = self
            .nodes
            .iter()
            .map(|node| node.proxy.lock().unwrap().url());
        let store = proxies.collect::<Vec<_>>().join(",");
        let (ledger, lease) = (self.ledger.url(), self.lease.as_millis().to_string());
        // Both kinds of handlers: those that are cancelled at a loss, and those that go on.
        let loss = if number.is_multiple_of(2) {
            "finish"
        } else {
            "cancel"
        };
        let settings = [
            ("STORE", &*store),
            ("LEDGER", &*ledger),
            ("LEASE_MS", &*lease),
            ("WAIT_MS", "5000"),
            ("LOSS", loss),
        ];
        let until = Instant::now() + PATIENCE;
        loop {
            let stderr = OpenOptions::new().append(true).open(&self.stderr);
            let stderr = Stdio::from(stderr.unwrap());
            if let Some(replica) = block_in_place(|| Replica::try_start(&settings, stderr)) {
                return replica;
            }
            assert!(Instant::now() < until, "replica {number} does not start");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Resident memory in kB, and open descriptors.
fn size_of(process: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let memory = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory = memory.trim().split(' ').next()?.parse().ok()?;
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    Some((memory, descriptors.count() as u64))
}
