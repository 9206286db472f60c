//! A bad network between a store and its server.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// The treatment of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Fine,
    /// Requests arrive, replies are held back.
    RepliesHeldBack,
    /// No bytes arrive at either end, and neither end notices.
    BlackHole,
    /// The same, and the client's end is closed. The bytes that the client sent are still on their way.
    ClientGone,
    /// The connections are closed.
    Cut,
}

pub struct Proxy {
    address: SocketAddr,
    /// The network of all connections to come, and of those since it was last replaced.
    network: Arc<Mutex<watch::Sender<Network>>>,
    /// The networks of connections that were left alone.
    old: Vec<watch::Sender<Network>>,
    _task: JoinSet<()>,
}

impl Proxy {
    /// In front of the server on a port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let network = Arc::new(Mutex::new(watch::Sender::new(Network::Fine)));
        let mut task = JoinSet::new();
        let networks = network.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let network = networks.lock().unwrap().subscribe();
                connections.spawn(forward(client, server, network));
            }
        });
        Self {
            address,
            network,
            old: Vec::new(),
            _task: task,
        }
    }

    /// In front of the server on a port, whose replies all arrive late. The network stays as it is.
    pub async fn start_late(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward_late(client, server, delay));
            }
        });
        Self {
            address,
            network: Arc::new(Mutex::new(watch::Sender::new(Network::Fine))),
            old: Vec::new(),
            _task: task,
        }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// For all connections since the last `only_new_ones_are_fine`.
    pub fn set(&self, network: Network) {
        self.network.lock().unwrap().send_replace(network);
    }

    /// Leaves the connections that are there as they are, whatever becomes of later ones.
    pub fn only_new_ones_are_fine(&mut self) {
        let fine = watch::Sender::new(Network::Fine);
        let old = std::mem::replace(&mut *self.network.lock().unwrap(), fine);
        self.old.push(old);
    }

    /// No bytes arrive over the old connections any more, and neither end notices.
    pub fn old_ones_stop(&self) {
        for network in &self.old {
            network.send_replace(Network::BlackHole);
        }
    }

    /// The bytes that the old connections held back arrive.
    pub fn old_ones_go_on(&self) {
        for network in &self.old {
            network.send_replace(Network::Fine);
        }
    }

    /// Closes all connections; new ones are fine.
    pub fn cut(&mut self) {
        // In this order: a connection that is made in between is a new one.
        let network = self.network.clone();
        let fine = watch::Sender::new(Network::Fine);
        let old = std::mem::replace(&mut *network.lock().unwrap(), fine);
        old.send_replace(Network::Cut);
        self.old.push(old);
    }
}

async fn forward(client: TcpStream, server: u16, mut network: watch::Receiver<Network>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = copy(from_client, to_server, network.clone(), |network| {
        matches!(network, Network::Fine | Network::RepliesHeldBack)
    });
    let replies = copy(from_server, to_client, network.clone(), |network| {
        network == Network::Fine
    });
    tokio::select! {
        ((), ()) = async { tokio::join!(requests, replies) } => {}
        _ = network.wait_for(|network| *network == Network::Cut) => {}
    }
}

/// Forwards requests at once and replies after a delay, however many are on their way.
async fn forward_late(client: TcpStream, server: u16, delay: Duration) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (sender, mut replies) = mpsc::unbounded_channel();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let reading = async {
        loop {
            let mut buffer = vec![0; 64 * 1024];
            let read = from_server.read(&mut buffer).await.unwrap_or(0);
            buffer.truncate(read);
            if read == 0 || sender.send((Instant::now() + delay, buffer)).is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some((due, reply)) = replies.recv().await {
            sleep_until(due).await;
            if to_client.write_all(&reply).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = requests => {}
        () = reading => {}
        () = writing => {}
    }
}

/// Copies until either end is closed. Bytes that were read are written even if the client's end is gone by then.
async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut network: watch::Receiver<Network>,
    passes: impl Fn(Network) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut gone = network.clone();
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = gone.wait_for(|network| *network == Network::ClientGone) => 0,
        };
        if read == 0 {
            return;
        }
        let changed =
            network.wait_for(|network| passes(*network) || *network == Network::ClientGone);
        let Ok(network_now) = changed.await.map(|network| *network) else {
            return;
        };
        if network_now == Network::ClientGone {
            drop(from);
            if network.wait_for(|network| passes(*network)).await.is_ok() {
                let _ = to.write_all(&buffer[..read]).await;
            }
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
