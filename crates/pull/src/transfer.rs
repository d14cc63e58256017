//! Files from web servers.
//!
//! A download that breaks off is resumed, a few times at once and then whenever it is asked for again, as long as the
//! server says that the file is still the same. A token for the hub is sent to the hub alone.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode};

use crate::error::Error;
use crate::partial::{Expected, Partial};

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes that are here.
    pub done: u64,
    /// Bytes there will be, where that is known.
    pub total: Option<u64>,
}

/// How often a download that breaks off is taken up again, as long as it gets somewhere.
const TRIES: usize = 5;
/// How long to wait for an answer, or for the next bytes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most of an answer that is not a file.
const MAX_ANSWER: u64 = 16 << 20;

/// The Hugging Face hub, or something that answers like it.
#[derive(Clone, Debug)]
pub struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

impl Hub {
    /// The hub that `HF_ENDPOINT` names, or the public one; with the token in `HF_TOKEN`.
    pub fn from_env() -> Hub {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Hub::at(&given("HF_ENDPOINT").unwrap_or("https://huggingface.co".into()), given("HF_TOKEN"))
    }

    /// The hub at an address, with a token if one is needed.
    pub fn at(endpoint: &str, token: Option<String>) -> Hub {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_recv_body(None)
            .user_agent(concat!("oxcart/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Hub { agent, endpoint: endpoint.trim_end_matches('/').to_owned(), token }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn fetch_url(
        &self,
        url: &str,
        target: &Path,
        progress: &mut dyn FnMut(Step),
    ) -> Result<PathBuf, Error> {
        self.fetch_file(url, target, Expected::default(), progress)
    }

    /// A short answer as text.
    pub(crate) fn ask(&self, url: &str) -> Result<String, Error> {
        let mut response = self.get(url, 0)?;
        check_status(url, response.status())?;
        let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_string();
        body.map_err(|error| server(url, &error))
    }

    /// Fetches a file, or the rest of it.
    pub(crate) fn fetch_file(
        &self,
        url: &str,
        target: &Path,
        mut expected: Expected,
        progress: &mut dyn FnMut(Step),
    ) -> Result<PathBuf, Error> {
        let mut partial = Partial::open(target)?;
        let (mut broken, mut before) = (0, partial.len());
        loop {
            match self.go_on(url, &mut partial, &mut expected, progress) {
                Ok(None) => return partial.finish(&expected),
                Ok(Some(_)) if partial.len() > before && broken + 1 < TRIES => broken += 1,
                Ok(Some(reason)) => return Err(Error::Server { url: url.to_owned(), reason }),
                Err(error) => return Err(error),
            }
            before = partial.len();
        }
    }

    /// Fetches what is missing. `Some` says why the connection broke off.
    fn go_on(
        &self,
        url: &str,
        partial: &mut Partial,
        expected: &mut Expected,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Option<String>, Error> {
        let have = partial.len();
        if have > 0 && expected.bytes == Some(have) {
            return Ok(None);
        }
        let known = partial.of();
        let mut response = self.get(url, if known.is_some() { have } else { 0 })?;
        // The same address may give another file tomorrow.
        let version = version_of(url, response.headers());
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && known.is_some_and(|known| known == version)
            && range_start(response.headers()) == Some(have);
        if !continues {
            if response.status() != StatusCode::OK {
                response = self.get(url, 0)?;
            }
            check_status(url, response.status())?;
            partial.restart(&version_of(url, response.headers()))?;
        }
        let rest = number(response.headers(), "content-length");
        let total = rest.map(|rest| partial.len() + rest).or(expected.bytes);
        if expected.bytes.is_some_and(|bytes| total != Some(bytes)) {
            let reason =
                format!("it offers {} bytes where {} were announced", show(total), show(expected.bytes));
            return Err(Error::Server { url: url.to_owned(), reason });
        }
        expected.bytes = total;
        let mut body = response.into_body().into_reader();
        let came =
            partial.append(&mut body as &mut dyn Read, total, |done| progress(Step { done, total }))?;
        match came {
            Err(error) => Ok(Some(error.to_string())),
            Ok(()) if total.is_some_and(|total| partial.len() < total) => {
                Ok(Some(format!("the connection ended after {} of {} bytes", partial.len(), show(total))))
            }
            Ok(()) => Ok(None),
        }
    }

    fn get(&self, url: &str, from: u64) -> Result<Response<ureq::Body>, Error> {
        let mut request = self.agent.get(url);
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        let is_hub = url.strip_prefix(&self.endpoint).is_some_and(|rest| rest.starts_with('/'));
        if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| server(url, &error))
    }
}

fn show(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string())
}

fn server(url: &str, error: &ureq::Error) -> Error {
    Error::Server { url: url.to_owned(), reason: error.to_string() }
}

fn check_status(url: &str, status: StatusCode) -> Result<(), Error> {
    let reason = match status.as_u16() {
        200 => return Ok(()),
        401 | 403 => {
            "not allowed; if the model asks for a licence, accept it on its page and set HF_TOKEN".into()
        }
        404 => "there is no such file, check the name".into(),
        429 => "asked too often, try again later".into(),
        500.. => format!("the server fails ({status}), try again later"),
        _ => format!("the server answers {status}"),
    };
    Err(Error::Server { url: url.to_owned(), reason })
}

/// What tells one state of a file from another.
fn version_of(url: &str, headers: &HeaderMap) -> String {
    let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let version = of("x-linked-etag").or(of("etag")).or(of("last-modified")).unwrap_or_default();
    format!("{url}\n{version}\n")
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Where a partial answer starts: `bytes 100-199/200`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?.strip_prefix("bytes ")?;
    range.split('-').next()?.parse().ok()
}
