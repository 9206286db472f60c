//! A client over one kept-alive connection. It writes bytes and looks for the end of the response: on a machine with two cores
//! a load generator that does more takes the service's time.

use std::{
    io::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Ask;
use crate::closed_loop::Actor;

/// Accounts of one connection.
const ACCOUNTS: u64 = 64;

pub(super) struct Connection {
    stream: TcpStream,
    ask: Ask,
    number: usize,
    requests: u64,
    /// Makes payments of different slices different ones.
    slice: uuid::Uuid,
    written: Vec<u8>,
    read: Vec<u8>,
}

impl Connection {
    /// Opens the connection and sends one request, so that a payment that is replayed has been made.
    pub(super) async fn open(address: SocketAddr, ask: Ask, number: usize) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .expect("the service is up");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        let mut connection = Self {
            stream,
            ask,
            number,
            requests: 0,
            slice: uuid::Uuid::new_v4(),
            written: Vec::with_capacity(512),
            read: Vec::with_capacity(4096),
        };
        connection.request().await;
        connection
    }

    async fn request(&mut self) {
        self.requests += 1;
        self.write_request();
        let written = self.stream.write_all(&self.written).await;
        written.expect("the service reads");
        self.read.clear();
        while !is_complete(&self.read) {
            let read = self.stream.read_buf(&mut self.read).await;
            assert_ne!(
                read.expect("the service answers"),
                0,
                "the connection ended"
            );
        }
        assert!(
            self.read.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&self.read)
        );
    }

    fn write_request(&mut self) {
        let Self {
            ask,
            number,
            requests,
            slice,
            written,
            ..
        } = self;
        written.clear();
        let account = *requests % ACCOUNTS;
        let done = match ask {
            Ask::Account(path) => write!(
                written,
                "POST /{}/{number}-{account} HTTP/1.1\r\n",
                path.name()
            ),
            Ask::First(once) => write!(
                written,
                "POST /{}/{number} HTTP/1.1\r\nidempotency-key: \"{slice}-{number}-{requests}\"\r\n",
                once.name()
            ),
            Ask::Replay(once) => write!(
                written,
                "POST /{}/{number} HTTP/1.1\r\nidempotency-key: \"{slice}-{number}\"\r\n",
                once.name()
            ),
        };
        let rest = "host: localhost\r\nx-tenant-id: acme\r\ncontent-length: 1\r\n\r\n5";
        let done = done.and_then(|()| Write::write_all(written, rest.as_bytes()));
        done.expect("a vector takes all bytes");
    }
}

impl Actor for Connection {
    async fn act(&mut self) -> Duration {
        let begin = Instant::now();
        self.request().await;
        begin.elapsed()
    }
}

/// Whether a response with a `content-length` has been read to its end.
fn is_complete(response: &[u8]) -> bool {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else { return false };
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| {
        line.strip_prefix("content-length:")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    length.is_some_and(|length| response.len() >= end + 4 + length)
}
