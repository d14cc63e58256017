//! `oxcart quantize`: a model in another type.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::gguf::GgufSet;
use oxcart::llm::file_type::FileType;
use oxcart::llm::quantize::{Change, Importance, Quantization, QuantizeError};
use serde_json::json;

use crate::failure::Failure;
use crate::listed::listed;
use crate::models::{self, MirrorArgs};
use crate::new_file::NewFile;
use crate::printable;
use crate::progress::Progress;
use crate::units;

/// Write a model in another type
///
/// Most tensors become TYPE, some that matter more a larger type; small ones stay as they are. Start from a file in F32,
/// F16 or BF16 where you can: quantizing twice loses quality twice. The new file gets its name once it is complete.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model to read: a file (the first, if it is split), or a name as for --model
    #[arg(value_name = "IN")]
    from: PathBuf,

    /// The file to write
    #[arg(value_name = "OUT")]
    to: PathBuf,

    /// For example Q4_K_M, Q8_0 or F16
    #[arg(value_name = "TYPE", value_parser = listed(FileType::all().iter().map(|kind| kind.name()), str::parse::<FileType>))]
    file_type: FileType,

    /// Importance data from `oxcart imatrix` or llama.cpp's llama-imatrix: spends bits where they matter most; the smallest types need it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,

    #[command(flatten)]
    mirror: MirrorArgs,

    /// Threads to compute with. By default, one per processor
    #[arg(short, long, value_name = "N", value_parser = units::whole(1..=512_usize))]
    threads: Option<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let start = Instant::now();
    let from = models::existing_or_fetched(&args.from, &args.mirror)?;
    let model = GgufSet::open(&from).map_err(|error| Failure::model(&from, error))?;
    let is_input =
        |path: &Path| fs::canonicalize(path).is_ok_and(|path| Some(path) == fs::canonicalize(&args.to).ok());
    if model.files().iter().any(|file| is_input(file.path())) {
        return Err(Failure::Usage("OUT would overwrite IN; give another name".into()));
    }
    let failed = |error: QuantizeError| match error {
        QuantizeError::File(error) => Failure::model(&from, error),
        error @ QuantizeError::NeedsImportance { .. } => Failure::Usage(format!(
            "{error}: give --imatrix FILE (oxcart imatrix makes one), or choose a larger type such as Q4_K_M"
        )),
        error => Failure::Usage(error.to_string()),
    };
    let importance = args.imatrix.as_deref().map(read_importance).transpose()?;
    let quantization = Quantization::new(&model, args.file_type, importance.as_ref()).map_err(failed)?;
    if let Some(twice) = quantized_twice(&quantization) {
        tracing::warn!("{twice}");
    }
    let total: u64 = quantization.changes().map(|change| change.elements).sum();
    let new = NewFile::create(&args.to)?;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut progress = Progress::counting(args.to.display().to_string());
    let written =
        quantization.write(BufWriter::with_capacity(1 << 20, new.file()), threads, &mut |_, done| {
            progress.set(done, Some(total));
        });
    progress.finish();
    let bytes = written.map_err(failed)?;
    new.finish()?;
    let mut types = BTreeMap::<String, usize>::new();
    for change in quantization.changes() {
        *types.entry(change.to.to_string()).or_default() += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let about = json!({
            "path": args.to.to_string_lossy(),
            "type": args.file_type.name(),
            "bytes": bytes,
            "tensors": types,
            "seconds": seconds,
        });
        return printable::write_json(&about, out);
    }
    let types: Vec<String> = types.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
    Ok(writeln!(
        out,
        "{}: {}, {} ({}) in {seconds:.1} s",
        args.to.display(),
        args.file_type,
        ByteSize(bytes),
        types.join(", ")
    )?)
}

fn read_importance(path: &Path) -> Result<Importance, Failure> {
    Importance::open(path).map_err(|error| match error {
        QuantizeError::File(error) => Failure::model(path, error),
        error => Failure::Usage(format!("{}: {error}", path.display())),
    })
}

/// A warning about tensors that lose a second time.
fn quantized_twice(quantization: &Quantization<'_>) -> Option<String> {
    let is_lossy =
        |change: &Change| change.from.is_quantized() && change.to.is_quantized() && change.to != change.from;
    let twice: Vec<Change> = quantization.changes().filter(is_lossy).collect();
    let first = twice.first()?;
    let (tensors, them) = match twice.len() {
        1 => ("1 tensor is".to_owned(), "it"),
        count => (format!("{count} tensors are"), "them"),
    };
    Some(format!(
        "{tensors} already quantized ({}); quantizing {them} again loses more quality. Start from F32, F16 or BF16 if you can",
        first.from
    ))
}
