//! Where pictures come from: a server or a worker, asked for one at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use oxcart::backend::{Device, Registry};
use oxcart::rpc::client::RemoteRegistry;
use oxcart_http::{Cluster, DeviceMemory, Fingerprint, Machine};
use ureq::Agent;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

use super::picture::Subject;
use super::pinned::PinnedConnector;
use crate::commands::serve::key_file::all_keys;
use crate::door;
use crate::failure::Failure;
use crate::limits::{MAX_PICTURE_BYTES, PICTURE_TIME};
use crate::workers::{self, Heartbeat, Listed, WorkerAt};

/// What a server wants of those who look, and by what it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Access<'a> {
    pub(super) key: Option<&'a str>,
    pub(super) key_file: Option<&'a Path>,
    /// Of its certificate.
    pub(super) fingerprint: Option<Fingerprint>,
}

/// What is looked at.
#[derive(Debug)]
pub(super) enum Source {
    Server(Server),
    Worker(Worker),
}

impl Source {
    /// A server by its URL, or a worker by its address.
    pub(super) fn new(place: &str, access: Access<'_>) -> Result<Source, Failure> {
        if access.fingerprint.is_some() && !place.starts_with("https://") {
            return Err(Failure::Usage("--fingerprint needs an address that begins with https://".into()));
        }
        if place.starts_with("http://") || place.starts_with("https://") {
            return Ok(Source::Server(Server::new(place, access)?));
        }
        let endpoint = workers::endpoint(place).map_err(|error| {
            let shown = place.escape_debug();
            Failure::Usage(format!(
                "'{shown}' is neither http://HOST:PORT nor HOST:PORT of a worker: {error}"
            ))
        })?;
        if access.key.is_some() || access.key_file.is_some() {
            return Err(Failure::Usage(
                "workers need no API key; for a server, write http://HOST:PORT".into(),
            ));
        }
        let worker = Listed::meant_by(&endpoint, &workers::machines_for(&[WorkerAt::At(endpoint.clone())])?)?;
        Ok(Source::Worker(Worker { worker, connected: None, since: Instant::now() }))
    }

    /// What is looked at, in words.
    pub(super) fn subject(&self) -> Subject {
        match self {
            Source::Server(server) => Subject::Server(server.url.clone()),
            Source::Worker(worker) => Subject::Worker(worker.worker.name().to_owned()),
        }
    }

    /// How things are there, or why that cannot be told.
    pub(super) fn look(&mut self) -> Result<Cluster, String> {
        match self {
            Source::Server(server) => server.look(),
            Source::Worker(worker) => worker.look(),
        }
    }
}

/// A worker, which lends devices and knows nothing of models.
#[derive(Debug)]
pub(super) struct Worker {
    worker: Listed,
    /// None before the first look, and after a failure.
    connected: Option<Arc<RemoteRegistry>>,
    since: Instant,
}

impl Worker {
    fn look(&mut self) -> Result<Cluster, String> {
        let looked = self.devices();
        if looked.is_err() {
            self.connected = None;
        }
        let devices = looked?;
        let address = self.connected.as_ref().map(|registry| registry.endpoint().to_owned());
        let name = self.worker.name().to_owned();
        Ok(Cluster {
            // A worker says neither which version it is nor how long it has been running: these are what looks at it.
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.since.elapsed().as_secs_f64(),
            machines: vec![Machine { name, address, devices, ..Machine::default() }],
            models: Vec::new(),
        })
    }

    fn devices(&mut self) -> Result<Vec<DeviceMemory>, String> {
        let registry = match &self.connected {
            Some(connected) => Arc::clone(connected),
            None => {
                let made = self
                    .worker
                    .connect(false, Heartbeat::default())
                    .map_err(|error| door::visible(&error))?;
                self.connected = Some(Arc::clone(&made));
                made
            }
        };
        let memory = |device: &Arc<dyn Device>| -> Result<DeviceMemory, String> {
            let memory = device.memory().map_err(|error| door::visible(&error.to_string()))?;
            Ok(DeviceMemory {
                device: device.name().to_owned(),
                description: device.description().to_owned(),
                total_bytes: memory.total as u64,
                free_bytes: memory.free as u64,
            })
        };
        registry.devices().iter().map(memory).collect()
    }
}

