//! Where pictures come from: a server, asked for one at a time.

use std::path::Path;
use std::time::Duration;

use oxcart_http::Cluster;
use ureq::Agent;

use crate::commands::serve::key_file::all_keys;
use crate::door;
use crate::failure::Failure;

/// How long a server may take.
const TIME: Duration = Duration::from_secs(10);

/// Bytes of a picture, at most.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Source {
    agent: Agent,
    url: String,
    key: Option<String>,
}

impl Source {
    pub(super) fn new(url: &str, key: Option<&str>, file: Option<&Path>) -> Result<Source, Failure> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let shown = url.escape_debug();
            return Err(Failure::Usage(format!("'{shown}' is no address of a server; http://HOST:PORT is")));
        }
        let given: Vec<String> = key.map(str::to_owned).into_iter().collect();
        let key = all_keys(&given, file)?.into_iter().next();
        // The address is the operator's own; a proxy between here and there has no part in it.
        let config =
            Agent::config_builder().timeout_global(Some(TIME)).http_status_as_error(false).proxy(None);
        let url = format!("{}/cluster", url.trim_end_matches('/'));
        Ok(Source { agent: config.build().new_agent(), url, key })
    }

    /// How things are there, or why that cannot be told.
    pub(super) fn look(&self) -> Result<Cluster, String> {
        let mut request = self.agent.get(&self.url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let failed = |error: ureq::Error| format!("{}: {}", self.url, door::visible(&error.to_string()));
        let mut response = request.call().map_err(failed)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec().map_err(failed)?;
        match status {
            200 => serde_json::from_slice(&body)
                .map_err(|error| format!("{} is no picture of a cluster: {error}", self.url)),
            401 => Err(format!("{} asks for a key: --api-key-file, or --api-key", self.url)),
            404 => Err(format!("{} is not there: is it an Oxcart server?", self.url)),
            status => Err(format!("{} answered with {status}", self.url)),
        }
    }
}
