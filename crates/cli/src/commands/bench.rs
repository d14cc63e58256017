//! `oxcart bench`: how fast a model runs, here or over workers.

use std::io::Write;
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::llm::logits::Need;
use oxcart::llm::model::limits::MAX_SEQUENCES;
use oxcart::llm::runner::{Piece, Runner, Wanted};
use oxcart::llm::text::{Sampler, SamplerSettings};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::plan::placement_report;
use crate::printable;
use crate::progress::{Paced, Progress};
use crate::terminal::{Terminal, Tone};
use crate::units;
use crate::workers::Traffic;

/// Measure how fast a model runs
///
/// pp512 is a prompt of 512 tokens; tg128 is 128 tokens generated one after another. Each test runs once to warm up, and is then measured
/// -r times.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Tokens of the prompt; 0 leaves the test out, several lengths are measured one after another
    #[arg(short, long, value_name = "N", default_value = "512", value_delimiter = ',', value_parser = units::whole(0_usize..))]
    p: Vec<usize>,

    /// Tokens to generate one after another; 0 leaves the test out
    #[arg(short, long, value_name = "N", default_value = "128", value_delimiter = ',', value_parser = units::whole(0_usize..))]
    n: Vec<usize>,

    /// Tokens already in the context (depth); several depths are measured one after another
    #[arg(short, long, value_name = "N", default_value = "0", value_delimiter = ',', value_parser = units::whole(0_usize..))]
    d: Vec<usize>,

    /// Sequences computed at the same time (concurrency); several counts are measured one after another
    #[arg(short, long, value_name = "N", default_value = "1", value_delimiter = ',', value_parser = units::whole(1..=MAX_SEQUENCES))]
    s: Vec<usize>,

    /// How often each test is measured
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = units::whole(1_usize..))]
    r: usize,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    /// Print the table in Markdown, for a page or an issue
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Print the table as comma-separated values
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    csv: bool,
}

/// Tokens of a depth that are computed at a time.
const DEPTH_PIECE: usize = 512;

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Test {
    kind: Kind,
    /// Tokens that each sequence has before.
    depth: usize,
    /// Sequences at the same time.
    sequences: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Prompt(usize),
    Tokens(usize),
}

impl Test {
    /// What is computed, without what was there before and beside it.
    fn kind(self) -> String {
        match self.kind {
            Kind::Prompt(count) => format!("pp{count}"),
            Kind::Tokens(count) => format!("tg{count}"),
        }
    }

    fn name(self) -> String {
        let kind = self.kind();
        let depth = if self.depth > 0 { format!(" after {}", self.depth) } else { String::new() };
        let sequences = if self.sequences > 1 { format!(" x {}", self.sequences) } else { String::new() };
        format!("{kind}{depth}{sequences}")
    }

    /// Tokens of each sequence.
    fn length(self) -> usize {
        match self.kind {
            Kind::Prompt(count) | Kind::Tokens(count) => count,
        }
    }

    /// Tokens that are measured.
    fn count(self) -> usize {
        self.length() * self.sequences
    }

    /// Tokens that are computed, with those that are there before.
    fn computed(self) -> usize {
        (self.depth + self.length()) * self.sequences
    }

