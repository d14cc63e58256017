//! Files from web servers.
//!
//! A download that breaks off is resumed, a few times at once and then whenever it is asked for again, as long as the
//! server says that the file is still the same. A token for the hub is sent to the hub alone.
//!
//! Large files come over several connections where the server gives parts of them (`side_by_side`).
//!
//! Invariants: every wait has an end, and a server that sends next to nothing counts as one that stopped. No more is
//! written than was announced, and nothing that the disk has no room for.

use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_gguf::Text;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Proxy, ResponseExt as _, Timeout};

use crate::error::{During, Error};
use crate::os;
use crate::partial::{Expected, Partial};
use crate::side_by_side::Cut;

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
/// Bytes that have to come in that time.
const LEAST_PROGRESS: u64 = 16 << 10;
/// The most of an answer that is not a file.
const MAX_ANSWER: u64 = 16 << 20;
/// The most of a file whose length was not announced.
const MAX_UNANNOUNCED: u64 = 64 << 30;
/// What is left free on a disk.
const RESERVE: u64 = 256 << 20;

/// How the web is reached.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    agent: Agent,
    patience: Duration,
    /// How large files are cut.
    pub(crate) cut: Cut,
    /// A token, and what an address has to begin with to get it.
    token: Option<(String, String)>,
}

