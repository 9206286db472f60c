//! How do I build it into a service: axum, tonic, hyper?
//!
//! # A full axum service
//!
//! The layers of a service have an order, from the outside in:
//!
//! | layer | why there |
//! |---|---|
//! | trace | sees every request and every answer, refusals included |
//! | compression | outside of idempotency: kept answers are stored uncompressed, and each client gets the encoding that it accepts |
//! | CORS | outside of authentication: a preflight request has no credentials. Outside of [single flights](crate::SingleFlightLayer): copies have no headers for one origin |
//! | timeout | outside of idempotency: ends the wait of the client, not the handler, which is a task of its own. Around a lock alone: ends both |
//! | authentication | before everything that uses the tenant |
//! | [`ReadBodyLayer`](crate::ReadBodyLayer) | before the wait: a slow upload holds no key, and its client's disconnect is noticed |
//! | [`IdempotencyLayer`](crate::IdempotencyLayer) | outside of the lock: an answer that is given again takes no lock |
//! | [`DistributedLockLayer`](crate::DistributedLockLayer) | around the handler |
//! | concurrency limit | inside of the lock: a request that waits for its turn holds no permit |
//!
//! ```toml
//! axum = "0.8"
//! tower = "0.5"
//! tower-distributed-lock = "0.1"
//! tower-http = { version = "0.7", features = ["compression-gzip", "cors", "timeout", "trace"] }
//! ```
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
//!     let tenant = key::request().extension_with("tenant", |user: &User| user.tenant.clone());
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
//! Unless told otherwise:
//!
//! - GET, HEAD, OPTIONS and TRACE are not locked, and a handler that takes a `LockGuard` answers
//!   500 to them, with the reason in the log.
//!   [`all_methods`](crate::DistributedLockLayer::all_methods) and
//!   [`shared_when_safe`](crate::DistributedLockLayer::shared_when_safe) lock them, too; a handler
//!   for both takes an `Option<LockGuard>`.
//! - A request waits for up to 5 s, and is then refused with [423](crate::rejection#held).
//! - A request without an `Idempotency-Key` passes, unless the layer has
//!   [`required`](crate::IdempotencyLayer::required) it.
//! - Of the answers to requests with a key, 2xx, 3xx, 402 and all 5xx but 503 are kept. Other 4xx
//!   and 503 say that nothing was done: the next request with the key runs the handler
//!   ([`Keep`](crate::idempotency::Keep) has other policies).
//! - A client that goes away ends its handler; behind an idempotency layer, the handler goes on.
//!
//! # The tenant comes from the authentication
//!
//! A client that can choose the tenant of a key can block the requests of every tenant and, with
//! idempotency, read their answers. A header such as `x-tenant-id` can be sent by anyone who
//! reaches the service. [`extension`](crate::key::RequestKey::extension) and
//! [`extension_with`](crate::key::RequestKey::extension_with) read what an authentication layer has
//! stored in the request, as above. A request without that extension is refused with 500, because
//! the layer that sets it is missing. A header is a sound source only behind a gateway that removes
//! the client's own.
//!
//! # Two accounts
//!
//! Two locks that are taken one after another can wait for each other.
//! [`key::all_of`](crate::key::all_of()) takes both or none, whatever the order in the request:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_distributed_lock::{DistributedLockLayer, Locks, key, lock::AllGuards};
//!
//! async fn transfer(guards: AllGuards) -> String {
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
//!
//! let order = locks.lock(key::name("order").value("id", "a,7")).await?; // encodes any text
//! assert_eq!(order.key().as_str(), "order,id=a%2C7");
//! # Ok(())
//! # }
//! ```
//!
//! # A key from the body
//!
//! [`ReadBodyLayer`](crate::ReadBodyLayer) leaves the body in the request's extensions as
//! [`WholeBody`](crate::read_body::WholeBody), and so does an
//! [`IdempotencyLayer`](crate::IdempotencyLayer) for requests with a key. If neither is further
//! out, requests are refused with 500, and the log names the layer to add:
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
//! # Refusals in your own form
//!
//! A refusal is an `application/problem+json`, or a gRPC status where the request is one of gRPC. A
//! [`RejectionLayer`](crate::rejection::RejectionLayer) further out renders the refusals of all
//! layers and handlers as the rest of the service answers, in one place:
//!
//! ```
//! use axum::{Router, http::Response};
//! use tower_distributed_lock::rejection::{Rejection, RejectionLayer};
//!
//! # fn routes(app: Router) -> Router {
//! let refusals = RejectionLayer::new(
//!     |request| request.uri.path().to_owned(), // what the closure below needs of the request
//!     |rejection: &Rejection, path: &String| {
//!         let mut response = Response::new(format!("{path}: {}", rejection.reason().code()));
//!         *response.status_mut() = rejection.status();
//!         response
//!     },
//! );
//! app.layer(refusals)
//! # }
//! ```
//!
//! # tonic
//!
//! Both layers take tonic's bodies; idempotency needs
//! [`any_body`](crate::IdempotencyLayer::any_body). Refusals become gRPC statuses. Layers of
//! `Server::builder()` are around **all** services, also around health checks and reflection, which
//! have no key. Put them around the one service instead, with tonic's `named_layer`:
//!
//! ```
//! # mod payments {
//! #     #![allow(missing_docs, unreachable_pub)]
//! #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/grpc/payments.rs"));
//! # }
//! # use payments::{PayReply, PayRequest, payments_server::{Payments, PaymentsServer}};
//! use tonic::{
//!     Request, Response, Status,
//!     service::{InterceptorLayer, LayerExt},
//!     transport::{Server, server::Router},
//! };
//! use tower::ServiceBuilder;
//! use tower_distributed_lock::{DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, key};
//!
//! #[derive(Clone)]
//! struct User { tenant: u64 }
//!
//! /// Sets the extension that the keys use.
//! fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
//!     let user = request.metadata().get("authorization").map(|_| User { tenant: 1 });
//!     let user = user.ok_or_else(|| Status::unauthenticated("no credentials"))?;
//!     request.extensions_mut().insert(user);
//!     Ok(request)
//! }
//!
//! struct Book;
//!
//! #[tonic::async_trait]
//! impl Payments for Book {
//!     async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
//!         let guard = LockGuard::from_extensions(request.extensions());
//!         let guard = guard.map_err(|error| Status::internal(error.to_string()))?;
//!         Ok(Response::new(PayReply { number: 1, token: guard.token() }))
//!     }
//! }
//!
//! fn server(locks: Locks) -> Router {
//!     let tenant = key::request().extension_with("tenant", |user: &User| user.tenant);
//!     // The message names the account as well: the handler checks that both agree.
//!     let account = key::name("account")
//!         .extension_with("tenant", |user: &User| user.tenant)
//!         .header("x-account-id");
//!     let layers = ServiceBuilder::new()
//!         .layer(InterceptorLayer::new(authenticate))
//!         .layer(IdempotencyLayer::new(locks.clone(), tenant).any_body())
//!         .layer(DistributedLockLayer::new(locks, account));
//!     // Then `.add_service(health)`, without the layers.
//!     Server::builder().add_service(layers.named_layer(PaymentsServer::new(Book)))
//! }
//! # let _ = server(Locks::in_memory());
//! ```
//!
//! `cargo run --example grpc` is a complete service.
//!
//! # hyper
//!
//! Any `tower::Service` over `http` types takes the layer. Handlers find their guard in the
//! request's extensions. With an [`IdempotencyLayer`](crate::IdempotencyLayer) around them, which
//! needs [`any_body`](crate::IdempotencyLayer::any_body) here, they get a
//! [`gate::Body<Incoming>`](crate::gate::Body) in the place of `Incoming`:
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
