//! The service: this program again, in a process of its own, so that its CPU time and allocations are not the load generator's.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Path as Segment, State},
    middleware::{from_fn, from_fn_with_state},
    routing::{get, post},
};
use tower::limit::ConcurrencyLimitLayer;
use tower_distributed_lock::{DistributedLockLayer, IdempotencyLayer, Locks, key};

use super::by_hand::{KeyedMutexes, keyed_mutex, lock_around, once};
use crate::{
    bench::runtime,
    meter::own_allocations,
    peers::{Client, HandWritten},
};

/// A way to the handler.
#[derive(Debug, Clone, Copy)]
pub(super) enum Path {
    Bare,
    /// The lock in the handler, its release awaited.
    HandWritten,
    /// The same, but the response does not wait for the release.
    Spawned,
    /// The same as a middleware.
    Middleware,
    Layer,
    /// One limit for all requests.
    Limit,
    KeyedMutex,
    LayerInMemory,
}

impl Path {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::HandWritten => "hand-written",
            Self::Spawned => "spawned",
            Self::Middleware => "middleware",
            Self::Layer => "layer",
            Self::Limit => "limit",
            Self::KeyedMutex => "keyed-mutex",
            Self::LayerInMemory => "in-memory",
        }
    }
}

/// The process of the service, which ends with the last clone.
#[derive(Clone)]
pub(super) struct Service(Rc<Process>);

struct Process {
    child: Child,
    address: SocketAddr,
}

impl Service {
    pub(super) fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(program)
            .args(["serve", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let out = child.stdout.take().expect("the output is piped");
        let mut address = String::new();
        let read = BufReader::new(out).read_line(&mut address);
        read.expect("the service says where it listens");
        Self(Rc::new(Process {
            child,
            address: address.trim().parse().expect("an address"),
        }))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.child.id()
    }

    pub(super) fn count_allocations(&self, is_on: bool) -> u64 {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.0.address)?;
            let request = format!(
                "GET /allocations/{is_on} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes())?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            Ok(response)
        };
        let response = ask().expect("the service answers");
        let number = response.lines().last().and_then(|line| line.parse().ok());
        number.unwrap_or_else(|| panic!("not a number: {response}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until the process that started it has ended.
pub fn serve(url: &str) {
    runtime(2).block_on(async {
        let app = app(url).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        println!("{}", listener.local_addr().expect("an address"));
        axum::serve(listener, app)
            .with_graceful_shutdown(parent_ended())
            .await
            .expect("the service runs");
    });
}

async fn app(url: &str) -> Router {
    let locks = Locks::redis(url).await.expect("the server is up");
    let by_hand = HandWritten::connect(url).await;
    let account = || key::name("account").param("id");
    let idempotent = IdempotencyLayer::new(locks.clone(), key::request().header("x-tenant-id"));
    let idempotent = idempotent.required().retain(Duration::from_secs(60));
    let layer = DistributedLockLayer::new(locks, account());
    let in_memory = DistributedLockLayer::new(Locks::in_memory(), account());
    let middleware = from_fn_with_state(by_hand.clone(), lock_around);
    let once_by_hand = from_fn_with_state(by_hand.clone(), once);
    let mutexes = KeyedMutexes::default();
    let keyed_mutex = from_fn(move |request, next| keyed_mutex(mutexes.clone(), request, next));
    Router::new()
        .route("/bare/{id}", post(work))
        .route("/hand-written/{id}", post(work_with_lock))
        .route("/spawned/{id}", post(work_with_spawned_release))
        .route("/middleware/{id}", post(work).route_layer(middleware))
        .route("/layer/{id}", post(work).route_layer(layer))
        .route("/once/{id}", post(work).route_layer(idempotent))
        .route("/once-by-hand/{id}", post(work).route_layer(once_by_hand))
        .route(
            "/limit/{id}",
            post(work).route_layer(ConcurrencyLimitLayer::new(64)),
        )
        .route("/keyed-mutex/{id}", post(work).route_layer(keyed_mutex))
        .route("/in-memory/{id}", post(work).route_layer(in_memory))
        .route("/allocations/{is_on}", get(count_allocations))
        .with_state(by_hand)
}

async fn work(Segment(id): Segment<String>, amount: String) -> String {
    format!("{amount} for {id}")
}

async fn work_with_lock(
    State(locks): State<HandWritten>,
    Segment(id): Segment<String>,
    amount: String,
) -> String {
    let held = locks.lock_text(&format!("account:{id}")).await;
    let done = work(Segment(id), amount).await;
    locks.release(held).await;
    done
}

async fn work_with_spawned_release(
    State(locks): State<HandWritten>,
    Segment(id): Segment<String>,
    amount: String,
) -> String {
    let held = locks.lock_text(&format!("account:{id}")).await;
    let done = work(Segment(id), amount).await;
    tokio::spawn(async move { locks.release(held).await });
    done
}

async fn count_allocations(Segment(is_on): Segment<bool>) -> String {
    own_allocations(is_on).to_string()
}

/// The parent's end closes the pipe.
async fn parent_ended() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    let _ = read.await;
}
