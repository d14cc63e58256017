//! `oxcart bench`: how fast a model runs, here or over workers.

use std::io::Write;
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::llm::runner::Wanted;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, OneSequence, Opened};
use crate::printable;
use crate::progress::Progress;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::workers::Traffic;

/// Measure how fast a model runs
///
/// pp512 is a prompt of 512 tokens, tg128 are 128 tokens one after another from an empty context. Each is done once to warm up,
/// then measured several times.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Tokens of a prompt; 0 leaves it out, several are measured one after another
    #[arg(short, long, value_name = "N", default_value = "512", value_delimiter = ',')]
    p: Vec<usize>,

    /// Tokens one after another; 0 leaves it out
    #[arg(short, long, value_name = "N", default_value = "128", value_delimiter = ',')]
    n: Vec<usize>,

    /// Times that each is measured
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    r: usize,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Test {
    Prompt(usize),
    Tokens(usize),
}

impl Test {
    fn name(self) -> String {
        match self {
            Test::Prompt(count) => format!("pp{count}"),
            Test::Tokens(count) => format!("tg{count}"),
        }
    }

    fn count(self) -> usize {
        match self {
            Test::Prompt(count) | Test::Tokens(count) => count,
        }
    }

    /// Seconds that it takes, from an empty context.
    fn run(self, loaded: &Loaded, sequence: &mut OneSequence<'_>) -> Result<f64, Failure> {
        sequence.clear()?;
        let vocabulary = loaded.vocab.len().max(1);
        // Any tokens will do; the same ones every time.
        let token = |at: usize| ((at * 7919 + 13) % vocabulary) as u32;
        let start = Instant::now();
        match self {
            Test::Prompt(count) => {
                let tokens: Vec<u32> = (0..count).map(token).collect();
                sequence.compute(&tokens, Wanted::Last)?;
            }
            Test::Tokens(count) => {
                for at in 0..count {
                    sequence.compute(&[token(at)], Wanted::Last)?;
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
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

    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.rates.iter().map(|rate| (rate - mean) * (rate - mean)).sum();
        (squares / (self.rates.len().max(2) - 1) as f64).sqrt()
    }

    fn per_token(&self, number: u64) -> f64 {
        number as f64 / self.test.count() as f64
    }
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let tests = args.p.iter().map(|n| Test::Prompt(*n)).chain(args.n.iter().map(|n| Test::Tokens(*n)));
    let tests: Vec<Test> = tests.filter(|test| test.count() > 0).collect();
    if tests.is_empty() || args.r == 0 {
        return Err(Failure::Usage("there is nothing to measure: give -p, -n and -r above 0".into()));
    }
    let mut settings = args.engine.clone();
    let longest = tests.iter().map(|test| test.count()).max().unwrap_or(0);
    settings.ctx.get_or_insert(longest);
    let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, args.json)? else { return Ok(()) };
    let mut sequence = loaded.sequence()?;
    let mut progress = Progress::counting("runs");
    let (mut done, all) = (0, (tests.len() * (args.r + 1)) as u64);
    let mut measured = Vec::new();
    for test in tests {
        test.run(&loaded, &mut sequence)?;
        done += 1;
        let (before, mut rates) = (loaded.workers.traffic(), Vec::new());
        for _ in 0..args.r {
            rates.push(test.count() as f64 / test.run(&loaded, &mut sequence)?);
            done += 1;
            if !args.json {
                progress.set(done, Some(all));
            }
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
    progress.finish();
    match args.json {
        true => printable::write_json(&report(&loaded, args, &measured), out),
        false => write_table(&loaded, &measured, terminal, out),
    }
}

fn report(loaded: &Loaded, args: &Args, measured: &[Measured]) -> Value {
    let is_remote = !loaded.workers.is_empty();
    let results: Vec<Value> = measured
        .iter()
        .map(|result| {
            let mut row = json!({
                "test": result.test.name(),
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
        "kv": args.engine.kv.to_string(),
        "attention": args.engine.attention.name(),
        "workers": args.engine.workers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "placement": loaded.placement(),
        "load_ms": loaded.load.as_secs_f64() * 1e3,
        "results": results,
    })
}

fn write_table(
    loaded: &Loaded,
    measured: &[Measured],
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let is_remote = !loaded.workers.is_empty();
    let rows = measured.iter().map(|result| {
        let remote = |text: String| Cell::plain(if is_remote { text } else { "-".into() });
        let bytes = |number: u64| remote(ByteSize(result.per_token(number) as u64).to_string());
        [
            Cell::plain(result.test.name()),
            Cell::plain(format!("{:.2}", result.mean())),
            Cell::dim(format!("± {:.2}", result.deviation())),
            bytes(result.traffic.sent),
            bytes(result.traffic.received),
            remote(format!("{:.2}", result.per_token(result.traffic.waits))),
        ]
    });
    let columns = [Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right];
    let titles = Some(["test", "tokens/s", "", "sent/token", "received/token", "trips/token"]);
    Ok(Table { columns, titles, rows }.write(out, terminal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let measured =
            Measured { test: Test::Tokens(4), rates: vec![1.0, 2.0, 3.0], traffic: Traffic::default() };
        assert_eq!((measured.mean(), measured.deviation()), (2.0, 1.0));
        assert_eq!(measured.test.name(), "tg4");
        assert_eq!(measured.per_token(6), 1.5);
    }
}
