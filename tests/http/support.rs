//! A server on a free port, a client that goes away when it is told to, and a gate for handlers.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{BoxError, Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Service, ServiceExt};
use tower_distributed_lock::{
    LockKey, Locks,
    key::{self, RequestKey},
    store::{MemoryStore, Store},
};

/// Far more than anything here takes, also on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What most tests lock, and how that stands in the store for `/accounts/7…`.
pub(crate) fn account() -> RequestKey {
    key::name("account").param("id")
}

pub(crate) const ACCOUNT_7: &str = "account,param.id=7";

/// Locks whose lease is renewed often, so that a loss is noticed soon.
pub(crate) fn short_leases(store: &MemoryStore) -> Locks {
    let builder = Locks::builder(store.clone()).lease(Duration::from_millis(900));
    builder
        .renew_every(Duration::from_millis(30))
        .build()
        .unwrap()
}

/// Takes account 7's key away from its holder, as an operator or an eviction would.
pub(crate) async fn take_away(store: &MemoryStore) {
    let key = LockKey::new(ACCOUNT_7).unwrap();
    assert!(
        store.force_release(key).await.unwrap(),
        "nobody held the key"
    );
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// For what nothing tells, such as that a request stands in line.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let looking = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    within(what, looking).await;
}

pub(crate) async fn nothing_left(locks: &Locks) {
    eventually("nothing is held, waited for or under way", || {
        locks.stats() == tower_distributed_lock::Stats::default()
    })
    .await;
}

pub(crate) struct Server {
    addr: SocketAddr,
    _serving: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        Self::start_service(app).await
    }

    /// Serves any service over http, not only a router.
    pub(crate) async fn start_service<S, B>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let service = service.map_response(|response| response.map(Body::new));
        let service = axum::ServiceExt::<Request<Body>>::into_make_service(service);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, service).await.unwrap() });
        Self {
            addr,
            _serving: serving,
        }
    }

    /// A server that somebody else runs.
    pub(crate) fn at(addr: SocketAddr) -> Self {
        Self {
            addr,
            _serving: JoinSet::new(),
        }
    }

    /// An empty post on a connection of its own.
    pub(crate) fn post(&self, path: &str) -> impl Future<Output = Answer> + Send + use<> {
        self.send(Method::POST, path)
    }

    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let (addr, request) = (self.addr, Request::builder().method(method).uri(path));
        async move {
            let mut client = Client::connect(addr).await;
            client
                .whole(request.body(Full::default()).unwrap())
                .await
                .expect("a response")
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// A connection on which this was sent, and nothing read yet.
    pub(crate) async fn raw(&self, text: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        stream.write_all(text.as_ref()).await.unwrap();
        stream
    }
}

/// One connection. It is closed when this is dropped, whatever is under way.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Client {
    async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { drop(connection.await) });
        Self {
            sender,
            _connection: running,
        }
    }

    /// The response as soon as its head is there.
    pub(crate) async fn head(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let host = http::HeaderValue::from_static("localhost");
        request.headers_mut().insert(http::header::HOST, host);
        self.sender.ready().await?;
        within("a response", self.sender.send_request(request)).await
    }

    pub(crate) async fn whole(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, hyper::Error> {
        let (head, body) = self.head(request).await?.into_parts();
        let body = within("a response's body", body.collect()).await?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    pub(crate) async fn post(&mut self, path: &str) -> Result<Answer, hyper::Error> {
        self.whole(Request::post(path).body(Full::default()).unwrap())
            .await
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn reason(&self) -> String {
        let problem = self.json();
        let kind = problem["type"].as_str().unwrap();
        kind.rsplit('#').next().unwrap().to_owned()
    }
}

/// Everything that comes until the server closes the connection, or the whole response if it says where that ends.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    // A server that has not read all of a request resets the connection after its response.
    let _ = within("the end of the connection", stream.read_to_end(&mut read)).await;
    String::from_utf8(read).unwrap()
}

/// Where handlers wait until their test lets them go on.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Counts>);

struct Counts {
    arrived: Semaphore,
    open: Semaphore,
    inside: AtomicUsize,
    finished: AtomicUsize,
    dropped: AtomicUsize,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            arrived: Semaphore::new(0),
            open: Semaphore::new(0),
            inside: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }
    }
}

impl Gate {
    /// For a handler: says that it is here, and waits to be let through.
    pub(crate) async fn pass(&self) {
        let visit = Visit(self.0.clone());
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        self.0.arrived.add_permits(1);
        self.0.open.acquire().await.unwrap().forget();
        self.0.finished.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(visit);
    }

    /// Waits until one more handler is here.
    pub(crate) async fn arrival(&self) {
        within("a handler to be run", self.0.arrived.acquire())
            .await
            .unwrap()
            .forget();
    }

    /// Lets one handler through.
    pub(crate) fn open(&self) {
        self.0.open.add_permits(1);
    }

    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(Ordering::SeqCst)
    }

    pub(crate) fn finished(&self) -> usize {
        self.0.finished.load(Ordering::SeqCst)
    }

    /// How many were dropped while they waited.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }
}

struct Visit(Arc<Counts>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}
