//! The form that every request of the page carries.

use std::{borrow::Cow, str::FromStr};

use axum::extract::{FromRequest, OriginalUri, Request};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use percent_encoding::percent_decode_str;

use super::{answers::Refusal, origin};
use crate::LockKey;

/// The fields of a request that comes from the page itself. Other requests are refused, so a
/// handler that takes a form is safe from requests of other sites.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// The value of a field, or the empty text.
    pub(super) fn text(&self, name: &str) -> &str {
        let field = self.0.iter().find(|(field, _)| field == name);
        field.map_or("", |(_, value)| value)
    }

    /// The value of a field that is not empty.
    pub(super) fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let text = Some(self.text(name)).filter(|text| !text.is_empty());
        let value = text.map(str::parse).transpose();
        value.map_err(|_| bad(format!("the field {name} cannot be read")))
    }

    /// The value of a field as a number. A missing field is zero.
    pub(super) fn number(&self, name: &str) -> Result<usize, Refusal> {
        Ok(self.parsed(name)?.unwrap_or_default())
    }

    /// The answer that the form describes.
    pub(super) fn answer(&self) -> Result<Response<Bytes>, Refusal> {
        let status = self.parsed("status")?;
        let mut answer = Response::new(Bytes::from(self.text("body").to_owned()));
        *answer.status_mut() = status.ok_or_else(|| bad("the form has no status"))?;
        if let Some(content_type) = self.parsed("content_type")? {
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        Ok(answer)
    }

    /// The key that the form names.
    pub(super) fn key(&self) -> Result<LockKey, Refusal> {
        Ok(LockKey::new(self.text("key"))?)
    }
}

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let original = request.extensions().get::<OriginalUri>();
        let uri = original.map_or(request.uri(), |OriginalUri(uri)| uri);
        origin::check(request.headers(), uri)?;
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|error| Refusal::new(error.status(), error.body_text()))?;
        parse(&body).ok_or_else(|| bad("the form is not readable"))
    }
}

fn bad(why: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, why)
}

/// Reads `application/x-www-form-urlencoded`, as far as it is UTF-8.
fn parse(body: &[u8]) -> Option<Form> {
    let body = std::str::from_utf8(body).ok()?;
    let fields = body.split('&').filter(|field| !field.is_empty());
    let fields = fields.map(|field| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        Some((decode(name)?, decode(value)?))
    });
    fields.collect::<Option<_>>().map(Form)
}

/// Decodes a name or a value: `+` is a space, and `%2F` a slash.
fn decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text)
        .decode_utf8()
        .ok()
        .map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_gives_back_what_a_browser_has_encoded() {
        let form = parse(b"key=a%26b%3D+c%2Bd&offset=50&empty=&%C3%BC=%E4%B8%AD").unwrap();
        assert_eq!(form.text("key"), "a&b= c+d");
        assert_eq!(form.number("offset").unwrap(), 50);
        assert_eq!((form.text("empty"), form.text("absent")), ("", ""));
        assert_eq!(form.text("ü"), "中");
    }

    #[test]
    fn a_form_that_is_not_text_is_refused() {
        assert!(parse(b"key=%FF").is_none());
        assert!(parse(b"key=\xff").is_none());
    }
}