    /// Seconds that it takes, from sequences without tokens but those of the depth. `rate` is how many tokens a second are expected, for what
    /// is shown meanwhile.
    fn run(
        self,
        loaded: &Loaded,
        runner: &mut Runner,
        need: Need,
        progress: Option<&Paced>,
        rate: f64,
    ) -> Result<f64, Failure> {
        let expect = |tokens: usize| progress.into_iter().for_each(|shown| shown.expect(tokens as u64, rate));
        let count = |tokens: usize| progress.into_iter().for_each(|shown| shown.add(tokens as u64));
        let vocabulary = loaded.vocab.len().max(1);
        // Any tokens will do; the same ones every time, others in every sequence.
        let token = |sequence: usize, at: usize| ((at * 7919 + sequence * 104_729 + 13) % vocabulary) as u32;
        let text = |sequence: usize, count: usize| -> Vec<u32> {
            (0..count).map(|at| token(sequence, at)).collect()
        };
        let failed = |error| loaded.failure(error);
        let ids =
            (0..self.sequences).map(|_| runner.open()).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let compute = |runner: &mut Runner, texts: &[&[u32]], wanted: Wanted| {
            let piece = |(&sequence, &tokens)| Piece { sequence, tokens, wanted };
            let pieces: Vec<Piece<'_>> = ids.iter().zip(texts).map(piece).collect();
            runner.compute_for(&pieces, &vec![need; pieces.len()]).map(|_| ()).map_err(failed)
        };
        let texts = |count: usize| (0..ids.len()).map(|sequence| text(sequence, count)).collect::<Vec<_>>();
        if self.depth > 0 {
            // With results, which come when all is computed: what was before is not part of what is measured. In pieces, so that it can be
            // seen how far it is.
            let whole = texts(self.depth);
            for from in (0..self.depth).step_by(DEPTH_PIECE) {
                let to = (from + DEPTH_PIECE).min(self.depth);
                let piece: Vec<&[u32]> = whole.iter().map(|text| &text[from..to]).collect();
                compute(runner, &piece, Wanted::Last)?;
                count((to - from) * self.sequences);
            }
        }
        let prompts = texts(if let Kind::Prompt(length) = self.kind { length } else { 0 });
        let start = Instant::now();
        match self.kind {
            Kind::Prompt(_) => {
                let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
                expect(self.count());
                compute(runner, &prompts, Wanted::Last)?;
                count(self.count());
            }
            Kind::Tokens(length) => {
                for at in 0..length {
                    let next: Vec<u32> = (0..ids.len()).map(|sequence| token(sequence, at)).collect();
                    let next: Vec<&[u32]> = next.iter().map(std::slice::from_ref).collect();
                    compute(runner, &next, Wanted::Last)?;
                    count(self.sequences);
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        ids.into_iter().try_for_each(|id| runner.close(id)).map_err(failed)?;
        Ok(seconds)
    }
}

/// Every combination of what was asked for.
fn tests(args: &Args) -> impl Iterator<Item = Test> {
    let prompts = args.p.iter().map(|&count| Kind::Prompt(count));
    let kinds: Vec<Kind> = prompts.chain(args.n.iter().map(|&count| Kind::Tokens(count))).collect();
    let at_depth = |depth| {
        let kinds = kinds.clone();
        args.s.iter().flat_map(move |&sequences| {
            kinds.clone().into_iter().map(move |kind| Test { kind, depth, sequences })
        })
    };
    args.d.iter().flat_map(move |&depth| at_depth(depth)).collect::<Vec<_>>().into_iter()
}

/// What came out.
struct Measured {
    test: Test,
    /// Tokens per second, run by run.
    rates: Vec<f64>,
    /// Of one run.
    traffic: Traffic,
}

impl Measured {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    /// How far runs are from their mean; nothing can be said of a single one.
    fn deviation(&self) -> Option<f64> {
        let (mean, others) = (self.mean(), self.rates.len().checked_sub(1).filter(|others| *others > 0)?);
        let squares: f64 = self.rates.iter().map(|rate| (rate - mean) * (rate - mean)).sum();
        Some((squares / others as f64).sqrt())
    }

    fn per_token(&self, number: u64) -> f64 {
        number as f64 / self.test.count() as f64
    }
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let tests: Vec<Test> = tests(args).filter(|test| test.count() > 0).collect();
    if tests.is_empty() {
        return Err(Failure::Usage("nothing to measure: one of -p and -n must be above 0".into()));
    }
    let mut settings = args.engine.clone();
    settings.ctx.get_or_insert(tests.iter().map(|test| test.depth + test.length()).max().unwrap_or(0));
    settings.sequences = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
    let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, args.json)? else { return Ok(()) };
    let mut runner = loaded.runner()?;
    let all = tests.iter().map(|test| (test.computed() * (args.r + 1)) as u64).sum();
    let progress = (!args.json).then(|| Paced::begin(Progress::counting("tokens"), all));
    // As much of the logits as `oxcart run` needs.
    let usual =
        Sampler::new(SamplerSettings::default()).map_err(|error| Failure::Usage(error.to_string()))?;
    let need = usual.need(0);
    let mut measured = Vec::new();
    for test in tests {
        let mut rate = |expected: f64| {
            let seconds = test.run(&loaded, &mut runner, need, progress.as_ref(), expected)?;
            Ok::<_, Failure>(test.count() as f64 / seconds)
        };
        let mut expected = rate(0.0)?;
        let (before, mut rates) = (loaded.workers.traffic(), Vec::new());
        for _ in 0..args.r {
            expected = rate(expected)?;
            rates.push(expected);
        }
        let traffic = loaded.workers.traffic().since(before);
        let runs = args.r as u64;
        let traffic = Traffic {
            sent: traffic.sent / runs,
            received: traffic.received / runs,
            waits: traffic.waits / runs,
        };
        measured.push(Measured { test, rates, traffic });
    }
    drop(progress);
    match args.json {
        true => printable::write_json(&report(&loaded, args, &measured), out),
        false => write_table(&rows(!loaded.workers.is_empty(), args.csv, &measured), args, terminal, out),
    }
}

fn report(loaded: &Loaded, args: &Args, measured: &[Measured]) -> Value {
    let is_remote = !loaded.workers.is_empty();
    let results: Vec<Value> = measured
        .iter()
        .map(|result| {
            let mut row = json!({
                "test": result.test.name(),
                "depth": result.test.depth,
                "sequences": result.test.sequences,
                "tokens_per_second": result.mean(),
                "stddev": result.deviation(),
                "runs": result.rates,
            });
            if is_remote {
                row["sent_bytes_per_token"] = result.per_token(result.traffic.sent).into();
                row["received_bytes_per_token"] = result.per_token(result.traffic.received).into();
                row["round_trips_per_token"] = result.per_token(result.traffic.waits).into();
            }
            row
        })
        .collect();
    json!({
        "model": loaded.path.to_string_lossy(),
        "architecture": loaded.model.hyper().architecture(),
        "threads": args.engine.local.threads,
        "kv": args.engine.key_type().to_string(),
        "kv_values": args.engine.value_type().to_string(),
        "attention": args.engine.attention.name(),
        "workers": args.engine.workers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "placement": placement_report(&loaded.model, &loaded.workers),
        "load_ms": loaded.load.as_secs_f64() * 1e3,
        "results": results,
    })
}

/// The title of the column with deviations.
const DEVIATION: &str = "±";

/// Titles and rows of the columns that have values: depths, sequences, deviations and the network are part of it only where there are some.
/// For programs, columns are called as in JSON, there is always one of deviations, and bytes have no units.
fn rows(is_remote: bool, for_programs: bool, measured: &[Measured]) -> Vec<Vec<String>> {
    let has_depth = measured.iter().any(|result| result.test.depth > 0);
    let has_sequences = measured.iter().any(|result| result.test.sequences > 1);
    let mut titles = vec!["test"];
    titles.extend(has_depth.then_some("depth"));
    titles.extend(has_sequences.then_some("sequences"));
    let has_deviation = for_programs || measured.iter().any(|result| result.deviation().is_some());
    titles.push(if for_programs { "tokens_per_second" } else { "tokens/s" });
    titles.extend(has_deviation.then_some(if for_programs { "stddev" } else { DEVIATION }));
    if is_remote {
        titles.extend(match for_programs {
            true => ["sent_bytes_per_token", "received_bytes_per_token", "round_trips_per_token"],
            false => ["sent/token", "received/token", "trips/token"],
        });
    }
    let row = |result: &Measured| {
        let bytes = |number: u64| match for_programs {
            true => format!("{:.0}", result.per_token(number)),
            false => ByteSize(result.per_token(number) as u64).to_string(),
        };
        let mut row = vec![result.test.kind()];
        row.extend(has_depth.then(|| result.test.depth.to_string()));
        row.extend(has_sequences.then(|| result.test.sequences.to_string()));
        row.push(format!("{:.2}", result.mean()));
        let deviation = result.deviation().map_or_else(String::new, |deviation| format!("{deviation:.2}"));
        row.extend(has_deviation.then_some(deviation));
        if is_remote {
            row.push(bytes(result.traffic.sent));
            row.push(bytes(result.traffic.received));
            row.push(format!("{:.2}", result.per_token(result.traffic.waits)));
        }
        row
    };
    let titles = titles.into_iter().map(str::to_owned).collect();
    std::iter::once(titles).chain(measured.iter().map(row)).collect()
}

fn write_table(
    rows: &[Vec<String>],
    args: &Args,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if args.csv {
        return Ok(rows.iter().try_for_each(|row| writeln!(out, "{}", row.join(",")))?);
    }
    if args.markdown {
        for (at, row) in rows.iter().enumerate() {
            writeln!(out, "| {} |", row.join(" | "))?;
            if at == 0 {
                writeln!(out, "|---|{}", "---:|".repeat(row.len() - 1))?;
            }
        }
        return Ok(());
    }
    let widths = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    for (at, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, text) in row.iter().enumerate() {
            let padding = " ".repeat(widths(column) - text.chars().count());
            let is_dim = at == 0 || rows[0][column] == DEVIATION;
            let text = terminal.paint(text, if is_dim { Tone::Dim } else { Tone::Plain });
            line += &if column == 0 { format!("  {text}{padding}") } else { format!("  {padding}{text}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let test = Test { kind: Kind::Tokens(4), depth: 0, sequences: 1 };
        let measured = Measured { test, rates: vec![1.0, 2.0, 3.0], traffic: Traffic::default() };
        assert_eq!((measured.mean(), measured.deviation()), (2.0, Some(1.0)));
        assert_eq!(measured.test.name(), "tg4");
        assert_eq!(measured.per_token(6), 1.5);
    }

    #[test]
    fn only_columns_with_values_are_shown() {
        let measured = |depth, sequences| {
            let test = Test { kind: Kind::Prompt(8), depth, sequences };
            [Measured { test, rates: vec![2.0], traffic: Traffic { sent: 64, received: 8, waits: 4 } }]
        };
        let lines = |is_remote, measured: &[Measured]| -> Vec<String> {
            rows(is_remote, false, measured).into_iter().map(|row| row.join(" ")).collect()
        };
        // A single run has no deviation.
        assert_eq!(lines(false, &measured(0, 1)), ["test tokens/s", "pp8 2.00"]);
        let [mut several] = measured(0, 1);
        several.rates = vec![1.0, 3.0];
        assert_eq!(lines(false, &[several]), ["test tokens/s ±", "pp8 2.00 1.41"]);
        assert_eq!(lines(false, &measured(16, 1)), ["test depth tokens/s", "pp8 16 2.00"]);
        assert_eq!(lines(false, &measured(0, 4)), ["test sequences tokens/s", "pp8 4 2.00"]);
        let all = lines(true, &measured(16, 2));
        assert_eq!(all[0], "test depth sequences tokens/s sent/token received/token trips/token");
        assert_eq!(all[1], "pp8 16 2 2.00 4 B 0 B 0.25");
        let large = Traffic { sent: 65536, ..measured(0, 1)[0].traffic };
        let [result] = measured(0, 1);
        let csv: Vec<String> = rows(true, true, &[Measured { traffic: large, ..result }])
            .into_iter()
            .map(|row| row.join(","))
            .collect();
        assert_eq!(
            csv,
            [
                "test,tokens_per_second,stddev,sent_bytes_per_token,received_bytes_per_token,round_trips_per_token",
                "pp8,2.00,,8192,1,0.50",
            ]
        );
    }
}
