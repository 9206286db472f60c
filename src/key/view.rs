//! The view of a request for key functions.

use std::{any::TypeId, cell::Cell, fmt, ops::Deref};

use http::{Extensions, request::Parts};

#[cfg(feature = "axum")]
use super::axum::MatchedRoute;
use super::body::WholeBody;

/// A request's head, as the closure of [`from_fn`](super::RequestKey::from_fn) gets it: its
/// [`Parts`], by dereference, and the path parameters of the matched route.
///
/// ```
/// use tower_distributed_lock::key;
///
/// // The head of the request is there by dereference: `method`, `uri`, `headers`, `extensions`.
/// let upload = key::name("upload").from_fn("kind", |request| {
///     let kind = request.headers.get("content-type")?.to_str().ok()?;
///     Some(kind.split('/').next()?.into())
/// });
/// ```
pub struct RequestView<'r> {
    parts: &'r Parts,
    /// The extensions of the request.
    pub extensions: RequestExtensions<'r>,
    #[cfg(feature = "axum")]
    route: Option<MatchedRoute>,
    /// Whether the closure of the part that is being read has asked for a parameter.
    #[cfg(feature = "axum")]
    asked: Cell<bool>,
}

impl<'r> RequestView<'r> {
    pub(super) fn new(
        parts: &'r Parts,
        #[cfg(feature = "axum")] route: Option<MatchedRoute>,
    ) -> Self {
        Self {
            parts,
            extensions: RequestExtensions {
                extensions: &parts.extensions,
                lacks_body: Cell::new(false),
            },
            #[cfg(feature = "axum")]
            route,
            #[cfg(feature = "axum")]
            asked: Cell::new(false),
        }
    }

    /// The path parameter of the matched route, decoded, like axum's `Path`. `None` if the route
    /// has no such parameter, or two of that name.
    ///
    /// Without a matched route, a closure that asks for a parameter and then returns `None` is
    /// treated like [`param`](super::RequestKey::param), if the part has neither a fallback nor is
    /// optional: a 404 passes, and a layer in the wrong place is a misconfiguration. With a
    /// fallback, all requests to a layer in the wrong place have one key.
    #[cfg(feature = "axum")]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.asked.set(true);
        self.route.as_ref()?.param(name).ok()?
    }

    #[cfg(feature = "axum")]
    pub(super) fn route(&self) -> Option<&MatchedRoute> {
        self.route.as_ref()
    }

    /// Forgets what closures of earlier parts have asked for. Those parts have their values, so
    /// nothing was missing.
    pub(super) fn begin_part(&self) {
        self.extensions.lacks_body.set(false);
        #[cfg(feature = "axum")]
        self.asked.set(false);
    }

    /// Whether the part has asked for the request's body, which no layer further out has read.
    pub(super) fn lacks_body(&self) -> bool {
        self.extensions.lacks_body.get()
    }

    /// Whether the part's closure has asked for a parameter that no route could give.
    #[cfg(feature = "axum")]
    pub(super) fn lacks_route(&self) -> bool {
        self.route.is_none() && self.asked.get()
    }
}

impl Deref for RequestView<'_> {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.parts
    }
}

impl fmt::Debug for RequestView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestView")
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

/// The extensions of a request, as the closure of [`from_fn`](super::RequestKey::from_fn) gets
/// them: [`Extensions`], by dereference.
///
/// A closure that looks for the [body](crate::read_body::WholeBody), does not find it and returns
/// `None` is a misconfiguration: the layer that reads the body is missing, or further in.
pub struct RequestExtensions<'r> {
    extensions: &'r Extensions,
    /// Whether the part that is being read has asked for the body in vain.
    lacks_body: Cell<bool>,
}

impl<'r> RequestExtensions<'r> {
    /// The extension of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&'r T> {
        let found = self.extensions.get();
        if found.is_none() && TypeId::of::<T>() == TypeId::of::<WholeBody>() {
            self.lacks_body.set(true);
        }
        found
    }
}

impl Deref for RequestExtensions<'_> {
    type Target = Extensions;

    fn deref(&self) -> &Extensions {
        self.extensions
    }
}

impl fmt::Debug for RequestExtensions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.extensions.fmt(f)
    }
}
