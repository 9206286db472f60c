//! A server on a free port, and a client that can disconnect at any time.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{BoxError, Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Service, ServiceExt};
use tower_distributed_lock::{
    DistributedLockLayer, LockKey, Locks,
    key::{self, RequestKey},
    store::{FaultyStore, Store},
};

/// A time limit that no test reaches, not even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The key of most tests. [`ACCOUNT_7`] is the text of that key for `/accounts/7`.
pub(crate) fn account() -> RequestKey {
    key::name("account").param("id")
}

pub(crate) const ACCOUNT_7: &str = "account,id=7";

/// The layer of most tests, with a wait limit for a busy machine.
pub(crate) fn lock(locks: &Locks) -> DistributedLockLayer {
    DistributedLockLayer::new(locks.clone(), account()).wait(PATIENCE)
}

/// Locks with frequent renewals, so that a loss is noticed soon.
pub(crate) fn watchful(store: &FaultyStore) -> Locks {
    let builder = Locks::builder(store.clone()).renew_every(Duration::from_millis(30));
    builder.build().unwrap()
}

/// Takes the key of account 7 away from the holder, as an operator or an eviction would.
pub(crate) async fn take_away(store: &FaultyStore) {
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

/// Polls for a condition that no event announces, such as a waiting request.
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
        // Each layer is applied once and not for each request, as in `axum::serve`.
        Self::start_service(app.with_state::<()>(())).await
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

    /// A server that is already running.
    pub(crate) fn at(addr: SocketAddr) -> Self {
        Self {
            addr,
            _serving: JoinSet::new(),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends an empty post on a new connection.
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

    /// Sends `text` on a new connection, and reads nothing.
    pub(crate) async fn raw(&self, text: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        stream.write_all(text.as_ref()).await.unwrap();
        stream
    }
}

/// One connection. Dropping the client closes the connection.
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

    /// Sends a request, and returns the response as soon as the head has arrived.
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

/// Reads all bytes until the server closes the connection, or until the declared end of the
/// response.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    // A server that has not read the whole request resets the connection after the response.
    let _ = within("the end of the connection", stream.read_to_end(&mut read)).await;
    String::from_utf8(read).unwrap()
}
