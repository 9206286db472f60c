//! The headers of an answer that are replayed.
//!
//! A header that belongs to one exchange would mislead another client: a cookie would sign a second
//! client in, a `Date` would be hours old, and an `Access-Control-Allow-Origin` would name another
//! origin.

use http::{HeaderMap, HeaderName, header};

/// Headers that belong to one exchange, and are not replayed: those of one connection, of one
/// request, of one client, and of one origin. `Trailer` is, if there are trailers: see
/// [`Answer::of`](super::Answer::of).
#[rustfmt::skip]
const NEVER_REPLAYED: [&str; 28] = [
    "connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "alt-svc",
    "date", "age", "via", "x-request-id", "x-correlation-id", "request-id", "traceparent",
    "tracestate", "server-timing",
    "set-cookie", "www-authenticate",
    "access-control-allow-origin", "access-control-allow-credentials",
    "access-control-allow-headers", "access-control-allow-methods",
    "access-control-expose-headers", "access-control-max-age",
];

/// The headers of a replay: without those above, those of the layer's own list, and those that
/// `Connection` names.
pub(crate) fn replayed(headers: &HeaderMap, never: &[HeaderName]) -> HeaderMap {
    let connection = headers.get_all(header::CONNECTION).iter();
    let named = connection.filter_map(|value| value.to_str().ok());
    let named: Vec<&str> = named.flat_map(|value| value.split(',')).collect();
    let is_replayed = |name: &HeaderName| {
        let mut named = named.iter().map(|it| it.trim());
        !NEVER_REPLAYED.contains(&name.as_str())
            && !never.contains(name)
            && !named.any(|it| it.eq_ignore_ascii_case(name.as_str()))
    };
    let kept = headers.iter().filter(|(name, _)| is_replayed(name));
    let kept = kept.map(|(name, value)| (name.clone(), value.clone()));
    let mut replayed = HeaderMap::new();
    replayed.extend(kept);
    replayed
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn headers_of_one_exchange_are_not_replayed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "s"),
            ("date", "d"),
            ("content-length", "1"),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("www-authenticate", "w"),
            ("x-request-id", "r"),
            ("access-control-allow-origin", "o"),
            ("x-mine", "m"),
            ("location", "/l"),
            ("content-type", "t"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let kept = replayed(&headers, &[HeaderName::from_static("x-mine")]);
        let mut names: Vec<_> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "location"]);
    }
}
