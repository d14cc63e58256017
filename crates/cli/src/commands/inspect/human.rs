//! The summary for people: at most 100 columns wide, numbers aligned, nothing of the file unescaped.

use std::collections::HashMap;
use std::io::{self, Write};

use oxcart::backend::ByteSize;
use oxcart::gguf::{ByteOrder, Entry, Metadata, Text, Value};

use super::summary::{Integers, Summary, Tokenizer};
use crate::limits::MAX_RECORDS_IN_TEXT;
use crate::quantity;
use crate::table::{Align, Cell, Table};
use crate::terminal::{Terminal, Tone};

/// Columns that a line should not exceed.
const WIDTH: usize = 100;

/// Characters of a metadata value that are shown, at least.
const MIN_VALUE_WIDTH: usize = 24;

pub(crate) fn write(
    summary: &Summary<'_>,
    tensors: bool,
    terminal: Terminal,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = Page { summary, terminal, out };
    page.title()?;
    page.model()?;
    page.tokenizer()?;
    page.files()?;
    page.types()?;
    page.metadata()?;
    if tensors {
        page.tensors()?;
    }
    Ok(())
}

/// What a person wants to know first.
pub(crate) fn write_short(summary: &Summary<'_>, terminal: Terminal, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page { summary, terminal, out };
    page.title()?;
    page.model()
}

struct Page<'a> {
    summary: &'a Summary<'a>,
    terminal: Terminal,
    out: &'a mut dyn Write,
}

