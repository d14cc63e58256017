//! Logits of all models of a folder, for a script that compares them with the reference's.
//!
//! `OXCART_ARCHS` names the folder. Its `tokens.txt` has the length of the prompts in its first line and the tokens of a
//! sequence in each of the others. Beside a model `x.gguf`, `x.alone` gets the logits after the prompt and after each later
//! token of every sequence, each computed alone; `x.beside` those of all sequences at once, prompts cut at random places. Where
//! that fails, `x.alone.error` and `x.beside.error` say why. A model that sees a text whole gives the logits of the same tokens, and
//! `x.beside` has them computed after texts of other lengths.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::{Path, PathBuf};

use model_support::together::Dice;
use oxcart_llm::model::Error;
use oxcart_llm::model::ModelFile;
use oxcart_llm::runner::{Encoder, EncoderOptions, Piece, Runner, RunnerOptions, SequenceId, Wanted};
use oxcart_tensor::DType;

/// What all sequences have in common, and their tokens.
struct Texts {
    prompt: usize,
    tokens: Vec<Vec<u32>>,
}

impl Texts {
    fn read(path: &Path) -> Texts {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let prompt = lines.next().unwrap().parse().unwrap();
        let numbers = |line: &str| line.split(' ').map(|token| token.parse().unwrap()).collect();
        Texts { prompt, tokens: lines.map(numbers).collect() }
    }
}

/// Rows of logits, by sequence.
type Rows = Vec<Vec<Vec<f32>>>;

fn runner(model: &Path, sequences: usize) -> Result<Runner, Error> {
    let (model, streams) = model_support::try_load(model, vec![1.0])?;
    let options =
        RunnerOptions { context: 256, sequences, cache_type: DType::F32, ..RunnerOptions::default() };
    Runner::new(model, streams, options)
}

fn alone(model: &Path, texts: &Texts) -> Result<Rows, Error> {
    let mut runner = runner(model, 1)?;
    let mut all = Vec::new();
    for tokens in &texts.tokens {
        let sequence = runner.open()?;
        let (prompt, others) = tokens.split_at(texts.prompt);
        let mut rows = Vec::new();
        for tokens in std::iter::once(prompt).chain(others.chunks(1)) {
            let outputs = runner.compute(&[Piece { sequence, tokens, wanted: Wanted::Last }])?;
            rows.push(outputs.of(0).row(0).to_vec());
        }
        runner.close(sequence)?;
        all.push(rows);
    }
    Ok(all)
}

/// All sequences at once; every step takes some tokens of some of them.
fn beside(model: &Path, texts: &Texts, dice: &mut Dice) -> Result<Rows, Error> {
    let count = texts.tokens.len();
    let mut runner = runner(model, count)?;
    let ids: Vec<SequenceId> = (0..count).map(|_| runner.open()).collect::<Result<_, _>>()?;
    let (mut done, mut rows) = (vec![0; count], vec![Vec::new(); count]);
    while let Some(last) = (0..count).rfind(|&at| done[at] < texts.tokens[at].len()) {
        let mut taken = Vec::new();
        for (at, &done) in done.iter().enumerate() {
            let left = texts.prompt.saturating_sub(done);
            let number = match texts.tokens[at].len() - done {
                0 => continue,
                _ if left > 0 => 1 + dice.below(left),
                _ => 1,
            };
            if dice.below(4) > 0 || (at == last && taken.is_empty()) {
                taken.push((at, done..done + number));
            }
        }
        let piece = |(at, range): &(usize, std::ops::Range<usize>)| Piece {
            sequence: ids[*at],
            tokens: &texts.tokens[*at][range.clone()],
            wanted: Wanted::Last,
        };
        let pieces: Vec<Piece<'_>> = taken.iter().map(piece).collect();
        let outputs = runner.compute(&pieces)?;
        for (index, (at, range)) in taken.iter().enumerate() {
            done[*at] = range.end;
            if range.end >= texts.prompt {
                rows[*at].push(outputs.of(index).row(0).to_vec());
            }
        }
    }
    Ok(rows)
}

/// Logits of a model that sees texts whole, of the same tokens; after texts of other lengths, if dice say of which.
fn whole(model: &Path, texts: &Texts, mut dice: Option<&mut Dice>) -> Result<Rows, Error> {
    let (model, streams) = model_support::try_load(model, vec![1.0])?;
    let width = model.hyper().vocabulary;
    let mut encoder = Encoder::new(model, streams, EncoderOptions::default())?;
    let mut all = Vec::new();
    for tokens in &texts.tokens {
        if let Some(dice) = &mut dice {
            encoder.logits(&tokens[..1 + dice.below(texts.prompt)])?;
        }
        let rows = encoder.logits(tokens)?.chunks_exact(width).skip(texts.prompt - 1);
        all.push(rows.map(<[f32]>::to_vec).collect());
    }
    Ok(all)
}

fn write(model: &Path, setting: &str, result: Result<Rows, Error>) {
    let (path, error) = (model.with_extension(setting), model.with_extension(format!("{setting}.error")));
    // What an earlier run left behind says nothing about this one.
    let _ = std::fs::remove_file(&error);
    match result {
        Ok(rows) => {
            let rows: Vec<Vec<f32>> = rows.into_iter().flatten().collect();
            let sizes = [rows.len() as u32, rows[0].len() as u32];
            let mut bytes: Vec<u8> = sizes.into_iter().flat_map(u32::to_le_bytes).collect();
            bytes.extend(rows.iter().flatten().flat_map(|number| number.to_le_bytes()));
            std::fs::write(path, bytes).unwrap();
        }
        Err(refusal) => std::fs::write(error, refusal.to_string()).unwrap(),
    }
}

#[test]
#[ignore = "tools/archs.sh runs it on models that it makes"]
fn logits_of_a_folder() {
    let folder = PathBuf::from(std::env::var("OXCART_ARCHS").unwrap());
    let seed: u64 = std::env::var("OXCART_SEED").unwrap().parse().unwrap();
    let texts = Texts::read(&folder.join("tokens.txt"));
    for entry in std::fs::read_dir(&folder).unwrap() {
        let model = entry.unwrap().path();
        if model.extension().is_some_and(|extension| extension == "gguf") {
            let sees_whole = ModelFile::open(&model).is_ok_and(|file| file.hyper().sees_whole());
            let mut dice = Dice(seed);
            match sees_whole {
                true => {
                    write(&model, "alone", whole(&model, &texts, None));
                    write(&model, "beside", whole(&model, &texts, Some(&mut dice)));
                }
                false => {
                    write(&model, "alone", alone(&model, &texts));
                    write(&model, "beside", beside(&model, &texts, &mut dice));
                }
            }
        }
    }
}
