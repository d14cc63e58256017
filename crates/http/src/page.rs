//! The page: files that are part of the program, and what a browser is told about them.
//!
//! They are built from `page/` by `tools/page.sh` and committed, so that building the program needs nothing else.
//!
//! Invariant: a page gets scripts, styles and data from this server alone, and nothing in it runs that is not one of these
//! files. They hold no secrets and are the same for everyone, so that no key is needed for them.

use hyper::StatusCode;
use hyper::header::{ACCEPT, CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, VARY};

use crate::reply::{self, Reply};

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFile {
    Document,
    Script,
    Style,
    Icon,
}

/// What a page may do: nothing by itself, and with others' files nothing either.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl PageFile {
    fn kind(self) -> &'static str {
        match self {
            PageFile::Document => "text/html; charset=utf-8",
            PageFile::Script => "text/javascript; charset=utf-8",
            PageFile::Style => "text/css; charset=utf-8",
            PageFile::Icon => "image/svg+xml",
        }
    }

    fn bytes(self) -> &'static [u8] {
        match self {
            PageFile::Document => include_bytes!("../page/dist/index.html"),
            PageFile::Script => include_bytes!("../page/dist/page.js"),
            PageFile::Style => include_bytes!("../page/dist/page.css"),
            PageFile::Icon => include_bytes!("../page/dist/icon.svg"),
        }
    }

    /// The file as a response.
    pub(crate) fn reply(self) -> Reply {
        let mut reply = reply::text(StatusCode::OK, self.kind(), self.bytes());
        let told = [
            ("content-security-policy", POLICY),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ];
        let headers = reply.headers_mut();
        for (name, value) in told {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        // Another version of the program has other files.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        reply
    }
}

/// What is at `/`: the page for browsers; for programs, which look whether Ollama is there, one line.
pub(crate) fn root(headers: &HeaderMap) -> Reply {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|accepted| accepted.to_str().ok());
    let mut reply = match accepted.any(|accepted| accepted.contains("text/html")) {
        true => PageFile::Document.reply(),
        false => reply::text(StatusCode::OK, "text/plain", "Oxcart is running\n"),
    };
    reply.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    reply
}
