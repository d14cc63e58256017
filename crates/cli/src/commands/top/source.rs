//! Where pictures come from: a server, asked for one at a time.

use std::path::Path;

use oxcart_http::Cluster;
use ureq::Agent;

use crate::commands::serve::key_file::all_keys;
use crate::door;
use crate::failure::Failure;
use crate::limits::{MAX_PICTURE_BYTES, PICTURE_TIME};

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
        let config = Agent::config_builder()
            .timeout_global(Some(PICTURE_TIME))
            .http_status_as_error(false)
            .proxy(None);
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
        let body =
            response.body_mut().with_config().limit(MAX_PICTURE_BYTES).read_to_vec().map_err(failed)?;
        match status {
            200 => serde_json::from_slice(&body)
                .map_err(|error| format!("{} is no picture of a cluster: {error}", self.url)),
            401 => Err(format!("{} asks for a key: --api-key-file, or --api-key", self.url)),
            404 => Err(format!("{} is not there: is it an Oxcart server?", self.url)),
            status => Err(match reason(&body) {
                Some(reason) => format!("{} answered with {status}: {reason}", self.url),
                None => format!("{} answered with {status}", self.url),
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
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    /// What is said of a server that answers with that.
    fn looked(head: &str, body: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let read = stream.read(&mut [0; 4096]).unwrap();
            assert!(read > 0);
            // Who has had enough closes the connection.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        });
        let told = Source::new(&url, None, None).unwrap().look().unwrap_err();
        server.join().unwrap();
        told
    }

    #[test]
    fn a_picture_without_end_is_not_read_to_it() {
        let endless = vec![b' '; MAX_PICTURE_BYTES as usize + 1];
        let told = looked("200 OK", endless);
        assert!(!told.contains("is no picture"), "{told}");
        let told = looked("200 OK", vec![b' '; 1000]);
        assert!(told.contains("is no picture"), "{told}");
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
