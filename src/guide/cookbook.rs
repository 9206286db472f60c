//! Recipes: services, keys, fencing, consumers, jobs, shutdown and tests.
//!
//! # A full axum service
//!
//! The layers of a service have an order, from the outside in:
//!
//! | layer | why there |
//! |---|---|
//! | trace | sees every request and every answer, refusals included |
//! | compression | outside of idempotency: kept answers are stored uncompressed, and compressed for whoever asks again |
//! | CORS | outside of authentication: a preflight request has no credentials |
//! | timeout | outside of idempotency: ends the wait of the client, not the handler, which is a task of its own. Around a lock alone: ends both |
//! | authentication | before everything that uses the tenant |
//! | [`ReadBodyLayer`](crate::ReadBodyLayer) | before the wait: a slow upload holds no key, and its client's disconnect is noticed |
//! | [`IdempotencyLayer`](crate::IdempotencyLayer) | outside of the lock: an answer that is given again takes no lock |
//! | [`DistributedLockLayer`](crate::DistributedLockLayer) | around the handler |
//! | concurrency limit | inside of the lock: a request that waits for its turn holds no permit |
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{
//!     Router,
//!     extract::{Path, Request},
//!     http::{HeaderName, HeaderValue, Method, StatusCode, header::AUTHORIZATION},
//!     middleware::{Next, from_fn},
//!     response::Response,
//!     routing::post,
//! };
//! use tower::ServiceBuilder;
//! use tower_distributed_lock::{
//!     DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, ReadBodyLayer, key,
//! };
//! use tower_http::{
//!     compression::CompressionLayer, cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer,
//! };
//!
//! /// The caller, as the authentication knows it.
//! #[derive(Clone)]
//! struct User {
//!     tenant: String,
//! }
//!
//! async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let header = request.headers().get(AUTHORIZATION);
//!     let bearer = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
//!     let user = bearer.and_then(find_user).ok_or(StatusCode::UNAUTHORIZED)?;
//!     request.extensions_mut().insert(user);
//!     Ok(next.run(request).await)
//! }
//! # fn find_user(token: &str) -> Option<User> {
//! #     (token == "secret").then(|| User { tenant: "acme".into() })
//! # }
//!
//! async fn pay(Path(id): Path<u64>, guard: LockGuard, amount: String) -> String {
//!     format!("paid {amount} from account {id}, with token {}", guard.token())
//! }
//!
//! fn app(locks: Locks) -> Router {
//!     let tenant = key::extension_with("tenant", |user: &User| user.tenant.clone());
//!     let account = key::name("account")
//!         .extension_with("tenant", |user: &User| user.tenant.clone())
//!         .param_as::<u64>("id");
//!
//!     let cors = CorsLayer::new()
//!         .allow_origin(HeaderValue::from_static("https://shop.example"))
//!         .allow_methods([Method::POST])
//!         .allow_headers([AUTHORIZATION, HeaderName::from_static("idempotency-key")])
//!         .expose_headers([HeaderName::from_static("idempotent-replayed")]);
//!
//!     Router::new()
//!         .route("/accounts/{id}/payments", post(pay))
//!         // For requests that have a route.
//!         .route_layer(
//!             ServiceBuilder::new()
//!                 .layer(from_fn(authenticate))
//!                 .layer(ReadBodyLayer::new(64 * 1024))
//!                 .layer(IdempotencyLayer::new(locks.clone(), tenant).required())
//!                 .layer(DistributedLockLayer::new(locks, account)),
//!         )
//!         // For all requests.
//!         .layer(
//!             ServiceBuilder::new()
//!                 .layer(TraceLayer::new_for_http())
//!                 .layer(CompressionLayer::new())
//!                 .layer(cors)
//!                 .layer(TimeoutLayer::with_status_code(
//!                     StatusCode::GATEWAY_TIMEOUT,
//!                     Duration::from_secs(20),
//!                 )),
//!         )
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     use tower::ServiceExt;
//! #     let app = app(Locks::in_memory());
//! #     let request = |token: &str| {
//! #         Request::post("/accounts/7/payments")
//! #             .header("authorization", format!("Bearer {token}"))
//! #             .header("idempotency-key", "order-17")
//! #             .body(axum::body::Body::from("5"))
//! #             .unwrap()
//! #     };
//! #     let first = app.clone().oneshot(request("secret")).await.unwrap();
//! #     assert_eq!(first.status(), StatusCode::OK);
//! #     assert!(!first.headers().contains_key("idempotent-replayed"));
//! #     let again = app.clone().oneshot(request("secret")).await.unwrap();
//! #     assert_eq!(again.headers()["idempotent-replayed"], "true");
//! #     let unknown = app.oneshot(request("wrong")).await.unwrap();
//! #     assert_eq!(unknown.status(), StatusCode::UNAUTHORIZED);
//! # }
//! ```
//!
//! # The tenant comes from the authentication
//!
//! Whoever can choose the tenant of a key can wait for, block and (with idempotency) read the answers of every tenant. A header such as
//! `x-tenant-id` can be sent by anyone who reaches the service. [`key::extension`](crate::key::extension()) and
//! [`key::extension_with`](crate::key::extension_with()) read what an authentication layer has stored in the request, as above. A request without
//! that extension is refused with 500, because the layer that sets it is missing. A header is a sound source only behind a gateway that
//! removes the client's own.
//!
//! # Two accounts
//!
//! Two locks that are taken one after another can wait for each other. [`key::all_of`](crate::key::all_of()) takes both in one fixed order,
//! whatever the order in the request:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_distributed_lock::{DistributedLockLayer, Locks, key, lock::LockGuards};
//!
//! async fn transfer(guards: LockGuards) -> String {
//!     let tokens = guards.all().into_iter().map(|guard| guard.token());
//!     format!("{:?}", tokens.collect::<Vec<_>>()) // one for each account, in the order of the keys
//! }
//!
//! # fn routes(locks: Locks) -> Router {
//! let account = |param| key::name("account").param_as::<u64>(param).labelled("id");
//! let both = key::all_of([account("from"), account("to")]);
//! Router::new()
//!     .route("/transfers/{from}/{to}", post(transfer))
//!     .route_layer(DistributedLockLayer::new(locks, both))
//! # }
//! ```
//!
//! A job uses the same keys without a request:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use tower_distributed_lock::{Locks, key};
//! # let locks = Locks::in_memory();
//! let account = key::name("account").param_as::<u64>("id");
//! let guards = locks.lock_all([account.with("id", 8), account.with("id", 7)]).await?;
//! assert_eq!(guards[0].key().as_str(), "account,id=8");
//! # Ok(())
//! # }
//! ```
//!
//! # A key from the body
//!
//! [`ReadBodyLayer`](crate::ReadBodyLayer) leaves the body in the request's extensions as [`WholeBody`](crate::read_body::WholeBody):
//!
//! ```
//! use axum::{Json, Router, routing::post};
//! use serde::Deserialize;
//! use tower::ServiceBuilder;
//! use tower_distributed_lock::{
//!     DistributedLockLayer, Locks, ReadBodyLayer, key, read_body::WholeBody,
//! };
//!
//! #[derive(Deserialize)]
//! struct Payment {
//!     account: u64,
//! }
//!
//! # fn routes(locks: Locks) -> Router {
//! let account = key::name("account").from_fn("id", |request| {
//!     let WholeBody(body) = request.extensions.get()?;
//!     let payment: Payment = serde_json::from_slice(body).ok()?; // else: 400, no key
//!     Some(payment.account.to_string().into())
//! });
//! Router::new()
//!     .route("/payments", post(async |Json(payment): Json<Payment>| payment.account.to_string()))
//!     .route_layer(
//!         ServiceBuilder::new()
//!             .layer(ReadBodyLayer::new(64 * 1024))
//!             .layer(DistributedLockLayer::new(locks, account)),
//!     )
//! # }
//! ```
//!
//! # Fencing in PostgreSQL and SQLite
//!
//! One column and one condition. These statements are the same in PostgreSQL and in SQLite 3.35 or later, and were run on PostgreSQL 15 and
//! SQLite 3.40. `$1` is the token, as a signed 64-bit number.
//!
//! ```sql
//! ALTER TABLE accounts ADD COLUMN token BIGINT NOT NULL DEFAULT 0;
//!
//! -- Read, and show the token. No row: a later turn was here.
//! UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance;
//!
//! -- Write. No row: a later turn was here, and nothing was written.
//! UPDATE accounts SET balance = $3, token = $1 WHERE id = $2 AND token <= $1 RETURNING balance;
//! ```
//!
//! An update that does not depend on an earlier read (`balance = balance + 20`) needs the second statement only.
//!
//! Where a turn writes to several tables, or creates rows, keep the tokens in a table of their own. Run this statement first, in the same
//! transaction as the writes, and roll back if it returns no row:
//!
//! ```sql
//! CREATE TABLE fences (key TEXT PRIMARY KEY, token BIGINT NOT NULL);
//!
//! INSERT INTO fences (key, token) VALUES ($2, $1)
//! ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token
//! RETURNING token;
//! ```
//!
//! The statement locks its row until the transaction ends. A stale transaction that comes second waits, compares, and gets no row.
//!
//! # Webhooks and queue consumers
//!
//! Senders of webhooks and message brokers deliver a message again until it is acknowledged. [`Locks::run_once`](crate::Locks::run_once) runs the
//! work once for each message id, and gives the result to every later delivery:
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed_lock::{LockGuard, Locks, idempotency::RunOnceError};
//! # #[derive(Debug)] struct Failed;
//! # async fn book(_: &str, _: u64) -> Result<String, Failed> { Ok("booked".into()) }
//! # fn acknowledge() {}
//!
//! const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
//!
//! /// Called for each delivery. Returns whether to acknowledge the message.
//! async fn consume(locks: &Locks, id: &str, body: &str) -> bool {
//!     let work = async |guard: LockGuard| book(body, guard.token()).await;
//!     match locks.run_once(format!("invoice/{id}"), WEEK, work).await {
//!         Ok(_) => true, // now, or at an earlier delivery
//!         Err(RunOnceError::Work(_)) => false, // nothing is kept: the next delivery tries again
//!         Err(RunOnceError::Lock(_)) => false, // another consumer works on it, or the store is away
//!         Err(_) => true, // done, and the result cannot be read: a retry would not help
//!     }
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     let locks = Locks::in_memory();
//! #     assert!(consume(&locks, "17", "").await && consume(&locks, "17", "").await);
//! # }
//! ```
//!
//! Keep results for longer than the sender retries. For webhooks over HTTP, [`key_header`](crate::IdempotencyLayer::key_header) takes the
//! sender's message id in the place of `Idempotency-Key`, such as `webhook-id` or `x-github-delivery`.
//!
//! # A job that runs once in a fleet
//!
//! Every replica has the same schedule. The name of the job's run is the key, so the first replica runs the job and the others get its result:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # use tower_distributed_lock::{LockGuard, Locks};
//! # let (locks, today) = (Locks::in_memory(), "2026-11-16");
//! # async fn send_reports(_: u64) -> Result<(), std::io::Error> { Ok(()) }
//! let two_days = Duration::from_secs(48 * 3600);
//! let work = async |guard: LockGuard| send_reports(guard.token()).await;
//! let run = locks.run_once(format!("job/reports/{today}"), two_days, work).await?;
//! if !run.replayed {
//!     println!("sent by this replica");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A run that fails is not kept, and the next replica that asks tries again. If the job must only not *overlap* with itself, use
//! [`try_lock`](crate::Locks::try_lock) and skip the run on `None`.
//!
//! # Leader-like work
//!
//! One replica works, the others stand by. [`LockGuard::run`](crate::LockGuard::run) ends the work when the lease is lost:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use std::time::Duration;
//! # use tower_distributed_lock::{Error, ErrorKind, Locks, store::MemoryStore};
//! # async fn lead(_token: u64) { std::future::pending().await }
//! async fn campaign(locks: Locks) -> Result<(), Error> {
//!     loop {
//!         let guard = locks.lock("leader/outbox").await?;
//!         match guard.run(lead(guard.token())).await {
//!             Err(error) if error.kind() == ErrorKind::Lost => continue, // stand by again
//!             other => return other,
//!         }
//!     }
//! }
//!
//! let locks = Locks::builder(MemoryStore::new())
//!     .wait_forever() // a standby waits for as long as it takes
//!     .max_hold(Duration::from_secs(3600)) // then the next in line leads
//!     .build()?;
//! # let leading = tokio::spawn(campaign(locks.clone()));
//! # while locks.stats().leases == 0 { tokio::task::yield_now().await; }
//! # locks.close(Duration::ZERO).await;
//! # assert_eq!(leading.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
//! # Ok(())
//! # }
//! ```
//!
//! - [`max_hold`](crate::LocksBuilder::max_hold) is 10 minutes by default: a leader is replaced after that time, with
//!   [`Loss::MaxHold`](crate::Loss::MaxHold). Set a longer time, or `Duration::MAX` for no limit. A limit is worth having: a leader that hangs
//!   keeps renewing its lease.
//! - Use a [`Locks`](crate::Locks) of its own for such work, so that request handlers keep their short limits.
//! - For a moment, two replicas can take themselves for the leader. The token decides between them.
//!
//! # tonic
//!
//! Both layers take tonic's bodies; idempotency needs [`any_body`](crate::IdempotencyLayer::any_body). Refusals become gRPC statuses. An interceptor
//! sets the extension that the keys use:
//!
//! ```
//! use tonic::{Request, Status, service::InterceptorLayer, transport::Server};
//! use tower::ServiceBuilder;
//! use tower_distributed_lock::{DistributedLockLayer, IdempotencyLayer, Locks, key};
//!
//! #[derive(Clone)]
//! struct User { tenant: u64 }
//!
//! fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
//!     let user = request.metadata().get("authorization").map(|_| User { tenant: 1 });
//!     let user = user.ok_or_else(|| Status::unauthenticated("no credentials"))?;
//!     request.extensions_mut().insert(user);
//!     Ok(request)
//! }
//!
//! let locks = Locks::in_memory();
//! let tenant = key::extension_with("tenant", |user: &User| user.tenant);
//! let account = key::name("account")
//!     .extension_with("tenant", |user: &User| user.tenant)
//!     .header("x-account-id");
//! let layers = ServiceBuilder::new()
//!     .layer(InterceptorLayer::new(authenticate))
//!     .layer(IdempotencyLayer::new(locks.clone(), tenant).any_body())
//!     .layer(DistributedLockLayer::new(locks, account));
//! let server = Server::builder().layer(layers); // then: `.add_service(..)`
//! ```
//!
//! `cargo run --example grpc` is a complete service.
//!
//! # hyper
//!
//! Any `tower::Service` over `http` types takes the layer. Handlers find their guard in the request's extensions:
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::{body::Incoming, server::conn::http1};
//! use hyper_util::{rt::TokioIo, service::TowerToHyperService};
//! use tower::ServiceBuilder;
//! use tower_distributed_lock::{DistributedLockLayer, LockGuard, Locks, key, lock::NoGuard};
//!
//! async fn handle(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, NoGuard> {
//!     let guard = LockGuard::from_extensions(request.extensions())?;
//!     Ok(Response::new(Full::from(format!("token {}", guard.token()))))
//! }
//!
//! async fn serve(stream: tokio::net::TcpStream, locks: Locks) -> Result<(), hyper::Error> {
//!     let service = ServiceBuilder::new()
//!         .layer(DistributedLockLayer::new(locks, key::name("order").path()).all_methods())
//!         .service_fn(handle);
//!     let service = TowerToHyperService::new(service);
//!     http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
//! }
//! ```
//!
//! # Graceful shutdown
//!
//! On a signal, the server stops accepting, requests that wait for a turn are refused with 503 and `Retry-After`, and handlers finish:
//!
//! ```no_run
//! # use axum::Router;
//! # use std::time::Duration;
//! # use tower_distributed_lock::Locks;
//! async fn serve(app: Router, locks: Locks) -> std::io::Result<()> {
//!     let grace = Duration::from_secs(10);
//!     let closing = locks.clone();
//!     let signal = async move {
//!         let _ = tokio::signal::ctrl_c().await;
//!         // A task: the server stops accepting when this future ends.
//!         tokio::spawn(async move { closing.close(grace).await });
//!     };
//!     let listener = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
//!     axum::serve(listener, app).with_graceful_shutdown(signal).await?;
//!     locks.close(grace).await; // returns when nothing is held or owed any more
//!     Ok(())
//! }
//! ```
//!
//! Handlers that outlast the grace lose their turn with [`Loss::Closed`](crate::Loss::Closed). [`Locks::close`](crate::Locks::close) documents its
//! upper bound; keep it below the time after which the platform kills the process (30 s in Kubernetes by default).
//!
//! # Testing the loss of a lease
//!
//! [`MemoryStore`](crate::store::MemoryStore) plays a server that fails, hangs or forgets, and uses tokio's clock, which a test can pause. A test
//! of the loss then takes no time and has no race:
//!
//! ```
//! # use tower_distributed_lock::{Locks, Loss, store::{Fault, MemoryStore}};
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] // `#[tokio::test(start_paused = true)]`
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! let store = MemoryStore::new();
//! let locks = Locks::builder(store.clone()).lease(Duration::from_secs(30)).build()?;
//!
//! // The store is away until the lease has expired.
//! let guard = locks.lock("orders/42").await?;
//! store.set_fault(Some(Fault::Unreachable));
//! assert_eq!(guard.lost().await, Loss::Expired);
//! store.set_fault(None);
//!
//! // The store restarts without its data.
//! let guard = locks.lock("orders/42").await?;
//! store.restart();
//! assert_eq!(guard.lost().await, Loss::NotOurs);
//! # Ok(())
//! # }
//! ```
//!
//! In a test, this is a function with `#[tokio::test(start_paused = true)]`. Two [`Locks`](crate::Locks) on clones of one store behave like two
//! processes. For a handler behind the layer, send requests with `tower::ServiceExt::oneshot`, and expect 409 `lease-lost` after the fault.
