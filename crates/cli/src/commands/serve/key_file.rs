//! API keys from a file, one per line.
//!
//! Invariant: no more than a bounded number of bytes is read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use oxcart::gguf::Text;

use crate::failure::Failure;
use crate::limits::MAX_KEY_FILE_BYTES;

/// The keys of the command line and of the file.
pub(crate) fn all_keys(given: &[String], file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let mut keys = given.to_vec();
    if let Some(path) = file {
        let from_file = read(path)?;
        if from_file.is_empty() {
            return Err(Failure::Usage(format!("{} has no keys in it", shown(path))));
        }
        keys.extend(from_file);
    }
    Ok(keys)
}

fn shown(path: &Path) -> String {
    Text::new(path.as_os_str().as_encoded_bytes()).to_string()
}

fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let unreadable = |error: std::io::Error| Failure::Usage(format!("cannot read {}: {error}", shown(path)));
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_KEY_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_KEY_FILE_BYTES {
        return Err(Failure::Usage(format!("{} has more than {MAX_KEY_FILE_BYTES} bytes", shown(path))));
    }
    let lines = text.lines().map(str::trim);
    Ok(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_per_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "# mine\nabcdef0123456789\n\n  0123456789abcdef  \r\n").unwrap();
        let keys = all_keys(&["given-on-the-line".into()], Some(&path)).unwrap();
        assert_eq!(keys, ["given-on-the-line", "abcdef0123456789", "0123456789abcdef"]);
        std::fs::write(&path, "# none\n").unwrap();
        assert!(all_keys(&[], Some(&path)).is_err());
        assert!(all_keys(&[], Some(&folder.path().join("nothing"))).is_err());
        assert!(all_keys(&[], None).unwrap().is_empty());
    }
}
