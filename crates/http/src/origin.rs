//! Which web pages may use a server: by default none but its own.
//!
//! A browser sends requests for any page that it shows. It says which one in `Origin`, and a page of another machine can pretend
//! to be of the same one by a name that it lets point here (DNS rebinding), which `Host` then shows. What a page merely shows, such as an
//! image, is asked for without `Origin`; then `Sec-Fetch-Site` says whether it is for a page of another origin.
//!
//! Invariant: without API keys, a request is answered only if its `Host` is an address, a name of this machine, or one that
//! the operator named. A request with an `Origin` is answered only if that is the `Host` itself, or allowed by the operator; one without, but
//! for a page of another origin, only if it asks for what is open to all.

use std::net::IpAddr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HOST, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method};

use crate::error::{ApiError, Kind};

/// What the operator allows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// Names by which clients may call this machine.
    pub(crate) hosts: Vec<String>,
    /// Pages of which origins may use the server; `*` for all.
    pub(crate) allowed: Vec<String>,
}

/// A name without its port. What has something else behind the name is no name at all.
fn without_port(host: &str) -> &str {
    let (name, rest) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some(parts) => parts,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |rest: &str| {
        rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if rest.is_empty() || is_port(rest) { name } else { host }
}

impl Origins {
    /// The origin that a response is for, if it is for a page of another origin; an error if the request is to be refused. What is open may be
    /// linked to from anywhere.
    pub(crate) fn check(
        &self,
        headers: &HeaderMap,
        has_keys: bool,
        is_open: bool,
    ) -> Result<Option<HeaderValue>, ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().map_err(|_| ApiError::bad("the Host header is not text"))?,
            (None, _) => return Err(ApiError::bad("the request has no Host header")),
            _ => return Err(ApiError::bad("the request has several Host headers")),
        };
        // With keys, a page would have to know one.
        if !has_keys && !self.is_known(without_port(host)) {
            return Err(ApiError::new(
                Kind::Forbidden,
                format!(
                    "{:?} is not a name that this server answers to; --allow-host adds one",
                    without_port(host)
                ),
            ));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = match (origins.next(), origins.next()) {
            (None, _) if is_open || !is_for_another_site(headers) || self.allows("*") => return Ok(None),
            (None, _) => {
                let message = "pages of other origins may not use this server; --cors allows them";
                return Err(ApiError::new(Kind::Forbidden, message));
            }
            (Some(origin), None) => origin,
            _ => return Err(ApiError::bad("the request has several Origin headers")),
        };
        let text = origin.to_str().unwrap_or_default();
        let is_own = text.split_once("://").is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && authority.eq_ignore_ascii_case(host)
        });
        if is_own {
            return Ok(None);
        }
        match self.allows(text) {
            true => Ok(Some(origin.clone())),
            false => Err(ApiError::new(
                Kind::Forbidden,
                format!("pages of {text:?} may not use this server; --cors allows them"),
            )),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }

    fn is_known(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || name.to_ascii_lowercase().ends_with(".localhost")
            || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }
}

/// Whether a browser says that it asks for a page of another origin. Programs, and browsers for what their users typed, do not.
fn is_for_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Whether a browser asks what it may ask.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key("access-control-request-method")
}

/// Tells the browser that the page may see the response.
pub(crate) fn allow(origin: HeaderValue, is_preflight: bool, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    // It may differ by something else, too.
    headers.append(VARY, HeaderValue::from_static("origin"));
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        // Libraries send headers of their own. The star is for all but this one; no cookies are meant by any.
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(origins: &Origins, host: &str, origin: Option<&str>, keys: bool) -> Result<bool, Kind> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        origins.check(&headers, keys, false).map(|allowed| allowed.is_some()).map_err(|error| error.kind)
    }

    #[test]
    fn names_of_others_are_refused() {
        let plain = Origins::default();
        for own in ["localhost:8080", "127.0.0.1:1", "[::1]:8080", "10.1.2.3", "a.localhost", "LOCALHOST."] {
            assert_eq!(check(&plain, own, None, false), Ok(false), "{own}");
        }
        for foreign in ["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", ""] {
            assert_eq!(check(&plain, foreign, None, false), Err(Kind::Forbidden), "{foreign}");
            assert_eq!(check(&plain, foreign, None, true), Ok(false), "{foreign} with a key");
        }
        let named = Origins { hosts: vec!["box.lan".into()], allowed: Vec::new() };
        assert_eq!(check(&named, "Box.lan:80", None, false), Ok(false));
    }

    #[test]
    fn pages_of_others_are_refused() {
        let plain = Origins::default();
        assert_eq!(check(&plain, "localhost:8080", Some("http://localhost:8080"), false), Ok(false));
        for foreign in ["http://localhost:3000", "https://evil.example", "null", "", "file://localhost:8080"]
        {
            for keys in [false, true] {
                assert_eq!(
                    check(&plain, "localhost:8080", Some(foreign), keys),
                    Err(Kind::Forbidden),
                    "{foreign}"
                );
            }
        }
        let open = Origins { hosts: Vec::new(), allowed: vec!["http://localhost:3000".into()] };
        assert_eq!(check(&open, "localhost:8080", Some("http://localhost:3000"), false), Ok(true));
        assert_eq!(
            check(&open, "localhost:8080", Some("http://localhost:3001"), false),
            Err(Kind::Forbidden)
        );
    }

    #[test]
    fn what_pages_of_others_show_is_refused() {
        let check = |origins: &Origins, site: &'static str, origin: Option<&'static str>, is_open| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:8080"));
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            if let Some(origin) = origin {
                headers.insert(ORIGIN, HeaderValue::from_static(origin));
            }
            origins.check(&headers, false, is_open).map(|_| ()).map_err(|error| error.kind)
        };
        let plain = Origins::default();
        for site in ["cross-site", "same-site"] {
            assert_eq!(check(&plain, site, None, false), Err(Kind::Forbidden), "{site}");
            assert_eq!(check(&plain, site, None, true), Ok(()), "a link to the page");
            let all = Origins { hosts: Vec::new(), allowed: vec!["*".into()] };
            assert_eq!(check(&all, site, None, false), Ok(()), "{site}");
        }
        for site in ["none", "same-origin", "", "unheard-of"] {
            assert_eq!(check(&plain, site, None, false), Ok(()), "{site}");
        }
        let one = Origins { hosts: Vec::new(), allowed: vec!["http://localhost:3000".into()] };
        assert_eq!(check(&one, "same-site", Some("http://localhost:3000"), false), Ok(()));
        assert_eq!(check(&one, "same-site", None, false), Err(Kind::Forbidden));
    }

    #[test]
    fn what_is_for_one_page_may_differ_by_more() {
        let mut headers = HeaderMap::new();
        headers.insert(VARY, HeaderValue::from_static("accept"));
        allow(HeaderValue::from_static("http://localhost:3000"), false, &mut headers);
        let by: Vec<&str> = headers.get_all(VARY).iter().map(|by| by.to_str().unwrap()).collect();
        assert_eq!(by, ["accept", "origin"]);
    }

    #[test]
    fn there_is_exactly_one_host() {
        let mut headers = HeaderMap::new();
        assert_eq!(Origins::default().check(&headers, true, false).unwrap_err().kind, Kind::BadRequest);
        headers.append(HOST, "localhost".parse().unwrap());
        headers.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(Origins::default().check(&headers, true, false).unwrap_err().kind, Kind::BadRequest);
    }
}
