//! A payment that happens once, whatever crashes, on any store.
//!
//! The record of an [`IdempotencyLayer`](crate::IdempotencyLayer) and the data of the handler are
//! in two places, and no lock makes two writes one. Between them, a process can die:
//!
//! | what happens | with the layer alone, the retry |
//! |---|---|
//! | the process dies between COMMIT and the record | pays again, when the lease is over; with [`at_most_once`](crate::IdempotencyLayer::at_most_once), a person has to look |
//! | the answer to COMMIT is lost | gets what the policy says of the error: another run, or 409 |
//! | a process is stopped past its lease, and goes on | may pay beside the first |
//! | Redis restarts empty | pays again |
//!
//! The data itself knows what happened. So the handler stores its answer, under the
//! [`Claim`](crate::idempotency::Claim) of its request, in the transaction of its data; and the
//! layer asks for that answer before it runs a handler
//! ([`recall`](crate::IdempotencyLayer::recall)). In all four cases there is one payment, and the
//! retry gets its answer.
//!
//! Where the locks themselves are in the PostgreSQL of the data, one call does all of this: see
//! [the answer in the transaction](mod@crate::guide::postgres#the-answer-in-the-transaction).
//!
//! # The table
//!
//! ```sql
//! CREATE TABLE answers (
//!     scope text, key text, fingerprint bytea NOT NULL, status int NOT NULL, body bytea NOT NULL,
//!     at timestamptz NOT NULL DEFAULT now(),
//!     PRIMARY KEY (scope, key)
//! );
//! ```
//!
//! The primary key is what makes a second payment impossible. A transaction that inserts a key
//! which another one has inserted waits for that one to end, and fails if it commits, however it
//! got its claim. Lock, lease and record only save work: they keep duplicates from trying.
//!
//! # The handler
//!
//! With [tokio-postgres](https://docs.rs/tokio-postgres); the statements are the same for every
//! driver. `examples/exactly_once.rs` is the whole service.
//!
//! ```no_run
//! use axum::{extract::State, http::{Response, StatusCode}, routing::post, Router};
//! use tower_distributed_lock::{IdempotencyLayer, Locks, key, idempotency::{Claim, Keep, Recalled}};
//!
//! # #[derive(Clone)]
//! # struct Pool;
//! # impl Pool {
//! #     async fn get(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
//! #         let (client, connection) = tokio_postgres::connect("host=localhost", tokio_postgres::NoTls).await?;
//! #         tokio::spawn(connection);
//! #         Ok(client)
//! #     }
//! # }
//! # struct Failed;
//! # impl From<tokio_postgres::Error> for Failed { fn from(_: tokio_postgres::Error) -> Self { Self } }
//! # impl axum::response::IntoResponse for Failed {
//! #     fn into_response(self) -> axum::response::Response { StatusCode::SERVICE_UNAVAILABLE.into_response() }
//! # }
//! async fn pay(
//!     State(pool): State<Pool>,
//!     claim: Claim,
//!     amount: String,
//! ) -> Result<(StatusCode, String), Failed> {
//!     let mut client = pool.get().await?;
//!     let transaction = client.transaction().await?;
//!     let paid = "INSERT INTO payments (amount) VALUES ($1) RETURNING number";
//!     let number: i64 = transaction.query_one(paid, &[&amount]).await?.get(0);
//!     let body = format!("payment {number}");
//!     let answer = "INSERT INTO answers (scope, key, fingerprint, status, body) VALUES ($1, $2, $3, 201, $4)";
//!     let (scope, key) = (claim.scope(), claim.key());
//!     transaction.execute(answer, &[&scope, &key, &claim.fingerprint(), &body.as_bytes()]).await?;
//!     transaction.commit().await?; // may fail although it has committed
//!     Ok((StatusCode::CREATED, body))
//! }
//!
//! async fn answer(
//!     pool: &Pool,
//!     claim: &Claim,
//! ) -> Result<Option<Recalled>, Box<dyn std::error::Error + Send + Sync>> {
//!     let find = "SELECT fingerprint, status, body FROM answers WHERE scope = $1 AND key = $2";
//!     let rows = pool.get().await?.query(find, &[&claim.scope(), &claim.key()]).await?;
//!     let Some(row) = rows.first() else {
//!         return Ok(None);
//!     };
//!     let status = u16::try_from(row.get::<_, i32>(1))?;
//!     let answer = Response::builder().status(status).body(row.get::<_, Vec<u8>>(2))?;
//!     Ok(Some(Recalled::new(row.get::<_, &[u8]>(0), answer)))
//! }
//!
//! # fn app(locks: Locks, pool: Pool) -> Router {
//! let asked = pool.clone();
//! let idempotency = IdempotencyLayer::new(locks, key::request().header("x-tenant-id"))
//!     .required()
//!     .recall(move |claim| {
//!         let pool = asked.clone();
//!         async move { answer(&pool, &claim).await }
//!     })
//!     .keep(Keep::when_errors_do_nothing);
//! let app = Router::new()
//!     .route("/payments", post(pay))
//!     .route_layer(idempotency)
//!     .with_state(pool);
//! # app
//! # }
//! ```
//!
//! [`Keep::when_errors_do_nothing`](crate::idempotency::Keep::when_errors_do_nothing) frees the key
//! after every error, also after a COMMIT that may have committed. That is right here, and only
//! here: if it has, the next try finds the answer, and if not, there is nothing that a second run
//! could repeat. Without [`recall`](crate::IdempotencyLayer::recall), use
//! [`Keep::unless_rolled_back`](crate::idempotency::Keep::unless_rolled_back): a 5xx then leaves a
//! tombstone, and retries get 409, unless the handler says in the response that it has rolled back.
//!
//! # What it promises
//!
//! - Of all requests with one key in one scope, at most one transaction commits. This depends on
//!   the database alone: not on a clock, a lease or the store.
//! - A retry that is answered after a commit gets the answer of that commit. While another process
//!   may still hold the claim, it gets 409 with `Retry-After`; while the database is away, 503.
//! - A request with the key of another one gets 422, also after the store has forgotten the first:
//!   the answer was stored with its fingerprint. The fingerprint changes with
//!   [what the layer compares](crate::IdempotencyLayer::compare_headers).
//!
//! # What it does not promise
//!
//! - **Effects outside of the transaction.** A payment provider that the handler calls is called
//!   again by a second run: give it [`Claim::key`](crate::idempotency::Claim::key) as its own
//!   idempotency key.
//! - **Answers after the table was cleaned.** Delete rows after the time in which clients try
//!   again, not before: `DELETE FROM answers WHERE at < now() - interval '7 days'`.
//! - **A second run after a tombstone.** A request that left one (a layer further in has lost its
//!   lock, say) is answered by the table if it was committed, and with 409 if it was not: the
//!   layer cannot know that the handler acted nowhere else.
//!
//! # What it costs
//!
//! A primary-key lookup before each first request, one more row in its transaction, and nothing for
//! duplicates, which get the record in the store. What was recalled is recorded there, too.
//!
//! # Phases
//!
//! A request that calls a payment provider should not hold a transaction open meanwhile. So it is
//! cut into phases: each one ends with a COMMIT, and has at most one effect elsewhere, at its
//! beginning. What a phase has learned is stored by its own transaction, as a
//! [checkpoint](crate::idempotency::Claim). A process may die anywhere: the next run of the same
//! request, in any process, skips the phases that have committed, and repeats at most the one call
//! whose phase has not. For that call there is [`Claim::key`](crate::idempotency::Claim::key),
//! which the provider takes as its own idempotency key. This needs locks in the PostgreSQL of the
//! data.
//!
//! ```
//! # #[cfg(all(feature = "postgres", feature = "axum"))]
//! # mod phases {
//! use axum::http::Response;
//! use tower_distributed_lock::idempotency::Claim;
//!
//! # type BoxError = Box<dyn std::error::Error + Send + Sync>;
//! # async fn charge(_idempotency_key: &str) -> Result<String, BoxError> { Ok(String::new()) }
//! async fn pay(claim: &Claim, client: &mut tokio_postgres::Client) -> Result<Response<String>, BoxError> {
//!     let phase = client.transaction().await?;
//!     let reached = claim.reached()?.run(&phase).await?; // what an earlier run has committed
//!     phase.commit().await?;
//!
//!     let receipt = match reached {
//!         Some((point, data)) if point == "charged" => String::from_utf8(data)?,
//!         Some(_) | None => {
//!             let receipt = charge(claim.key()).await?; // no transaction is open
//!             let phase = client.transaction().await?;
//!             claim.checkpoint("charged", &receipt)?.run(&phase).await?;
//!             phase.commit().await?;
//!             receipt
//!         }
//!     };
//!
//!     let phase = client.transaction().await?;
//!     phase.execute("INSERT INTO payments (receipt) VALUES ($1)", &[&receipt]).await?;
//!     let answer = Response::new(receipt);
//!     claim.keep(&answer)?.run(&phase).await?; // the checkpoint ends here
//!     phase.commit().await?;
//!     Ok(answer)
//! }
//! # }
//! ```
//!
//! A request has one checkpoint, the last. It is fenced like the answer, lasts for as long as one,
//! and is given only to a request with the same fingerprint. After an error the layer must free the
//! key ([`Keep::when_errors_do_nothing`](crate::idempotency::Keep::when_errors_do_nothing)): a
//! record, also a tombstone, ends the checkpoint.
//!
//! # Outside of HTTP
//!
//! The work of [`run_once`](crate::Locks::run_once) looks for its result first, in the same
//! transaction that would insert it, and returns what it finds: the result is then kept as if it
//! had just been made.
