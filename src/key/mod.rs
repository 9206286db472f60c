//! Lock keys from requests.
//!
//! A key is made of parts, in the order written:
//!
//! ```
//! use http::Request;
//! use tower_distributed_lock::key::{self, DeriveKey};
//!
//! let key = key::name("account").header("x-tenant-id").labelled("tenant").path();
//!
//! let request = Request::post("/accounts/a%3Ab").header("x-tenant-id", "acme, inc").body(())?;
//! let (mut parts, ()) = request.into_parts();
//! let derived = key.derive(&mut parts)?;
//! assert_eq!(
//!     derived.key().unwrap().as_str(),
//!     "account,tenant=acme%2C%20inc,path=/accounts/a:b"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which parts
//!
//! Two requests that must not run at once need equal keys; all others should have different ones.
//! Begin with a [`name`] for the kind of thing, then whose it is
//! ([`extension`](RequestKey::extension), set by an authentication layer; a
//! [`header`](RequestKey::header) can be forged), then which one it is (`param`,
//! [`path`](RequestKey::path), [`query`](RequestKey::query), [`from_fn`](RequestKey::from_fn)).
//! Everything that does not identify the resource, such as the method, would give the resource a
//! second key.
//!
//! Where parts are not enough, implement [`DeriveKey`], for example with a closure.
//!
//! # The format of a key
//!
//! The parts stand in the order written, with commas between them: a name as it is, every other
//! part as `label=value`, as in `account,tenant=acme,id=7`. The program chooses the label
//! ([`RequestKey::labelled`]); the source of a value is not part of the key: a header and a
//! parameter with the same label and value give the same key.
//!
//! ASCII letters, digits and `-._~:@+/` stay; every other byte of a name, label or value is
//! percent-encoded with upper-case digits (`{`, `}` and `*` stay in a route; in a path, an encoded
//! slash stays encoded). No value can forge a separator: the text can be split again without doubt,
//! and an operator finds a lock with redis-cli. Two kinds of text are hashed, under a label that no
//! value can forge either:
//!
//! - a path, or a text of the program, that is longer than [`RequestKey::max_value_len`], as in
//!   `path#sha256=…` (a value that a client has chosen is refused instead; a text that is hashed is
//!   measured after its encoding, one that is refused before);
//! - the whole, when it is longer than [`LockKey::MAX_LEN`], or always with
//!   [`RequestKey::hashed_with`]. Names at the beginning stay: `account,#sha256=…`.
//!
//! The format is stable: all processes that lock each other out write the same keys.
//! [`RequestKey::with`] and [`RequestKey::lock_key`] write keys outside of a request.
//!
//! # Parts that are not there
//!
//! A request with a missing, doubled, empty or unreadable part is refused with a [`KeyError`]
//! (400), and its handler does not run. [`RequestKey::or`] gives an absent part a value,
//! [`RequestKey::optional`] makes absence a value of its own, and [`RequestKey::only_when`] lets
//! requests pass that need no lock.
//!
//! # Routes and path parameters
//!
//! With the feature `axum` (on by default), `route` and `param` use the route that the router has
//! matched. The route is known inside of a router, nested or not. The place of the lock's layer
//! decides:
//!
//! - `Router::route_layer`: right. Only requests that have a route get there.
//! - `Router::layer`: works, but also runs for requests without a route. Such requests pass
//!   straight through ([`Derived::NoRoute`]), and are answered with 404.
//! - Around a router, with a `ServiceBuilder`, or on a service of `nest_service`: no route has been
//!   matched yet. This is a misconfiguration, and refused (500).
//!
//! One mistake looks like a 404: the layer is added to a router whose `fallback_service` is itself
//! a router, or to that service. The requests of the inner router pass without a lock
//! ([`Derived::NoRoute`]); use `route_layer` on the inner router.
//!
//! A request with a method that its route does not take (405) has a route, and so a key, with
//! `Router::route_layer`, too. Only `MethodRouter::route_layer`, as in
//! `post(transfer).route_layer(..)`, is not run for it.

#![deny(clippy::wildcard_enum_match_arm)]

mod all;
mod assemble;
#[cfg(feature = "axum")]
mod axum;
pub(crate) mod body;
mod builder;
mod derive;
mod digest;
mod encode;
mod error;
mod hash;
mod lock_key;
mod parts;
mod select;
mod values;
mod view;

pub use all::{AllOf, all_of};
pub(crate) use assemble::{original_uri, prefixed, scoped};
pub use builder::RequestKey;
pub use derive::{DeriveKey, Derived};
pub(crate) use derive::{may_have_route, one_key};
pub use error::{KeyError, KeyErrorKind};
pub(crate) use hash::KeyMap;
#[cfg(feature = "redis")]
pub(crate) use hash::stable as stable_hash;
pub use lock_key::LockKey;
pub use select::{name, request};
pub use values::KeyValues;
pub use view::{RequestExtensions, RequestView};