impl Page<'_> {
    fn title(&mut self) -> io::Result<()> {
        let file_name = self.summary.files.first().and_then(|file| file.path.file_name());
        let name = match (self.summary.name, file_name) {
            (Some(name), _) if !name.as_bytes().is_empty() => shortened(name, WIDTH),
            (_, Some(name)) => Text::new(name.as_encoded_bytes()).to_string(),
            _ => "model".to_owned(),
        };
        writeln!(self.out, "{}", self.terminal.paint(&name, Tone::Bold))?;
        let mut facts = Vec::new();
        facts.extend(self.summary.architecture.map(|text| shortened(text, 30)));
        if self.summary.total.parameters > 0 {
            facts.push(format!("{} parameters", quantity::count(self.summary.total.parameters).trim_end()));
        }
        facts.extend(self.summary.quantization.map(str::to_owned));
        facts.push(ByteSize(self.summary.file_bytes()).to_string());
        writeln!(self.out, "{}", self.terminal.paint(&facts.join(" · "), Tone::Dim))
    }

    fn heading(&mut self, heading: &str) -> io::Result<()> {
        writeln!(self.out, "\n{}", self.terminal.paint(heading, Tone::Bold))
    }

    /// A section of labels and values. Not written when it is empty.
    fn facts(&mut self, heading: &str, facts: Vec<(&str, String)>) -> io::Result<()> {
        if facts.is_empty() {
            return Ok(());
        }
        self.heading(heading)?;
        // Labels of all sections are equally wide, so that values line up over the page.
        let row = |(label, value): &(&str, String)| [Cell::dim(format!("{label:<19}")), Cell::plain(value)];
        let rows = facts.iter().map(row);
        Table { columns: [Align::Left, Align::Left], titles: None, rows }.write(self.out, self.terminal)
    }

    fn model(&mut self) -> io::Result<()> {
        let summary = self.summary;
        let text = |text: Text<'_>| shortened(text, WIDTH - 23);
        let mut facts = Vec::new();
        facts.extend(summary.organization.map(|name| ("organization", text(name))));
        facts.extend(summary.license.map(|name| ("licence", text(name))));
        facts.extend(summary.architecture.map(|name| ("architecture", text(name))));
        facts.extend(summary.size_label.map(|label| ("size label", text(label))));
        if summary.total.parameters > 0 {
            let (short, all) = (quantity::count(summary.total.parameters), summary.total.parameters);
            facts.push(("parameters", format!("{} ({})", short.trim_end(), quantity::grouped(all))));
        }
        facts.extend(summary.quantization.map(|name| {
            let bits = summary.total.bits_per_weight();
            (
                "quantization",
                bits.map_or(name.to_owned(), |bits| format!("{name}, {bits:.2} bits per weight")),
            )
        }));
        facts.extend(summary.sizes.iter().map(|(size, numbers)| (size.label, shown_integers(numbers))));
        self.facts("Model", facts)
    }

    fn tokenizer(&mut self) -> io::Result<()> {
        let Some(tokenizer) = &self.summary.tokenizer else { return Ok(()) };
        let facts = tokenizer_facts(tokenizer);
        self.facts("Tokenizer", facts)
    }

    fn files(&mut self) -> io::Result<()> {
        let summary = self.summary;
        let order = match summary.format.byte_order {
            ByteOrder::Little => "little-endian",
            ByteOrder::Big => "big-endian",
        };
        let bytes = summary.file_bytes();
        let size = format!("{} ({} bytes)", ByteSize(bytes), quantity::grouped(bytes));
        let facts = vec![
            ("format", format!("GGUF version {}, {order}", summary.format.version)),
            ("size", size),
            ("tensors", quantity::grouped(summary.total.tensors)),
        ];
        self.facts("File", facts)?;
        if summary.files.len() > 1 {
            self.heading(&format!("Shards ({})", summary.files.len()))?;
            let rows = summary.files.iter().map(|file| {
                let name = file.path.file_name().unwrap_or_default();
                [
                    Cell::plain(Text::new(name.as_encoded_bytes()).to_string()),
                    Cell::plain(quantity::grouped(file.tensors)),
                    Cell::quantity(quantity::bytes(file.bytes)),
                ]
            });
            let columns = [Align::Left, Align::Right, Align::Right];
            let titles = Some(["file", "tensors", "size"]);
            Table { columns, titles, rows }.write(self.out, self.terminal)?;
        }
        Ok(())
    }

    fn types(&mut self) -> io::Result<()> {
        let summary = self.summary;
        if summary.types.is_empty() {
            return Ok(());
        }
        self.heading("Size by type")?;
        let total = summary.total;
        let parts = summary.types.iter().map(|share| (share.dtype.name(), share.total));
        let rows = parts.chain([("total", total)]).map(|(name, part)| {
            let share = if total.bytes > 0 { part.bytes as f64 / total.bytes as f64 * 100.0 } else { 0.0 };
            [
                Cell::plain(name),
                Cell::plain(quantity::grouped(part.tensors)),
                Cell::quantity(quantity::count(part.parameters)),
                Cell::quantity(quantity::bytes(part.bytes)),
                Cell::quantity(format!("{share:.1} %")),
            ]
        });
        let columns = [Align::Left, Align::Right, Align::Right, Align::Right, Align::Right];
        let titles = Some(["type", "tensors", "parameters", "size", "share"]);
        Table { columns, titles, rows }.write(self.out, self.terminal)
    }

    fn metadata(&mut self) -> io::Result<()> {
        let metadata = self.summary.model.metadata();
        if metadata.is_empty() {
            return Ok(());
        }
        self.heading(&format!("Metadata ({})", metadata.len()))?;
        let rows: Vec<(String, String, Entry<'_>)> = grouped_by_prefix(metadata)
            .into_iter()
            .map(|entry| (shortened(entry.key().into(), 48), shown_type(entry.value()), entry))
            .collect();
        let longest = |text: &mut dyn Iterator<Item = &String>| text.map(|text| text.chars().count()).max();
        let (keys, types) = (&mut rows.iter().map(|row| &row.0), &mut rows.iter().map(|row| &row.1));
        let used = longest(keys).unwrap_or(0) + longest(types).unwrap_or(0) + 6;
        let room = WIDTH.saturating_sub(used).max(MIN_VALUE_WIDTH);
        let rows = rows.iter().map(|(key, value_type, entry)| {
            [Cell::plain(key), Cell::dim(value_type), Cell::plain(shown_value(entry.value(), room))]
        });
        let columns = [Align::Left, Align::Left, Align::Left];
        Table { columns, titles: None, rows }.write(self.out, self.terminal)?;
        match metadata.len().saturating_sub(MAX_RECORDS_IN_TEXT) {
            0 => Ok(()),
            more => writeln!(self.out, "  … and {} more, --json has all", quantity::grouped(more as u64)),
        }
    }

    fn tensors(&mut self) -> io::Result<()> {
        self.heading(&format!("Tensors ({})", self.summary.total.tensors))?;
        let split = self.summary.files.len() > 1;
        let rows = self.summary.model.tensors().map(|tensor| {
            let shape: Vec<_> = tensor.info.shape().extents()[..tensor.info.shape().dims()]
                .iter()
                .map(ToString::to_string)
                .collect();
            [
                Cell::plain(Text::from(tensor.info.name()).to_string()),
                Cell::plain(tensor.info.dtype().name()),
                Cell::plain(shape.join(" × ")),
                Cell::quantity(quantity::bytes(tensor.info.byte_len())),
                Cell::plain(quantity::grouped(tensor.info.offset())),
                Cell::plain(if split { (tensor.file_index + 1).to_string() } else { String::new() }),
            ]
        });
        let columns = [Align::Left, Align::Left, Align::Left, Align::Right, Align::Right, Align::Right];
        let titles = Some(["name", "type", "shape", "size", "offset", if split { "shard" } else { "" }]);
        Table { columns, titles, rows }.write(self.out, self.terminal)
    }
}

