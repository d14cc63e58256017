//! `oxcart pull`: a model onto this machine.

use std::io::Write;

use oxcart::pull::{Name, known_models};
use serde_json::json;

use crate::failure::Failure;
use crate::models;
use crate::printable;

/// Fetch a model once, and say where it is
///
/// NAME is a known model (smollm2), a repository of the Hugging Face hub as owner/name, owner/name:Q4_K_M or
/// owner/name:file.gguf, or a URL. What breaks off goes on where it stopped; what comes is checked. HF_TOKEN and HF_ENDPOINT
/// are respected; OXCART_CACHE says where models are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to fetch; without it, what could be fetched is listed
    name: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(name) = &args.name else { return list(args.json, out) };
    let name: Name = name.parse()?;
    let (path, fetched) = models::fetch(&name)?;
    if !path.is_file() {
        return Err(Failure::Usage(format!("{}: there is no such file, check the path", path.display())));
    }
    match args.json {
        true => printable::write_json(
            &json!({ "name": name.to_string(), "path": path.to_string_lossy(), "fetched": fetched }),
            out,
        ),
        false => Ok(writeln!(out, "{}", path.display())?),
    }
}

fn list(json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if json {
        let known: Vec<_> = known_models()
            .iter()
            .map(|known| json!({ "name": known.name, "about": known.about, "bytes": known.bytes }))
            .collect();
        return printable::write_json(&json!({ "models": known }), out);
    }
    for known in known_models() {
        writeln!(out, "{}  {}", known.name, known.about)?;
    }
    Ok(())
}
