//! `oxcart pull`: a model onto this machine.

use std::io::Write;

use oxcart::pull::{Name, aliases, known_models};
use serde_json::json;

use crate::failure::Failure;
use crate::models::{self, MirrorArgs};
use crate::printable;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;

/// Fetch a model once, and say where it is
///
/// NAME is a known model (without it, they are listed), a repository of the Hugging Face hub as owner/name, owner/name:Q4_K_M or
/// owner/name:file.gguf, or a URL. An interrupted download resumes where it stopped; checksums are verified. HF_TOKEN and HF_ENDPOINT
/// are respected; OXCART_CACHE is where models are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to fetch; without a name, the known models are listed
    name: Option<String>,

    #[command(flatten)]
    mirror: MirrorArgs,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(name) = &args.name else { return list(args.json, terminal, out) };
    let name: Name = name.parse()?;
    let (path, fetched) = models::fetch(&name, &args.mirror)?;
    if !path.is_file() {
        return Err(Failure::Usage(format!("{}: no such file; check the path", path.display())));
    }
    match args.json {
        true => printable::write_json(
            &json!({ "name": name.to_string(), "path": path.to_string_lossy(), "fetched": fetched }),
            out,
        ),
        false => Ok(writeln!(out, "{}", path.display())?),
    }
}

fn list(json: bool, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    if json {
        let known = known_models()
            .iter()
            .map(|known| json!({ "name": known.name, "about": known.about, "bytes": known.bytes }));
        // How large the others are is for the hub to say.
        let of_hub = aliases().iter().map(|alias| {
            let from = format!("{}:{}", alias.repository, alias.file);
            json!({ "name": alias.name, "about": alias.about, "bytes": null, "from": from })
        });
        return printable::write_json(&json!({ "models": known.chain(of_hub).collect::<Vec<_>>() }), out);
    }
    let known = known_models().iter().map(|known| [Cell::plain(known.name), Cell::dim(known.about)]);
    let of_hub = aliases().iter().map(|alias| [Cell::plain(alias.name), Cell::dim(alias.about)]);
    let columns = [Align::Left, Align::Left];
    Table { columns, titles: None, rows: known.chain(of_hub) }.write(out, terminal)?;
    Ok(writeln!(
        out,
        "oxcart show NAME shows a model's size, licence and context; for any other model on the hub, write owner/name"
    )?)
}
