//! What becomes of all models of a folder, for a script that compares it with what the reference makes of them.
//!
//! `OXCART_ARCHS` names the folder. Its `tokens.txt` has the length of the prompts in its first line and the tokens of a
//! sequence in each of the others. Beside a model `x.gguf`, `x.alone` gets the logits after the prompt and after each later
//! token of every sequence, each computed alone; `x.beside` those of all sequences at once, prompts cut at random places. Where
//! that fails, `x.alone.error` and `x.beside.error` say why. A model that sees a text whole gives the logits of the same tokens, and
//! `x.beside` has them computed after texts of other lengths.
//!
//! `x.flash-f16`, `x.paged-q8_0` and so on are the logits of `x.alone` computed with caches of small types, or `x.passed-over` says
//! why there are none. `x.types` has the types that tensors get in files of every type, without importance data (`plain`) and with those
//! of `x.importance` (`weighted`), in which all columns matter the same.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::{Path, PathBuf};

use model_support::together::Dice;
use oxcart_gguf::{Builder, GgufSet};
use oxcart_llm::file_type::FileType;
use oxcart_llm::model::{Error, ModelFile};
use oxcart_llm::quantize::{Importance, Quantization, QuantizeError};
use oxcart_llm::runner::{
    AttentionChoice, Encoder, EncoderOptions, Piece, Runner, RunnerOptions, SequenceId, Wanted,
};
use oxcart_tensor::{DType, Layout, Shape};
use serde_json::{Map, Value, json};

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

/// For results that are exact.
fn exact() -> RunnerOptions {
    RunnerOptions { context: 256, cache_type: DType::F32, ..RunnerOptions::default() }
}

fn runner(model: &Path, options: RunnerOptions) -> Result<Runner, Error> {
    let (model, streams) = model_support::try_load(model, vec![1.0])?;
    Runner::new(model, streams, options)
}

fn alone(model: &Path, texts: &Texts, options: RunnerOptions) -> Result<Rows, Error> {
    let mut runner = runner(model, options)?;
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
    let mut runner = runner(model, RunnerOptions { sequences: count, ..exact() })?;
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

/// The folder, and the models in it.
fn models() -> (PathBuf, Vec<PathBuf>) {
    let folder = PathBuf::from(std::env::var("OXCART_ARCHS").unwrap());
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let models = files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).collect();
    (folder, models)
}

#[test]
#[ignore = "tools/archs.sh runs it on models that it makes"]
fn logits_of_a_folder() {
    let seed: u64 = std::env::var("OXCART_SEED").unwrap().parse().unwrap();
    let (folder, models) = models();
    let texts = Texts::read(&folder.join("tokens.txt"));
    for model in models {
        let sees_whole = ModelFile::open(&model).is_ok_and(|file| file.hyper().sees_whole());
        let mut dice = Dice(seed);
        match sees_whole {
            true => {
                write(&model, "alone", whole(&model, &texts, None));
                write(&model, "beside", whole(&model, &texts, Some(&mut dice)));
            }
            false => {
                write(&model, "alone", alone(&model, &texts, exact()));
                write(&model, "beside", beside(&model, &texts, &mut dice));
            }
        }
    }
}

/// Why small caches mean nothing to a model, if they do not.
fn keeps_nothing(model: &Path) -> Option<&'static str> {
    let file = ModelFile::open(model).ok()?;
    match file.hyper() {
        hyper if hyper.sees_whole() => Some("sees texts whole and keeps nothing of them"),
        hyper if hyper.blocks.iter().all(|block| block.state.rows.is_none()) => Some("has no attention"),
        hyper if hyper.indexer.is_some() => Some("its attention is not dense"),
        _ => None,
    }
}

#[test]
#[ignore = "tools/archs.sh --caches runs it on models that it makes"]
fn logits_with_small_caches() {
    let (folder, models) = models();
    let texts = Texts::read(&folder.join("tokens.txt"));
    for model in models {
        if let Some(reason) = keeps_nothing(&model) {
            std::fs::write(model.with_extension("passed-over"), reason).unwrap();
            continue;
        }
        for (way, attention) in [("flash", AttentionChoice::Flash), ("paged", AttentionChoice::Auto)] {
            for (name, cache_type) in [("f16", DType::F16), ("q8_0", DType::Q8_0)] {
                let options = RunnerOptions { cache_type, attention, ..exact() };
                write(&model, &format!("{way}-{name}"), alone(&model, &texts, options));
            }
        }
    }
}

/// Importance data in which all columns of a model's tensors matter the same.
fn importance(model: &GgufSet, path: &Path) -> Importance {
    let mut builder = Builder::new();
    builder.set("general.type", "imatrix").set("imatrix.datasets", vec!["none"]);
    builder.set("imatrix.chunk_count", 1u32).set("imatrix.chunk_size", 1u32);
    for tensor in model.tensors() {
        let [columns, _, matrices, _] = tensor.info.layout().ne().extents();
        for (end, ne) in [("in_sum2", [columns, matrices]), ("counts", [1, matrices])] {
            let layout = Layout::packed(DType::F32, Shape::from(ne)).unwrap();
            let ones = 1f32.to_le_bytes().repeat(ne[0] * ne[1]);
            builder.tensor(&format!("{}.{end}", tensor.info.name()), layout, ones);
        }
    }
    builder.write(std::fs::File::create(path).unwrap()).unwrap();
    Importance::open(path).unwrap()
}

/// What becomes of each tensor.
fn types(
    model: &GgufSet,
    file: FileType,
    importance: Option<&Importance>,
) -> Result<Map<String, Value>, QuantizeError> {
    let quantization = Quantization::new(model, file, importance)?;
    Ok(quantization
        .changes()
        .map(|change| (change.name, change.to.to_string().to_uppercase().into()))
        .collect())
}

#[test]
#[ignore = "tools/archs.sh --types runs it on models that it makes"]
fn types_of_a_folder() {
    for model in models().1 {
        let set = GgufSet::open(&model).unwrap();
        let importance = importance(&set, &model.with_extension("importance"));
        let outcome = |file, importance| match types(&set, file, importance) {
            Ok(types) => json!({ "types": types, "error": null }),
            Err(error) => json!({ "types": null, "error": error.to_string() }),
        };
        let mut all = Map::new();
        for file in FileType::all() {
            let (plain, weighted) = (outcome(*file, None), outcome(*file, Some(&importance)));
            all.insert(
                file.name().to_owned(),
                json!({ "number": file.number(), "plain": plain, "weighted": weighted }),
            );
        }
        std::fs::write(model.with_extension("types"), Value::from(all).to_string()).unwrap();
    }
}
