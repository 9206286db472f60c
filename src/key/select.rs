//! The parts: each is a method that adds to a key.

use std::{borrow::Cow, fmt::Display, sync::Arc};

#[cfg(feature = "axum")]
use std::str::FromStr;

use http::HeaderName;

use super::{
    RequestKey, RequestView,
    parts::{Source, written},
};

/// A key that begins with a name, such as the kind of the locked resource.
///
/// Best at the beginning of every key: `id=42` alone could be an account or an order.
///
/// ```
/// use tower_distributed_lock::key;
///
/// let nightly = key::name("report").name("nightly");
/// assert_eq!(nightly.lock_key()?.as_str(), "report,nightly");
/// # Ok::<(), key::KeyError>(())
/// ```
///
/// # Panics
///
/// When the name is empty.
#[track_caller]
pub fn name(name: impl Into<Cow<'static, str>>) -> RequestKey {
    request().name(name)
}

/// A key that begins with a part of the request, which is added next.
///
/// ```
/// use http::Request;
/// use tower_distributed_lock::key::{self, DeriveKey};
///
/// // The scope of an idempotency layer: whose requests they are.
/// let tenant = key::request().header("x-tenant-id");
/// let (mut parts, ()) = Request::post("/").header("x-tenant-id", "acme").body(())?.into_parts();
/// assert_eq!(tenant.derive(&mut parts)?.key().unwrap().as_str(), "x-tenant-id=acme");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn request() -> RequestKey {
    RequestKey::new()
}

/// Each method adds a part at the end.
impl RequestKey {
    /// A constant, such as the kind of the locked resource.
    ///
    /// # Panics
    ///
    /// When the name is empty.
    #[track_caller]
    pub fn name(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.and(Source::Name(not_empty(name)))
    }

