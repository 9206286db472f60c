//! Refuses requests that a page of another site has sent.

use http::{HeaderMap, StatusCode, Uri, header};

use super::answers::Refusal;

/// A header that no form of another site can send. A script of another site may send it only if the
/// service's CORS rules allow that.
const PAGE_HEADER: &str = "x-locks-admin";

/// Checks that a request comes from the page itself, or from a client that is no browser.
///
/// Browsers send `Sec-Fetch-Site` over https and to localhost, and `Origin` with every POST
/// request. Both are checked although the header of the page would be enough, because CORS rules of
/// the service may be too generous.
pub(super) fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    if !headers.contains_key(PAGE_HEADER) {
        return refuse("the request has no header x-locks-admin");
    }
    match headers.get("sec-fetch-site") {
        Some(site) if site == "same-origin" => Ok(()),
        Some(_) => refuse("the request comes from another site"),
        None => check_origin(headers, uri),
    }
}

fn check_origin(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    // In HTTP/2, the host is a part of the URI.
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str()));
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    match (origin, host) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => refuse("the request comes from another origin than the host that it is for"),
    }
}

fn refuse(why: &'static str) -> Result<(), Refusal> {
    Err(Refusal::new(StatusCode::FORBIDDEN, why))
}
