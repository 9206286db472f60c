//! The source of a part's value.
//!
//! | origin | read from | missing | too long |
//! |---|---|---|---|
//! | a name, a value | the program | never | a value is hashed |
//! | method, path | the request line | never | the path is hashed, a method 400 |
//! | host, query, header | the request | 400 | 400 |
//! | an extension | a layer further out | 500 | hashed |
//! | a closure | wherever the closure looks | 400; 500 if the closure has looked for a body that was not read | hashed |
//! | route, parameter | axum's router | 404 or 500 | the route is hashed, a parameter 400 |
//!
//! A new source is a variant of [`Source`]; the compiler then asks for its row, for how it is read,
//! and for its name in messages.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
    sync::Arc,
};

use http::HeaderName;

use super::{header, host, path, query};
use crate::key::{KeyError, KeyErrorKind, RequestExtensions, RequestView, encode, original_uri};

type Text = Cow<'static, str>;
type ReadExtension =
    Arc<dyn Fn(&RequestExtensions<'_>) -> Option<Result<String, fmt::Error>> + Send + Sync>;
type ComputeText = Arc<dyn for<'r> Fn(&'r RequestView<'r>) -> Option<Cow<'r, str>> + Send + Sync>;

/// The source of a part's value, with the name or label that the program has given.
#[derive(Clone)]
pub(in crate::key) enum Source {
    Name(Text),
    Value(Text, String),
    Method,
    Path,
    Host,
    Query(Text),
    Header(HeaderName),
    Extension(Text, ReadExtension),
    Computed(Text, ComputeText),
    #[cfg(feature = "axum")]
    Route,
    #[cfg(feature = "axum")]
    Param(Text),
}

impl Source {
    /// An extension, as text by a closure.
    pub(in crate::key) fn extension<T: Send + Sync + 'static>(
        label: Text,
        text: impl Fn(&T) -> Result<String, fmt::Error> + Send + Sync + 'static,
    ) -> Self {
        let read = move |extensions: &RequestExtensions<'_>| extensions.get().map(&text);
        Self::Extension(label, Arc::new(read))
    }

    /// Everything about a source that does not depend on the request: a row for each.
    fn row(&self) -> Row<'_> {
        match self {
            Self::Name(label) => Row(label, Origin::Name, Form::Text, TooLong::Refused),
            Self::Value(label, _) => Row(label, Origin::Value, Form::Text, TooLong::Hashed),
            Self::Method => Row("method", Origin::RequestLine, Form::Text, TooLong::Refused),
            Self::Path => Row("path", Origin::RequestLine, Form::Path, TooLong::Hashed),
            Self::Host => Row("host", Origin::Client, Form::Host, TooLong::Refused),
            Self::Query(name) => Row(name, Origin::Client, Form::Text, TooLong::Refused),
            Self::Header(name) => Row(
                name.as_str(),
                Origin::Client,
                Form::Header,
                TooLong::Refused,
            ),
            Self::Extension(label, _) => Row(label, Origin::Layer, Form::Text, TooLong::Hashed),
            Self::Computed(label, _) => Row(label, Origin::Closure, Form::Text, TooLong::Hashed),
            #[cfg(feature = "axum")]
            Self::Route => Row("route", Origin::Route, Form::Route, TooLong::Hashed),
            #[cfg(feature = "axum")]
            Self::Param(name) => Row(name, Origin::Route, Form::Text, TooLong::Refused),
        }
    }

    /// The default label: the name of the value.
    pub(in crate::key) fn label(&self) -> &str {
        self.row().0
    }

    pub(in crate::key) fn origin(&self) -> Origin {
        self.row().1
    }

    /// Whether a value that is too long is hashed, rather than refused.
    pub(in crate::key) fn is_hashed_when_long(&self) -> bool {
        self.row().3 == TooLong::Hashed
    }

    pub(in crate::key) fn may_be_absent(&self) -> bool {
        match self.origin() {
            Origin::Name | Origin::Value | Origin::RequestLine => false,
            Origin::Client | Origin::Layer | Origin::Closure => true,
            #[cfg(feature = "axum")]
            Origin::Route => true,
        }
    }

    /// The value in this request, `None` when the request has none.
    pub(in crate::key) fn read<'r>(
        &'r self,
        request: &'r RequestView<'r>,
    ) -> Result<Option<Cow<'r, str>>, KeyError> {
        Ok(match self {
            Self::Name(_) => None,
            Self::Value(_, value) => Some(value.into()),
            Self::Method => Some(request.method.as_str().into()),
            Self::Path => Some(original_uri(request).path().into()),
            Self::Host => host::read(request)?,
            Self::Query(name) => query::read(request.uri.query(), name)?,
            Self::Header(name) => header::read(&request.headers, name)?.map(Cow::Borrowed),
            Self::Extension(_, read) => match read(&request.extensions).transpose() {
                Ok(found) => found.map(Cow::Owned),
                Err(fmt::Error) => {
                    return Err(KeyError::misconfigured(format!(
                        "{self} could not be written: its `Display` returned an error"
                    )));
                }
            },
            Self::Computed(_, compute) => compute(request),
            #[cfg(feature = "axum")]
            Self::Route => request.route().map(|route| route.pattern().into()),
            #[cfg(feature = "axum")]
            Self::Param(name) => match request.route() {
                Some(route) => route.param(name)?.map(Cow::Borrowed),
                None => None,
            },
        })
    }

    /// A value that was given outside of a request, in the form of a request's value.
    pub(in crate::key) fn check_given<'r>(&self, value: &'r str) -> Result<Cow<'r, str>, KeyError> {
        match self.row().2 {
            Form::Host => host::canonical_text(value).map(Cow::Owned),
            Form::Header => header::visible(value)
                .map(Cow::Borrowed)
                .ok_or_else(|| header::not_visible(self.label())),
            Form::Text | Form::Path => Ok(value.into()),
            #[cfg(feature = "axum")]
            Form::Route => Ok(value.into()),
        }
    }

    /// Appends the value in its encoded form.
    pub(in crate::key) fn encode(&self, value: &str, out: &mut String) {
        match self.row().2 {
            Form::Path => path::write(value, out),
            #[cfg(feature = "axum")]
            Form::Route => encode::push_route(out, value),
            Form::Text | Form::Host | Form::Header => encode::push_value(out, value),
        }
    }

    /// The refusal of a request whose part is there, and empty.
    pub(in crate::key) fn empty(&self) -> KeyError {
        if self.origin() == Origin::Layer {
            return KeyError::misconfigured(format!(
                "{self} is written as an empty text: nothing tells whose request this is"
            ));
        }
        KeyError::new(KeyErrorKind::Empty, format!("{self} is empty"))
    }

    /// The refusal of a request without this part. A missing extension or path parameter is a
    /// mistake of the program.
    pub(in crate::key) fn missing(&self, request: &RequestView<'_>) -> KeyError {
        if request.lacks_body() {
            return KeyError::misconfigured(format!(
                "{self} comes from the request's body, which no layer further out has read: \
                 add a `ReadBodyLayer` outside of this layer"
            ));
        }
        match self.origin() {
            Origin::Layer => KeyError::misconfigured(format!(
                "{self} is not set: add the layer that sets it outside of the lock's layer, \
                 or say with `.or(..)` or `.optional()` what a request without it locks"
            )),
            #[cfg(feature = "axum")]
            Origin::Route => KeyError::misconfigured(format!(
                "{self} is not in the route `{}`: add the lock's layer to the routes that have it, \
                 or say with `.or(..)` or `.optional()` what the others lock",
                request.route().map_or("", |route| route.pattern())
            )),
            Origin::Name
            | Origin::Value
            | Origin::RequestLine
            | Origin::Client
            | Origin::Closure => KeyError::new(KeyErrorKind::Missing, format!("{self} is missing")),
        }
    }
}