#[derive(Debug)]
pub(super) struct Server {
    agent: Agent,
    /// As it was given.
    url: String,
    key: Option<String>,
    /// Whether its certificate is known by its fingerprint.
    is_pinned: bool,
}

impl Server {
    fn new(url: &str, access: Access<'_>) -> Result<Server, Failure> {
        let given: Vec<String> = access.key.map(str::to_owned).into_iter().collect();
        let key = all_keys(&given, access.key_file)?.into_iter().next();
        // The address is the operator's own; a proxy between here and there has no part in it.
        let config = Agent::config_builder()
            .timeout_global(Some(PICTURE_TIME))
            .http_status_as_error(false)
            .proxy(None)
            // Who has the certificate of the fingerprint has it at this place alone.
            .max_redirects(if access.fingerprint.is_some() { 0 } else { 10 })
            .build();
        let agent = match access.fingerprint {
            None => config.new_agent(),
            Some(fingerprint) => {
                let tls = fingerprint.client_config();
                let tls = tls.map_err(|error| Failure::Machine(format!("TLS cannot be used: {error}")))?;
                let connector = ().chain(TcpConnector::default()).chain(PinnedConnector(tls));
                Agent::with_parts(config, connector, DefaultResolver::default())
            }
        };
        Ok(Server { agent, url: url.to_owned(), key, is_pinned: access.fingerprint.is_some() })
    }

    fn look(&self) -> Result<Cluster, String> {
        let url = format!("{}/cluster", self.url.trim_end_matches('/'));
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let failed = |error: ureq::Error| {
            // In the system's words, without the library's in front.
            let why = match error {
                ureq::Error::Io(error) => error.to_string(),
                error => error.to_string(),
            };
            let advice = match url.starts_with("https://") && why.contains("certificate") {
                true if self.is_pinned => "is it the server that you mean?",
                true => "--fingerprint trusts the certificate that oxcart serve --tls has made",
                false => "is oxcart serve running there?",
            };
            format!("cannot read {url}: {}; {advice}", door::visible(&why))
        };
        let mut response = request.call().map_err(failed)?;
        let status = response.status().as_u16();
        let body =
            response.body_mut().with_config().limit(MAX_PICTURE_BYTES).read_to_vec().map_err(failed)?;
        match status {
            200 => serde_json::from_slice(&body)
                .map_err(|error| format!("{url} did not answer as oxcart serve does: {error}")),
            401 => Err(format!("{url} needs an API key: use --api-key-file or --api-key")),
            404 => Err(format!("{url} was not found: is it an Oxcart server?")),
            status => Err(match reason(&body) {
                Some(reason) => format!("{url} answered with {status}: {reason}"),
                None => format!("{url} answered with {status}"),
            }),
        }
    }
}

/// Why a server refuses, in its own words.
fn reason(body: &[u8]) -> Option<String> {
    let told: serde_json::Value = serde_json::from_slice(body).ok()?;
    told["error"]["message"].as_str().map(door::visible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    /// What is said of a server that answers with that.
    fn looked(head: &str, body: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of the request: what is closed with something unread loses what was sent.
            let asked = BufReader::new(&stream).lines();
            assert!(asked.map_while(Result::ok).any(|line| line.is_empty()));
            // Who has had enough closes the connection.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        });
        let told = Source::new(&url, Access::default()).unwrap().look().unwrap_err();
        server.join().unwrap();
        told
    }

    #[test]
    fn a_picture_without_end_is_not_read_to_it() {
        let endless = vec![b' '; MAX_PICTURE_BYTES as usize + 1];
        let told = looked("200 OK", endless);
        assert!(!told.contains("did not answer as"), "{told}");
        let told = looked("200 OK", vec![b' '; 1000]);
        assert!(told.contains("did not answer as"), "{told}");
    }

    #[test]
    fn a_refusal_says_why() {
        let body = br#"{"error":{"message":"not\u001b[31m here"}}"#.to_vec();
        let told = looked("403 Forbidden", body);
        assert!(told.contains("answered with 403: not"), "{told}");
        assert!(!told.contains('\x1b'), "{told}");
        assert!(looked("500 Oh", b"no".to_vec()).ends_with("answered with 500"));
    }
}
