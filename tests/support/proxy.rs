//! A bad network between a store and its server.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Fine,
    /// Requests arrive, replies are held back.
    RepliesHeldBack,
    /// Nothing arrives anywhere, and nobody is told.
    BlackHole,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    network: Arc<watch::Sender<Network>>,
    cuts: Arc<watch::Sender<u64>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// In front of the server on a port.
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            network: Arc::new(watch::Sender::new(Network::Fine)),
            cuts: Arc::new(watch::Sender::new(0)),
            _tasks: JoinSet::new(),
        };
        let (network, cuts) = (proxy.network.clone(), proxy.cuts.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (network, mut cut) = (network.subscribe(), cuts.subscribe());
                connections.spawn(async move {
                    tokio::select! {
                        _ = cut.changed() => {}
                        () = forward(client, server, network) => {}
                    }
                });
            }
        });
        Self {
            _tasks: tasks,
            ..proxy
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn forward(client: TcpStream, server: u16, network: watch::Receiver<Network>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let requests = copy(from_client, to_server, network.clone(), |network| {
        network != Network::BlackHole
    });
    let replies = copy(from_server, to_client, network, |network| {
        network == Network::Fine
    });
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut network: watch::Receiver<Network>,
    passes: impl Fn(Network) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if network.wait_for(|network| passes(*network)).await.is_err()
            || to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
}
