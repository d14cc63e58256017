//! What was said, and files that hold it.
//!
//! Invariant: a file gets its name when all of it is there, and never replaces one that is no conversation.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use oxcart::llm::text::Message;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::limits::MAX_CONVERSATION_BYTES;

/// What tells such files from others, and their version.
const MARK: &str = "oxcart_conversation";
const VERSION: u64 = 1;

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Transcript {
    pub(super) system: Option<String>,
    pub(super) messages: Vec<Message>,
}

impl Transcript {
    /// All messages, with what the model was told beforehand.
    pub(super) fn all(&self) -> Vec<Message> {
        let system = self.system.as_ref().map(|system| Message::new("system", system));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Takes the last message of the user and its answer back.
    pub(super) fn take_back(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|message| message.role == "user")?;
        let message = self.messages[at].content.clone();
        self.messages.truncate(at);
        Some(message)
    }

    /// Writes it to a file.
    pub(super) fn save(&self, path: &Path, model: &str) -> Result<(), Failure> {
        if path.exists() && Transcript::load(path).is_err() {
            return Err(Failure::Usage(format!(
                "{} already exists and is not a saved conversation; choose another name",
                path.display()
            )));
        }
        let messages: Vec<Value> = self
            .messages
            .iter()
            .map(|message| json!({ "role": message.role, "content": message.content }))
            .collect();
        let file = json!({ MARK: VERSION, "model": model, "system": self.system, "messages": messages });
        let unwritable =
            |error: std::io::Error| Failure::Usage(format!("cannot write {}: {error}", path.display()));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        // A new file: whatever has this name already is not ours.
        let mut new = File::create_new(&part).map_err(unwritable)?;
        let written = new.write_all(format!("{file:#}\n").as_bytes()).and_then(|()| fs::rename(&part, path));
        written.map_err(|error| {
            // The first error is what matters.
            let _ = fs::remove_file(&part);
            unwritable(error)
        })
    }

    /// Reads one from a file.
    pub(super) fn load(path: &Path) -> Result<Transcript, Failure> {
        let wrong = |why: &str| Failure::Usage(format!("{}: {why}", path.display()));
        let mut text = String::new();
        let file = File::open(path).map_err(|error| wrong(&error.to_string()))?;
        file.take(MAX_CONVERSATION_BYTES)
            .read_to_string(&mut text)
            .map_err(|error| wrong(&error.to_string()))?;
        let file: Value = serde_json::from_str(&text)
            .map_err(|error| wrong(&format!("this is not a saved conversation: {error}")))?;
        match file[MARK].as_u64() {
            Some(VERSION) => {}
            Some(other) => {
                return Err(wrong(&format!("saved by a newer Oxcart (format {other})")));
            }
            None => return Err(wrong("this is not a saved conversation")),
        }
        let message = |message: &Value| {
            let text = |key: &str| message[key].as_str().map(str::to_owned);
            Some(Message::new(text("role")?, text("content")?))
        };
        let messages = file["messages"].as_array().and_then(|all| all.iter().map(message).collect());
        let messages: Vec<Message> = messages.ok_or_else(|| wrong("a message is damaged"))?;
        Ok(Transcript { system: file["system"].as_str().map(str::to_owned), messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_can_be_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let said = Transcript {
            system: Some("be brief".into()),
            messages: vec![Message::new("user", "a\n\"b\""), Message::new("assistant", "ä")],
        };
        let other = folder.path().join("talk.json.part");
        fs::write(&other, "mine").unwrap();
        said.save(&path, "tiny").unwrap();
        said.save(&path, "tiny").unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), said);
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.json");
        for other in ["{\"a\": 1}", "text", "{\"oxcart_conversation\": 9}"] {
            fs::write(&path, other).unwrap();
            assert!(Transcript::default().save(&path, "tiny").is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), other);
            assert!(Transcript::load(&path).is_err());
        }
    }
}
