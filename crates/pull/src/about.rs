//! What is known of a model before it is fetched: how large it is, under which licence, how long a text it reads.

use oxcart_gguf::Text;
use serde_json::Value;

use crate::error::Error;
use crate::hub::Entry;
use crate::name::Name;
use crate::store::Store;
use crate::transfer::Hub;

/// What is known of a model before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// Its files; of several, the first first. Empty where they have no names of their own.
    pub files: Vec<String>,
    /// Their length together, if that is told.
    pub bytes: Option<u64>,
    /// Its licence, as the one who offers it names it.
    pub licence: Option<String>,
    /// Tokens that it was trained for.
    pub context: Option<u64>,
}

impl Store {
    /// Finds out about a model without fetching it.
    pub fn look_up(&self, name: &Name, hub: &Hub) -> Result<About, Error> {
        match name {
            Name::Path(path) => {
                Ok(About { bytes: std::fs::metadata(path).ok().map(|about| about.len()), ..About::default() })
            }
            Name::Known(known) => Ok(About {
                files: vec![known.file.to_owned()],
                bytes: Some(known.bytes),
                licence: Some(known.licence.to_owned()),
                context: Some(known.context),
            }),
            Name::Url(url) => Ok(About { bytes: hub.web.length_of(url)?, ..About::default() }),
            Name::Hub { repository, file } => {
                let chosen = hub.files_of(repository, file.as_deref())?;
                let bytes = Entry::bytes_of(&chosen);
                let files = chosen.into_iter().map(|entry| entry.path).collect();
                // A mirror need not know more than files.
                let card = hub.card_of(repository).unwrap_or_default();
                Ok(About { files, bytes: Some(bytes), ..read_card(&card) })
            }
        }
    }
}

/// What the hub says of a repository.
fn read_card(json: &str) -> About {
    let card: Value = serde_json::from_str(json).unwrap_or_default();
    let tagged = || {
        let tags = card.get("tags")?.as_array()?.iter();
        tags.filter_map(Value::as_str).find_map(|tag| tag.strip_prefix("license:"))
    };
    let named = |key: &str| card.pointer(key).and_then(Value::as_str);
    // Some name their own licence beside the word that stands for it.
    let licence = named("/cardData/license_name").or(named("/cardData/license")).or_else(tagged);
    About {
        licence: licence.map(|licence| Text::from(licence).to_string()),
        context: card.pointer("/gguf/context_length").and_then(Value::as_u64),
        ..About::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read() {
        let card = r#"{"cardData":{"license":"apache-2.0"},"gguf":{"context_length":40960}}"#;
        let about = read_card(card);
        assert_eq!((about.licence.as_deref(), about.context), (Some("apache-2.0"), Some(40960)));
        let about = read_card(r#"{"tags":["gguf","license:mit"]}"#);
        assert_eq!((about.licence.as_deref(), about.context), (Some("mit"), None));
        assert_eq!(read_card("<html>"), About::default());
    }
}