/// The label, the origin and the form of a value, and what becomes of one that is too long.
struct Row<'a>(&'a str, Origin, Form, TooLong);

/// Who sets the value of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::key) enum Origin {
    /// The program. The part is its label alone.
    Name,
    /// The program.
    Value,
    /// The client, in every request.
    RequestLine,
    /// The client, if it likes.
    Client,
    /// A layer further out.
    Layer,
    /// A closure, from wherever it looks.
    Closure,
    /// The router.
    #[cfg(feature = "axum")]
    Route,
}

/// The form of a value: what it may contain, and how it is written.
enum Form {
    Text,
    Host,
    Header,
    Path,
    #[cfg(feature = "axum")]
    Route,
}

#[derive(PartialEq, Eq)]
enum TooLong {
    Refused,
    Hashed,
}

/// The text of a value. Unlike `to_string`, this function does not panic if `Display` fails.
pub(in crate::key) fn written<T: Display>(value: &T) -> Result<String, fmt::Error> {
    let mut text = String::new();
    write!(text, "{value}")?;
    Ok(text)
}

/// The name of the source in messages.
impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "the name `{name}`"),
            Self::Value(label, _) => write!(f, "the value `{label}`"),
            Self::Method => f.write_str("the method"),
            Self::Path => f.write_str("the path"),
            Self::Host => f.write_str("the host"),
            Self::Query(name) => write!(f, "the query parameter `{name}`"),
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Extension(label, _) => write!(f, "the request extension `{label}`"),
            Self::Computed(label, _) => write!(f, "the key part `{label}`"),
            #[cfg(feature = "axum")]
            Self::Route => f.write_str("the route"),
            #[cfg(feature = "axum")]
            Self::Param(name) => write!(f, "the path parameter `{name}`"),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}
