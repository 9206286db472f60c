//! A sentinel with the answers of a test.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub struct FakeSentinel {
    port: u16,
    says: Arc<Mutex<Says>>,
    _task: JoinSet<()>,
}

/// The answer of a sentinel about any service.
#[derive(Debug, Clone, Copy)]
pub enum Says {
    /// Nothing, ever.
    Nothing,
    Primary {
        port: u16,
        epoch: u64,
    },
}

impl FakeSentinel {
    pub async fn start(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let says = Arc::new(Mutex::new(says));
        let mut task = JoinSet::new();
        let shared = says.clone();
        task.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(answer(client, shared.clone()));
            }
        });
        Self {
            port,
            says,
            _task: task,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?protocol=resp2", self.port)
    }

    pub fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }
}

/// Answers each command of a client library. Commands are so short that each arrives whole.
async fn answer(mut client: TcpStream, says: Arc<Mutex<Says>>) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = client.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let mut replies = String::new();
        for command in text.split('*').skip(1) {
            let says = *says.lock().unwrap();
            match says {
                Says::Nothing => return std::future::pending().await,
                Says::Primary { port, epoch } if command.contains("SENTINEL") => {
                    let fields = ["ip", "127.0.0.1", "port", &port.to_string()];
                    let fields = fields.into_iter().map(str::to_owned);
                    let fields: Vec<String> = fields
                        .chain(["config-epoch".to_owned(), epoch.to_string()])
                        .collect();
                    replies += &format!("*{}\r\n", fields.len());
                    for field in fields {
                        replies += &format!("${}\r\n{field}\r\n", field.len());
                    }
                }
                Says::Primary { .. } => replies += "+OK\r\n",
            }
        }
        if client.write_all(replies.as_bytes()).await.is_err() {
            return;
        }
    }
}
