//! A proxy that can stop a transaction of a client at its COMMIT: before the server gets it, or
//! before the client gets the answer.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

/// COMMIT as a simple query.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// What is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The server does not get the COMMIT.
    Request,
    /// The server has committed, and the client does not get the answer.
    Answer,
}

/// A connection that stands still at its COMMIT. It is closed when this is dropped.
pub struct Caught(oneshot::Sender<()>);

impl Caught {
    /// What was held back arrives.
    pub fn go_on(self) {
        let _ = self.0.send(());
    }
}

type Wanted = Arc<Mutex<Option<(Hold, oneshot::Sender<Caught>)>>>;

pub struct AtCommit {
    port: u16,
    wanted: Wanted,
    _task: JoinSet<()>,
}

impl AtCommit {
    /// In front of the server on a port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let wanted = Wanted::default();
        let mut task = JoinSet::new();
        let theirs = wanted.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn({
                    let wanted = theirs.clone();
                    async move {
                        let _ = forward(client, server, wanted).await;
                    }
                });
            }
        });
        Self {
            port,
            wanted,
            _task: task,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next COMMIT. The connection stands still when this returns.
    pub async fn catch(&self, hold: Hold) -> Caught {
        let (sender, caught) = oneshot::channel();
        *self.wanted.lock().unwrap() = Some((hold, sender));
        caught.await.expect("the server answers a COMMIT")
    }

    /// Lets the next COMMIT pass, if none was caught.
    pub fn give_up(&self) {
        self.wanted.lock().unwrap().take();
    }
}

/// Forwards until an end is closed, or a connection that was caught is given up.
async fn forward(mut client: TcpStream, server: u16, wanted: Wanted) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let (mut asked, mut told) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let request = &asked[..read.ok().filter(|read| *read > 0)?];
                let is_commit = request.ends_with(COMMIT);
                let caught = is_commit.then(|| wanted.lock().unwrap().take()).flatten();
                let Some((hold, sender)) = caught else {
                    server.write_all(request).await.ok()?;
                    continue;
                };
                let (go_on, goes_on) = oneshot::channel();
                if hold == Hold::Answer {
                    server.write_all(request).await.ok()?;
                    let read = server.read(&mut told).await.ok().filter(|read| *read > 0)?;
                    let _ = sender.send(Caught(go_on));
                    goes_on.await.ok()?;
                    client.write_all(&told[..read]).await.ok()?;
                } else {
                    let _ = sender.send(Caught(go_on));
                    goes_on.await.ok()?;
                    server.write_all(request).await.ok()?;
                }
            }
            read = server.read(&mut told) => {
                let reply = &told[..read.ok().filter(|read| *read > 0)?];
                client.write_all(reply).await.ok()?;
            }
        }
    }
}