    /// The path in its canonical form; hashed when it is [too long](Self::max_value_len).
    ///
    /// Each segment is decoded and encoded again: `/a:b` and `/a%3Ab` are one path, as they are for
    /// a handler; `/a%2Fb` and `/a/b` are two. Case, dot segments, empty segments and a slash
    /// at the end count, as they do for axum's router. A service for which they do not count
    /// (`nest_service` serves `/files` and `/files/` alike, a file server may resolve `..`) needs
    /// normalized paths, or another key.
    ///
    /// In a nested router, this is the whole path, including the prefix.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// let (mut parts, ()) = Request::put("/files/a%20b").body(())?.into_parts();
    /// let derived = key::name("file").path().derive(&mut parts)?;
    /// assert_eq!(derived.key().unwrap().as_str(), "file,path=/files/a%20b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path(self) -> Self {
        self.and(Source::Path)
    }

    /// The method.
    ///
    /// A key with the method gives a resource one lock for each method: a PUT and a DELETE of the
    /// same resource then run at the same time. That is right only where the methods do not
    /// touch the same data.
    pub fn method(self) -> Self {
        self.and(Source::Method)
    }

    /// The host, from the request's URI (HTTP/2) or its `Host` header; where both are there and
    /// differ, the request is refused.
    ///
    /// In lower case, without a dot at the end and without the port: a client may write the port or
    /// not, and one resource would have two keys. `Forwarded` and `X-Forwarded-Host` are
    /// ignored.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// let request = Request::post("/").header("host", "Shop.Example.com:8080").body(())?;
    /// let (mut parts, ()) = request.into_parts();
    /// let derived = key::request().host().derive(&mut parts)?;
    /// assert_eq!(derived.key().unwrap().as_str(), "host=shop.example.com");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn host(self) -> Self {
        self.and(Source::Host)
    }

    /// A parameter of the query string, decoded like a form, as axum's `Query` does it. Exactly
    /// one, not empty, in UTF-8.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey, KeyErrorKind};
    ///
    /// let order = key::name("order").query("id");
    /// let (mut parts, ()) = Request::post("/orders?id=a+b").body(())?.into_parts();
    /// assert_eq!(order.derive(&mut parts)?.key().unwrap().as_str(), "order,id=a%20b");
    ///
    /// let (mut parts, ()) = Request::post("/orders?id=1&id=2").body(())?.into_parts();
    /// assert_eq!(order.derive(&mut parts).unwrap_err().kind(), KeyErrorKind::Doubled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the name is empty.
    #[track_caller]
    pub fn query(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.and(Source::Query(not_empty(name)))
    }

    /// A header. Exactly one line of it, not empty, in visible ASCII with spaces only between
    /// words; its case is kept.
    ///
    /// A client can send any header: for the tenant or user, prefer [`extension`](Self::extension).
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey, KeyErrorKind};
    ///
    /// let device = key::name("device").header("x-device-id");
    /// let (mut parts, ()) = Request::post("/").header("x-device-id", "T-1000").body(())?.into_parts();
    /// assert_eq!(device.derive(&mut parts)?.key().unwrap().as_str(), "device,x-device-id=T-1000");
    ///
    /// let (mut parts, ()) = Request::post("/").body(())?.into_parts();
    /// assert_eq!(device.derive(&mut parts).unwrap_err().kind(), KeyErrorKind::Missing);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the text cannot be the name of a header.
    #[track_caller]
    pub fn header(self, name: impl TryInto<HeaderName>) -> Self {
        self.and(Source::Header(header_name(name)))
    }

    /// A request extension, as text by its [`Display`]: the first choice for a tenant or a user,
    /// set by an authentication layer outside of the lock's. Values that must not share a lock
    /// need different texts.
    ///
    /// A missing extension, or one with an empty text, means that the authentication layer is
    /// missing: a misconfiguration, and not the client's fault. Where the extension may be
    /// absent, use [`or`](Self::or) or [`optional`](Self::optional).
    ///
    /// The label identifies the extension in the key. Type names would not do: they change with a
    /// refactoring and between compilers, and two versions of a program would not lock each
    /// other out.
    ///
    /// ```
    /// use std::fmt;
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// #[derive(Clone)]
    /// struct Tenant(u64);
    ///
    /// impl fmt::Display for Tenant {
    ///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///         write!(f, "{}", self.0)
    ///     }
    /// }
    ///
    /// let (mut parts, ()) = Request::post("/").extension(Tenant(7)).body(())?.into_parts();
    /// let derived = key::name("cart").extension::<Tenant>("tenant").derive(&mut parts)?;
    /// assert_eq!(derived.key().unwrap().as_str(), "cart,tenant=7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the label is empty.
    #[track_caller]
    pub fn extension<T>(self, label: impl Into<Cow<'static, str>>) -> Self
    where
        T: Display + Send + Sync + 'static,
    {
        self.and(Source::extension(not_empty(label), written::<T>))
    }

    /// A request [`extension`](Self::extension), as text by a closure: for types without a suitable
    /// [`Display`].
    ///
    /// ```
    /// # use tower_distributed_lock::key;
    /// #[derive(Clone)]
    /// struct User { tenant: u64 }
    ///
    /// let key = key::name("account").extension_with("tenant", |user: &User| user.tenant);
    /// ```
    ///
    /// # Panics
    ///
    /// When the label is empty.
    #[track_caller]
    pub fn extension_with<T, D>(
        self,
        label: impl Into<Cow<'static, str>>,
        text: impl Fn(&T) -> D + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        D: Display,
    {
        self.and(Source::extension(not_empty(label), move |value| {
            written(&text(value))
        }))
    }

    /// Adds a value that is the same for all requests, such as a region. For keys outside of a
    /// request, see [`lock_key`](Self::lock_key).
    ///
    /// ```
    /// use tower_distributed_lock::key;
    ///
    /// let key = key::name("cache").value("region", "eu-1");
    /// assert_eq!(key.lock_key()?.as_str(), "cache,region=eu-1");
    /// # Ok::<(), key::KeyError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the label is empty.
    #[track_caller]
    pub fn value(self, label: impl Into<Cow<'static, str>>, value: impl Display) -> Self {
        self.and(Source::Value(not_empty(label), value.to_string()))
    }

    /// The text that a closure finds in a request, borrowed or owned.
    ///
    /// A request for which the closure returns `None` is [refused](super#parts-that-are-not-there),
    /// as for a missing header. The closure sees the request's [`Parts`](http::request::Parts) and,
    /// with the feature `axum`, its path parameters.
    ///
    /// ```
    /// # use tower_distributed_lock::key;
    /// let key = key::name("upload").from_fn("device", |request| {
    ///     let agent = request.headers.get("user-agent")?.to_str().ok()?;
    ///     Some(agent.split('/').next()?.into()) // `into`: from a `&str` as from a `String`
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// When the label is empty.
    #[track_caller]
    pub fn from_fn<F>(self, label: impl Into<Cow<'static, str>>, find: F) -> Self
    where
        F: for<'r> Fn(&'r RequestView<'r>) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    {
        self.and(Source::Computed(not_empty(label), Arc::new(find)))
    }

    /// The matched route as written in the program, such as `/accounts/{id}`, with the prefixes of
    /// nested routers.
    ///
    /// One lock for all requests of a route, whatever their parameters are:
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// // `/imports/a` and `/imports/b` both lock `route=/imports/{name}`.
    /// let app: Router = Router::new()
    ///     .route("/imports/{name}", post(async || "imported"))
    ///     .route_layer(DistributedLockLayer::new(Locks::in_memory(), key::request().route()));
    /// ```
    #[cfg(feature = "axum")]
    pub fn route(self) -> Self {
        self.and(Source::Route)
    }

    /// A path parameter of the matched route as text, decoded, like axum's `Path<String>`.
    ///
    /// **A handler that takes `Path<u64>` needs [`param_as`](Self::param_as):** for such a handler
    /// `/7`, `/07` and `/%2B7` are one account; as text they are three, with three locks.
    ///
    /// Bytes that are not UTF-8 are refused, as `Path` refuses them. An empty parameter (which a
    /// route such as `/user-{id}` accepts) is refused too.
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// // `/carts/blue/items` locks `cart,name=blue`.
    /// let app: Router = Router::new()
    ///     .route("/carts/{name}/items", post(async || "added"))
    ///     .route_layer(DistributedLockLayer::new(Locks::in_memory(), key::name("cart").param("name")));
    /// ```
    ///
    /// # Panics
    ///
    /// When the name is empty.
    #[cfg(feature = "axum")]
    #[track_caller]
    pub fn param(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.and(Source::Param(not_empty(name)))
    }

    /// A path parameter of the matched route, parsed as a `T` like axum's `Path<T>`, and written by
    /// the `Display` of `T`.
    ///
    /// One resource then has one key, however a client writes the resource's id. A parameter that
    /// does not parse is refused (400).
    ///
    /// ```
    /// use axum::{Router, extract::Path, routing::post};
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// async fn deposit(Path(id): Path<u64>) -> String {
    ///     format!("paid into account {id}")
    /// }
    ///
    /// // `/accounts/7` and `/accounts/007` both lock `account,id=7`; `/accounts/seven` gets 400.
    /// let account = key::name("account").param_as::<u64>("id");
    /// let app: Router = Router::new()
    ///     .route("/accounts/{id}", post(deposit))
    ///     .route_layer(DistributedLockLayer::new(Locks::in_memory(), account));
    /// ```
    ///
    /// # Panics
    ///
    /// When the name is empty.
    #[cfg(feature = "axum")]
    #[track_caller]
    pub fn param_as<T: FromStr + Display>(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.param(name).parsed_as::<T>()
    }
}

#[track_caller]
fn not_empty(text: impl Into<Cow<'static, str>>) -> Cow<'static, str> {
    let text = text.into();
    assert!(!text.is_empty(), "a part of a key needs a name");
    text
}

#[track_caller]
fn header_name(name: impl TryInto<HeaderName>) -> HeaderName {
    match name.try_into() {
        Ok(name) => name,
        Err(_) => panic!("a key's header has a name that no header can have"),
    }
}
