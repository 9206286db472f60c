//! Errors of request bodies.

use std::error::Error as StdError;

use http_body_util::LengthLimitError;

/// Whether a limit further out (`DefaultBodyLimit`, `RequestBodyLimitLayer`) has ended the body.
pub(crate) fn is_over_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
