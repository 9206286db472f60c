//! Where the value of a part comes from.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
    sync::Arc,
};

use http::{Extensions, HeaderName, request::Parts};

use super::{Incoming, header, host, path, query};
use crate::key::{
    KeyError, KeyErrorKind,
    encode::{self, ValueWriter},
    original_uri,
};

type Text = Cow<'static, str>;
type WriteExtension = Arc<dyn Fn(&Extensions, &mut String) -> Option<fmt::Result> + Send + Sync>;
type ComputeText = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(in crate::key) enum Source {
    Name(Text),
    Method,
    Path,
    Host,
    Query(Text),
    Header(HeaderName),
    Extension(Text, WriteExtension),
    Computed(Text, ComputeText),
    #[cfg(feature = "axum")]
    Route,
    #[cfg(feature = "axum")]
    Param(Text),
}

impl Source {
    pub(in crate::key) fn extension<T: Display + Send + Sync + 'static>(label: Text) -> Self {
        let write = |extensions: &Extensions, out: &mut String| {
            let value = extensions.get::<T>()?;
            Some(write!(ValueWriter(out), "{value}"))
        };
        Self::Extension(label, Arc::new(write))
    }

    /// The encoded label, which tells every kind of part from every other. A name is all label.
    pub(super) fn label(&self) -> String {
        let (kind, name): (&str, &str) = match self {
            Self::Name(name) => ("", name),
            Self::Method => ("method", ""),
            Self::Path => ("path", ""),
            Self::Host => ("host", ""),
            Self::Query(name) => ("query.", name),
            Self::Header(name) => ("header.", name.as_str()),
            Self::Extension(label, _) => ("ext.", label),
            Self::Computed(label, _) => ("fn.", label),
            #[cfg(feature = "axum")]
            Self::Route => ("route", ""),
            #[cfg(feature = "axum")]
            Self::Param(name) => ("param.", name),
        };
        let mut label = String::from(kind);
        encode::push_value(&mut label, name);
        label
    }

    /// Appends the encoded value; `false` when the request has none.
    pub(super) fn write(&self, request: &Incoming<'_>, out: &mut String) -> Result<bool, KeyError> {
        let parts = request.parts;
        match self {
            Self::Name(_) => Ok(true),
            Self::Method => self.write_sent(request, Some(parts.method.as_str()), out),
            Self::Path => {
                path::write(original_uri(parts).path(), out);
                Ok(true)
            }
            Self::Host => self.write_sent(request, host::read(parts)?, out),
            Self::Query(name) => {
                self.write_sent(request, query::read(parts.uri.query(), name)?, out)
            }
            Self::Header(name) => {
                self.write_sent(request, header::read(&parts.headers, name)?, out)
            }
            Self::Extension(_, write) => match write(&parts.extensions, out) {
                Some(Err(fmt::Error)) => Err(KeyError::misconfigured(format!(
                    "{self} could not be written: its `Display` returned an error"
                ))),
                written => Ok(written.is_some()),
            },
            Self::Computed(_, compute) => Ok(write_found(compute(parts), out)),
            #[cfg(feature = "axum")]
            Self::Route => Ok(request.route.as_ref().is_some_and(|route| {
                encode::push_route(out, route.pattern());
                true
            })),
            #[cfg(feature = "axum")]
            Self::Param(name) => match &request.route {
                Some(route) => self.write_sent(request, route.param(name)?, out),
                None => Ok(false),
            },
        }
    }

    /// What a client can make as long as it likes is refused beyond the limit.
    fn write_sent(
        &self,
        request: &Incoming<'_>,
        value: Option<impl AsRef<str>>,
        out: &mut String,
    ) -> Result<bool, KeyError> {
        let len = value.as_ref().map_or(0, |value| value.as_ref().len());
        if len > request.max_value_len {
            return Err(KeyError::new(
                KeyErrorKind::TooLong,
                format!("{self} is longer than {} bytes", request.max_value_len),
            ));
        }
        Ok(write_found(value, out))
    }

    pub(super) fn is_hashed_when_long(&self) -> bool {
        matches!(self, Self::Path | Self::Extension(..) | Self::Computed(..))
    }

    pub(super) fn empty(&self) -> KeyError {
        match self {
            Self::Extension(..) => KeyError::misconfigured(format!(
                "{self} is written as an empty text: nothing tells whose request this is"
            )),
            _ => KeyError::new(KeyErrorKind::Empty, format!("{self} is empty")),
        }
    }

    /// The refusal of a request that does not have this part. What only the program can have forgotten is its fault.
    #[cfg_attr(not(feature = "axum"), allow(unused_variables))] // only a route can tell more
    pub(super) fn missing(&self, request: &Incoming<'_>) -> KeyError {
        match self {
            Self::Extension(..) => KeyError::misconfigured(format!(
                "{self} is not set: add the layer that sets it outside of the lock's layer, \
                 or say with `.or(..)` or `.optional()` what a request without it locks"
            )),
            #[cfg(feature = "axum")]
            Self::Param(_) => KeyError::misconfigured(format!(
                "{self} is not in the route `{}`: add the lock's layer to the routes that have it, \
                 or say with `.or(..)` or `.optional()` what the others lock",
                request.route.as_ref().map_or("", |route| route.pattern())
            )),
            _ => KeyError::new(KeyErrorKind::Missing, format!("{self} is missing")),
        }
    }
}

fn write_found(value: Option<impl AsRef<str>>, out: &mut String) -> bool {
    value.is_some_and(|value| {
        encode::push_value(out, value.as_ref());
        true
    })
}

/// How messages name it.
impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "the name `{name}`"),
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
