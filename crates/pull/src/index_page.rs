//! Pages of Python package indexes: which files they offer, where, and with which digest.
//!
//! Two forms are read, the one for programs (JSON) and the one for browsers (HTML), of which only links matter.
//!
//! Invariant: reading takes time in proportion to the page, whatever is in it.

use serde_json::Value;

/// A file that a page offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its name, which is the last part of its address.
    pub(crate) file: String,
    /// Where it is.
    pub(crate) url: String,
    /// Its SHA-256, where the page tells.
    pub(crate) sha256: Option<String>,
}

/// The files that a page at an address offers.
pub(crate) fn read(page: &str, base: &str) -> Vec<Link> {
    match serde_json::from_str::<Value>(page) {
        Ok(json) => read_json(&json, base),
        Err(_) => read_html(page, base),
    }
}

fn read_json(json: &Value, base: &str) -> Vec<Link> {
    let files = json.get("files").and_then(Value::as_array);
    let link = |file: &Value| {
        let url = join(base, file.get("url")?.as_str()?)?;
        let sha256 = file.pointer("/hashes/sha256").and_then(Value::as_str).map(str::to_owned);
        Some(Link { file: file.get("filename")?.as_str()?.to_owned(), url, sha256 })
    };
    files.into_iter().flatten().filter_map(link).collect()
}

fn read_html(page: &str, base: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for tag in page.split('<').filter_map(|rest| rest.strip_prefix(['a', 'A'])) {
        let tag = tag.split('>').next().unwrap_or_default();
        let target = if tag.starts_with(char::is_whitespace) { attribute(tag, "href") } else { None };
        let Some(target) = target else { continue };
        let target = target.replace("&amp;", "&");
        let (path, fragment) = target.split_once('#').unwrap_or((&target, ""));
        let Some(url) = join(base, path) else { continue };
        let sha256 = fragment.split('&').find_map(|part| part.strip_prefix("sha256=")).map(str::to_owned);
        let file =
            path.split('?').next().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned();
        if !file.is_empty() {
            links.push(Link { file, url, sha256 });
        }
    }
    links
}

/// The value of an attribute of a tag.
fn attribute<'t>(tag: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = tag.split_once(name)?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let quote = rest.chars().next()?;
    match quote {
        '"' | '\'' => rest[1..].split(quote).next(),
        _ => rest.split(char::is_whitespace).next(),
    }
}

/// An address as a page at `base` means it; `None` for anything but the web.
fn join(base: &str, target: &str) -> Option<String> {
    let is_web = |url: &str| url.starts_with("https://") || url.starts_with("http://");
    if is_web(target) {
        return Some(target.to_owned());
    }
    if target.contains("://") || !is_web(base) {
        return None;
    }
    let host_end = base.find("://")? + 3;
    let path_start = base[host_end..].find('/').map_or(base.len(), |at| host_end + at);
    let (root, path) = base.split_at(path_start);
    if let Some(rest) = target.strip_prefix("//") {
        return Some(format!("{}{rest}", &base[..host_end]));
    }
    if target.starts_with('/') {
        return Some(format!("{root}{target}"));
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').skip(1).collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(format!("{root}/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let want =
            |url: &str| Link { file: "a-1-py3.whl".into(), url: url.into(), sha256: Some("ab".into()) };
        let json = r#"{"files":[{"filename":"a-1-py3.whl","url":"https://f/a-1-py3.whl","hashes":{"sha256":"ab"}},{"url":1}]}"#;
        assert_eq!(read(json, "https://i/simple/a/"), [want("https://f/a-1-py3.whl")]);
        let html = "<!DOCTYPE html><h1>a</h1><A class=x href='../../p/a-1-py3.whl#sha256=ab'>a</A><a>no</a><abbr href=x>";
        assert_eq!(read(html, "https://i/simple/a/"), [want("https://i/p/a-1-py3.whl")]);
    }

    #[test]
    fn addresses_are_joined() {
        let base = "https://host:1/simple/a/?x=/y";
        for (target, want) in [
            ("https://o/f", Some("https://o/f")),
            ("/f", Some("https://host:1/f")),
            ("//o/f", Some("https://o/f")),
            ("f", Some("https://host:1/simple/a/f")),
            ("./f?q=1", Some("https://host:1/simple/a/f?q=1")),
            ("../../../../f", Some("https://host:1/f")),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(join(base, target).as_deref(), want, "{target}");
        }
        assert_eq!(join("https://host", "f").as_deref(), Some("https://host/f"));
    }

    #[test]
    fn odd_pages_offer_nothing() {
        for page in [
            "",
            "<a",
            "<a href=",
            "<a href=\"",
            "[]",
            "{\"files\":3}",
            "<a href='ftp://x/y'>",
            "\u{feff}<é href=é>",
        ] {
            assert_eq!(read(page, "https://i/"), [], "{page}");
        }
    }
}
