//! What the metadata and the tensor table of a model add up to. Both renderings are made from this.
//!
//! Nothing here fails: metadata that is missing or of an unexpected type is simply not reported. Nothing here grows with
//! the file either: texts are borrowed, and lists have limits.

use std::path::Path;

use oxcart::gguf::limits::MAX_KEY_BYTES;
use oxcart::gguf::{Entry, Format, GgufSet, Metadata, Text};
use oxcart::tensor::DType;

use crate::limits::MAX_LAYERS;
use oxcart::llm::file_type::FileType;

/// Everything worth telling about a model.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    pub(crate) model: &'a GgufSet,
    pub(crate) format: Format,
    pub(crate) files: Vec<File<'a>>,
    pub(crate) name: Option<Text<'a>>,
    pub(crate) organization: Option<Text<'a>>,
    pub(crate) license: Option<Text<'a>>,
    pub(crate) architecture: Option<Text<'a>>,
    pub(crate) size_label: Option<Text<'a>>,
    /// By `general.file_type`, or else the type that takes most bytes.
    pub(crate) quantization: Option<&'static str>,
    /// Those of [`SIZES`] that the file gives.
    pub(crate) sizes: Vec<(&'static Size, Integers)>,
    pub(crate) tokenizer: Option<Tokenizer<'a>>,
    /// Largest share first.
    pub(crate) types: Vec<Share>,
    pub(crate) total: Total,
}

/// One file of the model.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub(crate) path: &'a Path,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
}

/// What tensors add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Total {
    pub(crate) tensors: u64,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
}

/// What the tensors of one type add up to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) dtype: DType,
    pub(crate) total: Total,
}

/// A size that architectures have.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) label: &'static str,
    pub(crate) json: &'static str,
    /// Follows the name of the architecture and a dot.
    key: &'static str,
}

pub(crate) const SIZES: [Size; 10] = [
    Size { label: "context length", json: "context_length", key: "context_length" },
    Size { label: "layers", json: "layers", key: "block_count" },
    Size { label: "embedding length", json: "embedding_length", key: "embedding_length" },
    Size { label: "feed-forward length", json: "feed_forward_length", key: "feed_forward_length" },
    Size { label: "attention heads", json: "heads", key: "attention.head_count" },
    Size { label: "key/value heads", json: "kv_heads", key: "attention.head_count_kv" },
    Size { label: "sliding window", json: "sliding_window", key: "attention.sliding_window" },
    Size { label: "experts", json: "experts", key: "expert_count" },
    Size { label: "experts used", json: "experts_used", key: "expert_used_count" },
    Size { label: "vocabulary", json: "vocabulary", key: "vocab_size" },
];

/// A number, or one for each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Integers {
    One(i128),
    PerLayer(Vec<i128>),
    /// How many; more than [`MAX_LAYERS`].
    TooMany(usize),
}

/// What the file says about its tokenizer.
#[derive(Debug)]
pub(crate) struct Tokenizer<'a> {
    pub(crate) model: Text<'a>,
    pub(crate) pre: Option<Text<'a>>,
    pub(crate) tokens: usize,
    pub(crate) merges: Option<usize>,
    /// Role, id and text of the special tokens.
    pub(crate) special: Vec<Special<'a>>,
    pub(crate) chat_template_bytes: Option<usize>,
}

/// A token with a role.
#[derive(Debug)]
pub(crate) struct Special<'a> {
    pub(crate) role: &'static str,
    pub(crate) id: u64,
    pub(crate) text: Option<Text<'a>>,
}

const SPECIAL: [(&str, &str); 8] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
    ("unknown", "tokenizer.ggml.unknown_token_id"),
    // The misspelling is the format's.
    ("separator", "tokenizer.ggml.seperator_token_id"),
    ("padding", "tokenizer.ggml.padding_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
    ("eom", "tokenizer.ggml.eom_token_id"),
];