impl Web {
    /// With other certificates than the usual ones, or through a proxy, where they are given.
    pub(crate) fn new(certificates: Option<&Path>, proxy: Option<&str>, patience: Duration) -> Web {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(Duration::from_secs(20)))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_send_request(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .user_agent(concat!("oxcart/", env!("CARGO_PKG_VERSION")));
        if let Some(roots) = certificates.and_then(roots_in) {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        if let Some(proxy) = proxy.and_then(|proxy| Proxy::new(proxy).ok()) {
            config = config.proxy(Some(proxy));
        }
        Web { agent: config.build().into(), patience, cut: Cut::default(), token: None }
    }

    /// How long to wait for an answer, or for the next bytes.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// A short answer as text, and the address that it came from at last.
    pub(crate) fn ask(&self, url: &str, accept: &str) -> Result<(String, String), Error> {
        let mut response = self.get(url, 0, None, Some(accept))?;
        check_status(url, response.status())?;
        let from = response.get_uri().to_string();
        let body = response.body_mut().as_reader();
        let mut text = Vec::new();
        let read = Steady::new(body, self.patience).take(MAX_ANSWER + 1).read_to_end(&mut text);
        read.map_err(|error| Error::Server { url: url.to_owned(), reason: error.to_string() })?;
        if text.len() as u64 > MAX_ANSWER {
            return Err(Error::Server { url: url.to_owned(), reason: "the answer is too long".into() });
        }
        let text = String::from_utf8(text)
            .map_err(|_| Error::Server { url: url.to_owned(), reason: "the answer is not text".into() })?;
        Ok((text, from))
    }

    /// How long a file is, if the server says so.
    pub(crate) fn length_of(&self, url: &str) -> Result<Option<u64>, Error> {
        let response = self.agent.head(url).call().map_err(|error| server(url, &error))?;
        check_status(url, response.status())?;
        Ok(number(response.headers(), "content-length"))
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
        let mut is_cut = true;
        loop {
            match self.go_on(url, &mut partial, &mut expected, is_cut, progress) {
                Ok(None) => return partial.finish(&expected),
                // Perhaps the server does not like several at a time.
                Ok(Some(_)) if is_cut && broken == 0 => is_cut = false,
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
        may_be_cut: bool,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Option<String>, Error> {
        let have = partial.len();
        if have > 0 && expected.bytes == Some(have) {
            return Ok(None);
        }
        let known = partial.of();
        let from = if known.is_some() { have } else { 0 };
        let mut response = self.get(url, from, None, None)?;
        // The same address may give another file tomorrow.
        let version = version_of(url, response.headers());
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && known.is_some_and(|known| known == version)
            && range_start(response.headers()) == Some(have);
        if !continues {
            if from > 0 && response.status() != StatusCode::OK {
                response = self.get(url, 0, None, None)?;
            }
            check_status(url, response.status())?;
            partial.restart(&version_of(url, response.headers()))?;
        }
        let gives_parts =
            continues || response.headers().get("accept-ranges").is_some_and(|value| value == "bytes");
        let rest = number(response.headers(), "content-length");
        let total = rest.map(|rest| partial.len().saturating_add(rest)).or(expected.bytes);
        if expected.bytes.is_some_and(|bytes| total != Some(bytes)) {
            let reason =
                format!("it offers {} bytes where {} were announced", show(total), show(expected.bytes));
            return Err(Error::Server { url: url.to_owned(), reason });
        }
        expected.bytes = total;
        let limit = room_for(target_folder(partial), partial.len(), total)?;
        if let Some(total) = total.filter(|total| {
            may_be_cut && gives_parts && self.cut.is_worth_it(total.saturating_sub(partial.len()))
        }) {
            let version = version_of(url, response.headers());
            drop(response);
            return self.fetch_side_by_side(url, &version, partial, total, progress);
        }
        let mut body = Steady::new(response.into_body().into_reader(), self.patience);
        let came = partial.append(&mut body, limit, |done| progress(Step { done, total }))?;
        match came {
            Err(error) => Ok(Some(error.to_string())),
            Ok(()) if total.is_some_and(|total| partial.len() < total) => {
                Ok(Some(format!("the connection ended after {} of {} bytes", partial.len(), show(total))))
            }
            Ok(()) => Ok(None),
        }
    }

    /// Asks for a file from a byte on, or for so many bytes of it.
    pub(crate) fn get(
        &self,
        url: &str,
        from: u64,
        bytes: Option<u64>,
        accept: Option<&str>,
    ) -> Result<Response<ureq::Body>, Error> {
        let mut request = self.agent.get(url);
        request = match bytes {
            Some(bytes) => request.header("range", format!("bytes={from}-{}", from + bytes - 1)),
            None if from > 0 => request.header("range", format!("bytes={from}-")),
            None => request,
        };
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let is_for = |prefix: &str| url.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        if let Some((_, token)) = self.token.as_ref().filter(|(prefix, _)| is_for(prefix)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answered = request.call().map_err(|error| server(url, &error));
        match &answered {
            Ok(response) => tracing::debug!("{url} from byte {from}: {}", response.status()),
            Err(error) => tracing::debug!("{error}"),
        }
        answered
    }
}

/// The certificates in a file, if there are any.
fn roots_in(path: &Path) -> Option<RootCerts> {
    let pem = std::fs::read(path).ok()?;
    let roots: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!roots.is_empty()).then(|| RootCerts::Specific(Arc::new(roots)))
}

fn target_folder(partial: &Partial) -> &Path {
    partial.path().parent().unwrap_or(Path::new("."))
}

/// How long a file may become of which so much is here, and perhaps so much will be.
fn room_for(folder: &Path, have: u64, total: Option<u64>) -> Result<u64, Error> {
    let free = os::free_bytes(folder).unwrap_or(u64::MAX).saturating_sub(RESERVE);
    let most = have.saturating_add(free);
    match total {
        Some(total) if total > most => {
            Err(Error::NoRoom { folder: folder.to_owned(), bytes: total - have, free })
        }
        Some(total) => Ok(total),
        None => Ok(most.min(MAX_UNANNOUNCED)),
    }
}

/// Whether a disk has room for something, before any of it is fetched.
pub(crate) fn check_room(folder: &Path, bytes: u64) -> Result<(), Error> {
    std::fs::create_dir_all(folder).during("create", folder)?;
    room_for(folder, 0, Some(bytes)).map(|_| ())
}

/// A reader that fails when hardly anything comes.
pub(crate) struct Steady<R> {
    from: R,
    patience: Duration,
    /// Since when, and how much has come since.
    since: Instant,
    came: u64,
}

impl<R> Steady<R> {
    pub(crate) fn new(from: R, patience: Duration) -> Steady<R> {
        Steady { from, patience, since: Instant::now(), came: 0 }
    }
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.came += read as u64;
        if self.since.elapsed() > self.patience && read > 0 {
            if self.came < LEAST_PROGRESS {
                let reason = format!("only {} bytes came in {} s", self.came, self.patience.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            (self.since, self.came) = (Instant::now(), 0);
        }
        Ok(read)
    }
}

/// The Hugging Face hub, or something that answers like it.
#[derive(Clone, Debug)]
pub struct Hub {
    pub(crate) web: Web,
    endpoint: String,
}

impl Hub {
    /// The hub that `HF_ENDPOINT` names, or the public one; with the token in `HF_TOKEN`, and the certificates in
    /// `SSL_CERT_FILE`.
    pub fn from_env() -> Hub {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Hub::at(&given("HF_ENDPOINT").unwrap_or("https://huggingface.co".into()), given("HF_TOKEN"))
    }

    /// The same, but where a mirror is given, that.
    pub fn from_env_or(mirror: Option<&str>) -> Hub {
        match mirror {
            Some(mirror) => Hub::at(mirror, std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty())),
            None => Hub::from_env(),
        }
    }

    /// With so many connections for a file, each of which fetches parts of so many bytes.
    pub fn cut(mut self, connections: usize, part: u64) -> Hub {
        self.web.cut = Cut { connections: connections.max(1), part: part.max(1) };
        self
    }

    /// The hub at an address, with a token if one is needed.
    pub fn at(endpoint: &str, token: Option<String>) -> Hub {
        Hub::with_patience(endpoint, token, PATIENCE)
    }

    /// The same, with a time after which a server that sends nothing counts as lost.
    pub fn with_patience(endpoint: &str, token: Option<String>, patience: Duration) -> Hub {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let certificates = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let mut web = Web::new(certificates.as_deref(), None, patience);
        web.token = token.map(|token| (endpoint.clone(), token));
        Hub { web, endpoint }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

fn show(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string())
}

/// Whether a name has no address, as far as the system knows: without a network, that is what it says first. The library for that has no
/// kind of error for it, but the same words everywhere; on Windows it is a number.
fn is_unknown_host(error: &io::Error) -> bool {
    const WINDOWS: RangeInclusive<i32> = 11001..=11004;
    error.raw_os_error().is_some_and(|code| WINDOWS.contains(&code))
        || error.to_string().starts_with("failed to lookup address information")
}

fn server(url: &str, error: &ureq::Error) -> Error {
    let unknown_host = match error {
        ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => is_unknown_host(error),
        _ => false,
    };
    let unreachable = match error {
        _ if unknown_host => true,
        ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
        ),
        _ => false,
    };
    let reason = match error {
        _ if unknown_host => "its address cannot be found".to_owned(),
        // In the system's words, without the library's in front.
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    let (url, reason) = (url.to_owned(), Text::from(reason.as_str()).to_string());
    match unreachable {
        true => Error::Unreachable { url, reason },
        false => Error::Server { url, reason },
    }
}

fn check_status(url: &str, status: StatusCode) -> Result<(), Error> {
    let reason = match status.as_u16() {
        200 => return Ok(()),
        401 | 403 => {
            "not allowed; if the model requires accepting a licence, do that on its page and set HF_TOKEN"
                .into()
        }
        404 => "no such file; check the name".into(),
        429 => "too many requests; try again later".into(),
        500.. => format!("the server failed ({status}); try again later"),
        _ => format!("the server answers {status}"),
    };
    Err(Error::Server { url: url.to_owned(), reason })
}

/// What tells one state of a file from another.
pub(crate) fn version_of(url: &str, headers: &HeaderMap) -> String {
    let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let version = of("x-linked-etag").or(of("etag")).or(of("last-modified")).unwrap_or_default();
    format!("{url}\n{version}\n")
}

pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Where a partial answer starts: `bytes 100-199/200`.
pub(crate) fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?.strip_prefix("bytes ")?;
    range.split('-').next()?.parse().ok()
}
