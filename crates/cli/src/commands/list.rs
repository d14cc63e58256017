//! `oxcart list`, `oxcart show` and `oxcart rm`: the models that are on this machine.

use std::io::Write;
use std::time::SystemTime;

use oxcart::backend::ByteSize;
use oxcart::gguf::{GgufSet, Text};
use oxcart::pull::{Kept, Name, Store};
use serde_json::{Value, json};

use crate::commands::inspect;
use crate::failure::Failure;
use crate::models::{self, MirrorArgs};
use crate::printable;
use crate::quantity;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;

/// List the models on this machine
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let store = models::store()?;
    let kept = store.kept();
    if args.json {
        let models: Vec<Value> = kept.iter().map(report).collect();
        return printable::write_json(
            &json!({ "folder": store.root().to_string_lossy(), "models": models }),
            out,
        );
    }
    if kept.is_empty() {
        return Ok(writeln!(out, "there are no models yet; oxcart pull smollm2 fetches one")?);
    }
    let rows = kept.iter().map(|kept| {
        let state = if kept.is_whole { age(kept) } else { "unfinished; oxcart pull resumes it".into() };
        [Cell::plain(&kept.name), Cell::quantity(quantity::bytes(kept.bytes)), Cell::dim(state)]
    });
    let columns = [Align::Left, Align::Right, Align::Left];
    Table { columns, titles: Some(["model", "size", "fetched"]), rows }.write(out, terminal)?;
    let total: u64 = kept.iter().map(|kept| kept.bytes).sum();
    Ok(writeln!(out, "{} in {}", ByteSize(total), store.root().display())?)
}

fn report(kept: &Kept) -> Value {
    let seconds = kept.fetched.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "name": kept.name,
        "path": kept.path.to_string_lossy(),
        "files": kept.files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>(),
        "bytes": kept.bytes,
        "complete": kept.is_whole,
        "fetched_unix": seconds.map(|since| since.as_secs()),
    })
}

/// `3 days ago`
fn age(kept: &Kept) -> String {
    let Some(since) = kept.fetched.and_then(|at| SystemTime::now().duration_since(at).ok()) else {
        return "-".into();
    };
    let (count, unit) = match since.as_secs() {
        0..3600 => (since.as_secs() / 60, "minute"),
        3600..86_400 => (since.as_secs() / 3600, "hour"),
        seconds => (seconds / 86_400, "day"),
    };
    match (count, unit) {
        (0, "minute") => "just now".into(),
        (1, unit) => format!("1 {unit} ago"),
        (count, unit) => format!("{count} {unit}s ago"),
    }
}

/// Show what a model is: size, licence, context
///
/// A short form of `oxcart inspect`. For a model that is not on this machine, what the hub says about it; nothing is downloaded.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The model, named as for --model
    #[arg(default_value = models::DEFAULT)]
    model: String,

    #[command(flatten)]
    mirror: MirrorArgs,
}

pub(crate) fn show(args: &ShowArgs, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let (name, store) = (args.model.parse::<Name>()?, models::store()?);
    let Some(path) = store.find(&name) else {
        let about = store.look_up(&name, &args.mirror.hub())?;
        writeln!(out, "{name}: {}", models::described(&about).join(", "))?;
        let typed = Text::new(args.model.as_bytes());
        return Ok(writeln!(out, "it is not on this machine; oxcart pull {typed} fetches it")?);
    };
    let model = GgufSet::open(&path).map_err(|error| Failure::model(&path, error))?;
    writeln!(out, "{}", Text::new(path.as_os_str().as_encoded_bytes()))?;
    inspect::write_short(&model, terminal, out)
}

/// Delete models from this machine
///
/// Name them as `oxcart list` does, or as for --model. Nothing outside the models folder is deleted.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The models to delete
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
}

pub(crate) fn remove(args: &RemoveArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let store: Store = models::store()?;
    // All of them, or none if one is not there or not clear.
    let mut all = Vec::<Kept>::new();
    for name in &args.models {
        let mut found = store.find_kept(name);
        let name = Text::new(name.as_bytes());
        match (found.pop(), &found[..]) {
            (Some(kept), []) if all.iter().any(|known| known.path == kept.path) => {}
            (Some(kept), []) => all.push(kept),
            (Some(last), others) => {
                let names: Vec<&str> = others.iter().chain([&last]).map(|kept| kept.name.as_str()).collect();
                return Err(Failure::Usage(format!(
                    "{name} could mean {}; give the full name",
                    names.join(" or ")
                )));
            }
            (None, _) => {
                return Err(Failure::Usage(format!(
                    "{name} is not among the models that oxcart keeps; oxcart list shows them"
                )));
            }
        }
    }
    for kept in all {
        store.remove(&kept)?;
        writeln!(out, "deleted {}, {}", kept.name, ByteSize(kept.bytes))?;
    }
    Ok(())
}
