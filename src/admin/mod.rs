//! A page for a browser that shows the locks. **The page needs the service's own authentication:
//! keys can be personal data.**
//!
//! The page shows the keys that this instance holds and the requests that wait for them, the keys
//! of the whole fleet with their holders and queues, the details of each key, and plots of the last
//! minutes. [`router`] only reads.
//!
//! ```
//! use axum::{Router, extract::Request, http::StatusCode, middleware::{self, Next}, response::Response};
//! use tower_distributed_lock::{Locks, admin};
//!
//! fn routes(locks: Locks) -> Router {
//!     let page = admin::router(locks).layer(middleware::from_fn(operators_only));
//!     Router::new().nest("/locks", page)
//! }
//!
//! /// Set by the authentication of the service.
//! #[derive(Clone)]
//! struct Operator;
//!
//! async fn operators_only(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     match request.extensions().get::<Operator>() {
//!         Some(_) => Ok(next.run(request).await),
//!         None => Err(StatusCode::FORBIDDEN),
//!     }
//! }
//! # routes(Locks::in_memory());
//! ```
//!
//! [`Admin::allow_force_release`] adds a button that takes a key away from its holder, and
//! [`Admin::allow_settle`] one that writes the outcome of a request whose process has died.
//!
//! # Where the page can be
//!
//! Under any path, by [`nest`](axum::Router::nest) or [`nest_service`](axum::Router::nest_service),
//! which also answers at `/locks/`. The addresses in the page are relative. A proxy in front may
//! change the path, but not its last segment (`locks`).
//!
//! Everything is embedded: there is no build step, and the browser asks no other host. The page
//! works under a `Content-Security-Policy` as strict as the one that the router itself sends, which
//! allows scripts, styles and requests of the page's own origin only.
//!
//! Behind a load balancer, the requests of one page reach several instances. The page keeps them
//! apart, and has a list to choose an instance from.
//!
//! # What the page costs
//!
//! While the page is open and visible, it asks for `api/instance` each second, which sends a
//! [`ping`](crate::Locks::ping) to the store. While the fleet is shown, it asks for `api/instance`
//! and `api/fleet` every 2 seconds. Open details of a key add `api/key`. A page of the fleet's keys
//! takes one [`list`](crate::Locks::list) or a few, and one [`inspect`](crate::Locks::inspect) for
//! each of up to 50 keys. A hidden page sends nothing.
//!
//! # For scripts
//!
//! The page gets its data from the router by POST requests with a form, so that no access log has
//! keys in its URLs. Each request needs the header `x-locks-admin`, which browsers send to no other
//! origin unasked. The JSON may change with any version.
//!
//! ```sh
//! curl -H 'x-locks-admin: 1' -d 'prefix=orders/' https://example.com/locks/api/fleet
//! ```
//!
//! | path | form fields | answer |
//! |---|---|---|
//! | `api/instance` | `prefix`, `offset`, `sort` | the load of this instance, and 50 of its keys, those with the longest lines first; with `sort=held`, those that are held for longest |
//! | `api/fleet` | `prefix`, `cursor`, `records` | about 50 keys of the fleet, and the cursor of the next page; records of idempotent requests only with `records=1` |
//! | `api/key` | `key` | the holders of a key, its queue, its record and its token |
//! | `api/force_release` | `key`, `owner`, `record` | whether there was a lease or a record; 403 unless [allowed](Admin::allow_force_release), 409 if an `owner` is named that does not hold the key, or if `record` is not empty and the key has no record: the store compares in the same step |
//! | `api/settle` | `key`, `owner`, `status`, `content_type`, `body`, `hours` | `settled`, if the answer is written, for so many hours; 403 unless [allowed](Admin::allow_settle), 409 if the key is not that of a request whose process has died, or if an `owner` is named that does not hold the key: the store compares in the same step |

mod answers;
mod form;
mod handlers;
mod labels;
mod origin;
mod page;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::map_response,
    routing::{get, post},
};

use self::labels::Labels;
use crate::{Locks, store::Instance};

/// The longest form. A cursor can be much longer than a key.
const LONGEST_FORM: usize = 256 * 1024;

/// Returns the page as a router that only reads: `Admin::new(locks).router()`.
///
/// **Put the service's own authentication in front of it**: keys can be personal data. See the
/// [module](self) for an example.
pub fn router<S>(locks: Locks) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Admin::new(locks).router()
}

/// Settings of the page.
///
/// ```
/// use tower_distributed_lock::{Locks, admin::Admin};
///
/// # let locks = Locks::in_memory();
/// let page: axum::Router = Admin::new(locks).allow_force_release().router();
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `router` and nest the result"]
pub struct Admin {
    locks: Locks,
    force_release: bool,
    settle: bool,
    labels: Arc<Labels>,
}

impl Admin {
    /// Creates a page that only reads.
    pub fn new(locks: Locks) -> Self {
        Self {
            locks,
            force_release: false,
            settle: false,
            labels: Arc::default(),
        }
    }

    /// Adds a button that takes a key away from its holders, or removes the record of an idempotent
    /// request ([`Locks::force_release`]). Default: off.
    ///
    /// The button asks for a confirmation. Requests from other sites are refused: the router checks
    /// `Sec-Fetch-Site` or `Origin`, and requires a header that a form of another site cannot
    /// send.
    pub fn allow_force_release(mut self) -> Self {
        self.force_release = true;
        self
    }

    /// Adds a form that writes the answer of a request which runs at most once, and whose process
    /// has died ([`Locks::settle`]). Default: off.
    ///
    /// For operators who have found out how the request ended: its repetitions get the answer.
    /// Requests from other sites are refused, as for a [forced release](Self::allow_force_release).
    pub fn allow_settle(mut self) -> Self {
        self.settle = true;
        self
    }

    /// The label of an instance, if it is this one, or was seen as a holder.
    fn label_of(&self, instance: Instance) -> Option<Arc<str>> {
        if instance == self.locks.instance() {
            return self.locks.label();
        }
        self.labels.of(instance)
    }

    /// Returns the page as a router, to be nested into the router of the service.
    ///
    /// **Put the service's own authentication in front of it**: keys can be personal data.
    pub fn router<S>(self) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let files = page::FILES.iter().fold(Router::new(), |router, file| {
            router.route(file.path, get(async || file.response()))
        });
        files
            .route("/", get(page::html))
            .route("/api/instance", post(handlers::instance))
            .route("/api/fleet", post(handlers::fleet))
            .route("/api/key", post(handlers::key))
            .route("/api/force_release", post(handlers::force_release))
            .route("/api/settle", post(handlers::settle))
            .layer(DefaultBodyLimit::max(LONGEST_FORM))
            .layer(map_response(page::with_headers))
            .with_state(self)
    }
}