impl<'a> Summary<'a> {
    pub(crate) fn of(model: &'a GgufSet) -> Summary<'a> {
        let metadata = model.metadata();
        let text = |key| metadata.get(key).and_then(|entry| entry.text().ok());
        let architecture: Option<Text<'a>> = text("general.architecture");
        let types = shares(model);
        let total = types.iter().fold(Total::default(), |sum, share| sum.plus(share.total));
        let file_type = metadata.get("general.file_type").and_then(|entry| entry.u64().ok());
        Summary {
            model,
            format: model.first().format(),
            files: model.files().iter().map(File::of).collect(),
            name: text("general.name"),
            organization: text("general.organization"),
            license: text("general.license"),
            architecture,
            size_label: text("general.size_label"),
            quantization: file_type
                .and_then(FileType::from_number)
                .map(|kind| kind.name())
                .or_else(|| types.first().map(|share| share.dtype.name())),
            sizes: sizes(metadata, architecture),
            tokenizer: Tokenizer::of(metadata),
            types,
            total,
        }
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl<'a> File<'a> {
    fn of(file: &'a oxcart::gguf::Gguf) -> File<'a> {
        File { path: file.path(), bytes: file.header().file_len(), tensors: file.tensors().len() as u64 }
    }
}

impl Total {
    fn plus(self, other: Total) -> Total {
        Total {
            tensors: self.tensors + other.tensors,
            parameters: self.parameters.saturating_add(other.parameters),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Bits that one parameter takes on average.
    pub(crate) fn bits_per_weight(self) -> Option<f64> {
        (self.parameters > 0).then(|| self.bytes as f64 * 8.0 / self.parameters as f64)
    }
}

fn shares(model: &GgufSet) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for tensor in model.tensors() {
        let (dtype, elements) = (tensor.info.dtype(), tensor.info.layout().elements() as u64);
        let one = Total { tensors: 1, parameters: elements, bytes: tensor.info.byte_len() };
        match shares.iter_mut().find(|share| share.dtype == dtype) {
            Some(share) => share.total = share.total.plus(one),
            None => shares.push(Share { dtype, total: one }),
        }
    }
    shares.sort_by_key(|share| (std::cmp::Reverse(share.total.bytes), share.dtype));
    shares
}

fn sizes(metadata: Metadata<'_>, architecture: Option<Text<'_>>) -> Vec<(&'static Size, Integers)> {
    // A name that is longer than any key begins none.
    let short = |text: &Text<'_>| text.as_bytes().len() as u64 <= MAX_KEY_BYTES;
    let Some(architecture) = architecture.filter(short).and_then(Text::to_str) else { return Vec::new() };
    let find = |size: &'static Size| {
        let entry = metadata.get(&format!("{architecture}.{}", size.key))?;
        Some((size, integers(entry)?))
    };
    SIZES.iter().filter_map(find).collect()
}

fn integers(entry: Entry<'_>) -> Option<Integers> {
    if let Some(number) = entry.value().integer() {
        return Some(Integers::One(number));
    }
    let numbers = entry.integers().ok()?;
    Some(match numbers.len() {
        0..=MAX_LAYERS => Integers::PerLayer(numbers.collect()),
        count => Integers::TooMany(count),
    })
}

impl<'a> Tokenizer<'a> {
    fn of(metadata: Metadata<'a>) -> Option<Tokenizer<'a>> {
        let text = |key| metadata.get(key).and_then(|entry| entry.text().ok());
        let strings = |key| metadata.get(key).and_then(|entry| entry.strings().ok());
        let tokens = strings("tokenizer.ggml.tokens");
        let special = SPECIAL.iter().filter_map(|&(role, key)| {
            let id = metadata.get(key)?.u64().ok()?;
            let text = usize::try_from(id).ok().and_then(|id| tokens.clone()?.nth(id));
            Some(Special { role, id, text })
        });
        Some(Tokenizer {
            model: text("tokenizer.ggml.model")?,
            pre: text("tokenizer.ggml.pre"),
            tokens: tokens.clone().map_or(0, |tokens| tokens.len()),
            merges: strings("tokenizer.ggml.merges").map(|merges| merges.len()),
            special: special.collect(),
            chat_template_bytes: text("tokenizer.chat_template").map(|text| text.as_bytes().len()),
        })
    }
}
