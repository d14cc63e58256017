//! `oxcart imatrix`: which parts of a model matter most, for `oxcart quantize`.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::llm::model::limits::MAX_CONTEXT;
use oxcart::llm::quantize::Collector;
use serde_json::json;

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::new_file::NewFile;
use crate::printable;
use crate::progress::Progress;
use crate::quantity::counted;
use crate::terminal::Terminal;
use crate::text_windows::{CTX_HELP, LEAST_WINDOW, TextWindows, WINDOW, read_text};
use crate::units;

/// Measure which weights of a model matter most, for quantize --imatrix
///
/// The model reads a text, in windows of --ctx tokens, and the file notes how strongly each column of its matrices is used, in
/// the format of llama.cpp's llama-imatrix. Use a text like those that the model will be used for; some hundred windows are plenty.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, mut_arg("ctx", |ctx| ctx.help(CTX_HELP).value_parser(units::whole(LEAST_WINDOW..=MAX_CONTEXT))))]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// File with the text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// The file to write
    #[arg(short, long, value_name = "OUT", default_value = "imatrix.gguf")]
    output: PathBuf,

    /// Read at most this many windows
    #[arg(long, value_name = "N", value_parser = units::whole(1_usize..))]
    chunks: Option<usize>,

    /// Include the output matrix, which quantize leaves large anyway
    #[arg(long)]
    process_output: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  oxcart imatrix -m model-F16.gguf -f text.txt -o imatrix.gguf
  oxcart quantize model-F16.gguf model-IQ2_XS.gguf IQ2_XS --imatrix imatrix.gguf";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let start = Instant::now();
    let mut settings = args.engine.clone();
    let window = *settings.ctx.get_or_insert(WINDOW);
    let text = read_text(&args.file)?;
    let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, args.json)? else { return Ok(()) };
    let windows = TextWindows::cut(&loaded, &text, window, args.chunks)?;
    // Before the work starts, so that it is not in vain.
    let new = NewFile::create(&args.output)?;
    let mut runner = loaded.runner()?;
    let mut collector = Collector::new(window, args.process_output);
    let mut progress = Progress::counting("windows");
    for (at, tokens) in windows.iter().enumerate() {
        collector.read(&mut runner, tokens).map_err(|error| loaded.failure(error))?;
        if !args.json {
            progress.set(at as u64 + 1, Some(windows.len() as u64));
        }
    }
    progress.finish();
    let name = args.file.to_string_lossy();
    let bytes = collector
        .write(&[&name], BufWriter::new(new.file()))
        .map_err(|error| Failure::Machine(format!("cannot write {}: {error}", args.output.display())))?;
    new.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let about = json!({
            "path": args.output.to_string_lossy(),
            "bytes": bytes,
            "tensors": collector.len(),
            "windows": windows.len(),
            "ctx": window,
            "seconds": seconds,
        });
        return printable::write_json(&about, out);
    }
    Ok(writeln!(
        out,
        "{}: {} from {} of {window} tokens, {} in {seconds:.1} s",
        args.output.display(),
        counted(collector.len(), "tensor"),
        counted(windows.len(), "window"),
        ByteSize(bytes)
    )?)
}
