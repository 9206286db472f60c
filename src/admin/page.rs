//! The page's files, and the headers of every response.

use axum::{
    body::Body,
    extract::OriginalUri,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A file that is served as it is.
///
/// All files are compiled into the program, so the page needs no folder and no other host.
pub(super) struct File {
    pub(super) path: &'static str,
    kind: &'static str,
    content: &'static str,
}

impl File {
    pub(super) fn response(&self) -> Response {
        ([(header::CONTENT_TYPE, self.kind)], self.content).into_response()
    }
}

pub(super) static FILES: [File; 3] = [
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        // One module. Code that runs while the module loads uses earlier parts only.
        content: concat!(
            include_str!("page/js/api.js"),
            include_str!("page/js/dom.js"),
            include_str!("page/js/format.js"),
            include_str!("page/js/plots.js"),
            include_str!("page/js/details.js"),
            include_str!("page/js/views.js"),
            include_str!("page/js/main.js"),
        ),
    },
    File {
        path: "/page.css",
        kind: "text/css; charset=utf-8",
        content: include_str!("page/page.css"),
    },
    File {
        path: "/icon.svg",
        kind: "image/svg+xml",
        content: include_str!("page/icon.svg"),
    },
];

/// The page itself, with the addresses of its files.
pub(super) async fn html(OriginalUri(uri): OriginalUri) -> Response {
    let html = include_str!("page/page.html").replace("{base}", &base(uri.path()));
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], html).into_response()
}

/// The characters that a segment of a path keeps: neither HTML nor a URL gives them a meaning of
/// their own.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'%');

/// The address of the folder of the page's files, relative to the address of the page. At
/// `/locks/`, that is the same folder. At `/locks`, the folder is `locks/`.
fn base(path: &str) -> String {
    match path.rsplit('/').next() {
        Some(segment) if !segment.is_empty() => {
            format!("./{}/", utf8_percent_encode(segment, KEPT))
        }
        _ => "./".into(),
    }
}

/// What the page may do: nothing but load its own files and ask its own origin. Text cannot become
/// a script, even by a mistake in the page (Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Adds the headers that every response has.
pub(super) async fn with_headers(mut response: Response<Body>) -> Response<Body> {
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_found_with_and_without_a_slash_at_the_end() {
        assert_eq!(base("/"), "./");
        assert_eq!(base("/locks/"), "./");
        assert_eq!(base("/locks"), "./locks/");
        assert_eq!(base("/a/b%20c"), "./b%20c/");
    }

    #[test]
    fn a_path_cannot_break_out_of_its_attribute() {
        assert_eq!(base("/\"><script>&:"), "./%22%3E%3Cscript%3E%26%3A/");
    }
}