/// Records that share the first word of their key stand together, otherwise in file order. No more than are shown.
fn grouped_by_prefix(metadata: Metadata<'_>) -> Vec<Entry<'_>> {
    let mut groups = HashMap::new();
    let mut entries: Vec<(usize, Entry<'_>)> = Vec::new();
    for entry in metadata.iter().take(MAX_RECORDS_IN_TEXT) {
        let prefix = entry.key().split('.').next().unwrap_or_default();
        let next = groups.len();
        entries.push((*groups.entry(prefix).or_insert(next), entry));
    }
    entries.sort_by_key(|&(group, _)| group);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn tokenizer_facts(tokenizer: &Tokenizer<'_>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let model = match tokenizer.model.as_bytes() {
        b"llama" => "llama (SentencePiece)".to_owned(),
        b"gpt2" => "gpt2 (byte-level BPE)".to_owned(),
        b"bert" => "bert (WordPiece)".to_owned(),
        b"t5" => "t5 (Unigram)".to_owned(),
        _ => shortened(tokenizer.model, 30),
    };
    let pre = tokenizer.pre.map(|pre| format!(", pre-tokenizer {}", shortened(pre, 30)));
    facts.push(("model", model + &pre.unwrap_or_default()));
    let merges = tokenizer.merges.map(|merges| format!(" ({} merges)", quantity::grouped(merges as u64)));
    facts.push(("tokens", quantity::grouped(tokenizer.tokens as u64) + &merges.unwrap_or_default()));
    for special in &tokenizer.special {
        let text = special.text.map(|text| format!("  {}", quoted(text, 40)));
        facts.push((special.role, quantity::grouped(special.id) + &text.unwrap_or_default()));
    }
    let template = tokenizer.chat_template_bytes;
    let template =
        template.map_or("none".to_owned(), |len| format!("{} bytes", quantity::grouped(len as u64)));
    facts.push(("chat template", template));
    facts
}

/// `8,192`, or the range when layers differ.
fn shown_integers(numbers: &Integers) -> String {
    match numbers {
        Integers::One(number) => quantity::grouped(*number),
        Integers::PerLayer(numbers) => match (numbers.iter().min(), numbers.iter().max()) {
            (Some(min), Some(max)) if min == max => format!("{} in every layer", quantity::grouped(*min)),
            (Some(min), Some(max)) => {
                format!("{} to {}, by layer", quantity::grouped(*min), quantity::grouped(*max))
            }
            _ => "none".to_owned(),
        },
        Integers::TooMany(count) => format!("{} numbers", quantity::grouped(*count as u64)),
    }
}

fn shown_type(value: Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        value => value.value_type().to_string(),
    }
}

/// A value in at most `room` characters.
fn shown_value(value: Value<'_>, room: usize) -> String {
    match value {
        Value::String(text) => quoted(text, room),
        Value::Array(array) => {
            let mut shown = String::from("[");
            for (i, element) in array.values().enumerate() {
                let separator = if i == 0 { "" } else { ", " };
                let element = format!("{separator}{}", shown_value(element, room.min(40)));
                // Room for this one, and for saying that there are more.
                let rest = if i + 1 == array.len() { 1 } else { 4 };
                if shown.chars().count() + element.chars().count() + rest > room {
                    shown.push_str(separator);
                    shown.push('…');
                    break;
                }
                shown.push_str(&element);
            }
            shown.push(']');
            shown
        }
        Value::Bool(yes) => yes.to_string(),
        Value::F32(x) => format!("{x:?}"),
        Value::F64(x) => format!("{x:?}"),
        value => value.integer().map_or(String::new(), |number| number.to_string()),
    }
}

/// Escaped, in quotes, in at most `room` characters.
fn quoted(text: Text<'_>, room: usize) -> String {
    format!("\"{}\"", shortened(text, room.saturating_sub(2)))
}

/// Escaped, in at most `room` characters. Looks at a prefix only: values may be megabytes long.
fn shortened(text: Text<'_>, room: usize) -> String {
    // A character has at most four bytes and escaping never makes fewer characters.
    let bytes = text.as_bytes();
    let prefix = &bytes[..bytes.len().min((room + 1) * 4)];
    let escaped = Text::new(prefix).to_string();
    match escaped.char_indices().nth(room) {
        None => escaped,
        Some(_) => escaped.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}
