//! The canonical form of a path.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::key::encode;

/// Appends the path's canonical form.
///
/// The path is split at each raw `/`. Each segment is decoded once, as axum decodes a parameter (a
/// `%` without two hexadecimal digits stands for itself), and encoded again. Empty segments, dot
/// segments and a slash at the end stay, as they reach the handler.
pub(super) fn write(path: &str, out: &mut String) {
    for (at, segment) in path.split('/').enumerate() {
        if at > 0 {
            out.push('/');
        }
        let decoded: Cow<'_, [u8]> = percent_decode_str(segment).into();
        encode::push_segment(out, &decoded);
    }
}

#[cfg(test)]
mod tests {
    fn canonical(path: &str) -> String {
        let mut out = String::new();
        super::write(path, &mut out);
        out
    }

    #[test]
    fn one_segment_has_one_form() {
        for same in ["/a:b", "/a%3Ab", "/a%3ab", "/%61%3ab"] {
            assert_eq!(canonical(same), "/a:b");
        }
        assert_eq!(canonical("/ü"), canonical("/%c3%bc"));
    }

    #[test]
    fn an_encoded_slash_separates_nothing() {
        assert_eq!(canonical("/a%2fb"), "/a%2Fb");
        assert_ne!(canonical("/a%2fb"), canonical("/a/b"));
    }

    #[test]
    fn segments_are_decoded_once() {
        assert_eq!(canonical("/a%252Fb"), "/a%252Fb");
        assert_ne!(canonical("/a%252Fb"), canonical("/a%2Fb"));
    }

    #[test]
    fn a_stray_percent_stands_for_itself() {
        for same in ["/%zz", "/%25zz"] {
            assert_eq!(canonical(same), "/%25zz");
        }
        assert_eq!(canonical("/%4"), "/%254");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_kept_apart() {
        assert_eq!(canonical("/%fe"), "/%FE");
        assert_ne!(canonical("/%fe"), canonical("/%ff"));
    }

    #[test]
    fn case_dots_empty_segments_and_the_last_slash_are_kept() {
        for path in ["/A", "/a", "/a/", "/a//b", "/a/../b", "/a/./b", "//", "/"] {
            assert_eq!(canonical(path), path);
        }
        assert_eq!(canonical("/%2e%2E/b"), "/../b");
    }
}
