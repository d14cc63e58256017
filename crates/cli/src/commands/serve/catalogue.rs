//! The models that a server has: what they are called, what is known of them, and how they are loaded.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use oxcart::gguf::PartName;
use oxcart::llm::file_type::FileType;
use oxcart::llm::model::ModelFile;
use oxcart::llm::runner::EncoderOptions;
use oxcart::llm::text::Vocab;
use oxcart_http::{
    About, Available, CurrentPlacements, Explain, Features, Limits, LoadError, Purpose, Served, Source,
};

use crate::cluster;
use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, ModelArgs, Opened};
use crate::speculation::SpeculationArgs;
use crate::terminal::Terminal;

use super::say;

/// How models are loaded.
pub(super) struct Settings {
    pub(super) engine: EngineArgs,
    pub(super) speculation: SpeculationArgs,
    pub(super) limits: Limits,
    pub(super) terminal: Terminal,
}

impl Settings {
    /// A model that is loaded, ready to be served.
    pub(super) fn served(
        &self,
        name: &str,
        mut loaded: Box<Loaded>,
        out: &mut dyn Write,
    ) -> Result<Served, Failure> {
        let placement = loaded.model.placement();
        let (blocks, is_encoder) = (loaded.model.hyper().blocks.len(), loaded.model.hyper().is_encoder());
        let about = about(loaded.model.file(), &loaded.path);
        let plans = cluster::plans(blocks, placement, &loaded.departures, &loaded.workers);
        let plans = CurrentPlacements::from(plans);
        let path = loaded.path.clone();
        let explain: Explain = Box::new(move |error| Failure::run(&path, error).to_string());
        let served = if is_encoder {
            let encoder = loaded.encoder(EncoderOptions { pooling: None })?;
            Served::embedding(name, encoder, Arc::clone(&loaded.vocab), about, self.limits)
        } else {
            let (told, workers) = (plans.clone(), Arc::clone(&loaded.workers));
            let mut engine = loaded.engine(Some(Box::new(move |placement, departures| {
                told.set(cluster::plans(blocks, placement, departures, &workers));
            })))?;
            self.speculation.apply(&mut engine, &self.engine, self.terminal, out)?;
            Served::talking(name, engine, about, self.limits)
        };
        let served = served.map_err(|error| Failure::Usage(format!("{}: {error}", loaded.path.display())))?;
        Ok(served.placed(plans).explained_by(explain))
    }
}

/// A model file that is loaded on demand.
struct Kept {
    name: String,
    path: PathBuf,
    settings: Arc<Settings>,
}

impl Source for Kept {
    fn load(&self) -> Result<Served, LoadError> {
        let start = Instant::now();
        let served = self.open().map_err(|failure| {
            say(&format!("{} was not loaded: {failure}", self.name));
            match failure.is_of_memory() {
                true => LoadError::NoRoom(failure.to_string()),
                false => LoadError::Failed(failure.to_string()),
            }
        })?;
        say(&format!("loaded {} in {:.1} s", self.name, start.elapsed().as_secs_f64()));
        Ok(served)
    }

    fn features(&self) -> Result<Features, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Failed(error.to_string());
        let file = ModelFile::open(&self.path).map_err(|error| failed(&error))?;
        let vocab = Vocab::from_gguf(&file.metadata()).map_err(|error| failed(&error))?;
        Features::read(&file, &vocab).map_err(|error| failed(&error))
    }

    fn unloaded(&self) {
        say(&format!("unloaded {}", self.name));
    }
}

impl Kept {
    fn open(&self) -> Result<Served, Failure> {
        let mut engine = self.settings.engine.clone();
        // A path is taken as it is, whatever characters it has.
        engine.model.model = self.path.to_string_lossy().into_owned();
        match Loaded::open(&engine, self.settings.terminal, &mut io::sink(), true)? {
            Opened::Ready(loaded) => self.settings.served(&self.name, loaded, &mut io::sink()),
            Opened::Shown => Err(Failure::Usage("only its plan was asked for".into())),
        }
    }
}

/// The models that are named: files, names of models, which are fetched if they are not here, and all models of folders.
pub(super) fn find(named: &[String], settings: &Arc<Settings>) -> Result<Vec<Available>, Failure> {
    let mut found = Vec::new();
    for given in named {
        let folder = Path::new(given);
        if !folder.is_dir() {
            let model = ModelArgs { model: given.clone(), mirror: settings.engine.model.mirror.clone() };
            found.push(available(name(given), model.path()?, settings)?);
            continue;
        }
        let before = found.len();
        for path in files(folder)? {
            match available(name(&path.to_string_lossy()), path, settings) {
                Ok(model) => found.push(model),
                // One that is no model of ours does not keep the others from being served.
                Err(failure) => say(&format!("skipped: {failure}")),
            }
        }
        if found.len() == before {
            return Err(Failure::Usage(format!("there are no models in {}", folder.display())));
        }
    }
    Ok(found)
}

/// The model files of a folder, by name; of a model in several, the first.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| Failure::Usage(format!("cannot read {}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if is_gguf(&path) && path.is_file() && part(&path).is_none_or(|part| part.number == 1) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Which part of a model in several files it is.
fn part(path: &Path) -> Option<PartName<'_>> {
    PartName::of(path.file_name()?.to_str()?)
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// What a model is called: the name of its file, or as it was fetched.
pub(super) fn name(model: &str) -> String {
    let path = Path::new(model);
    if let Some(part) = part(path) {
        return part.model.to_owned();
    }
    match path.file_stem() {
        Some(stem) if is_gguf(path) => stem.to_string_lossy().into_owned(),
        _ => model.to_owned(),
    }
}

/// A model that can be loaded, as its file describes it.
fn available(name: String, path: PathBuf, settings: &Arc<Settings>) -> Result<Available, Failure> {
    let file = ModelFile::open(&path).map_err(|error| Failure::run(&path, error))?;
    let about = about(&file, &path);
    let purpose = if file.hyper().is_encoder() { Purpose::Embeddings } else { Purpose::Chat };
    let source = Box::new(Kept { name: name.clone(), path, settings: Arc::clone(settings) });
    let context = match purpose {
        Purpose::Chat => settings.engine.context_for(about.trained_context, 0),
        Purpose::Embeddings => about.trained_context,
    };
    Ok(Available { name, about, purpose, context, source })
}

/// What its header says of a model.
fn about(file: &ModelFile, path: &Path) -> About {
    let (hyper, metadata) = (file.hyper(), file.metadata());
    let kind = metadata.get("general.file_type").and_then(|entry| entry.u64().ok());
    let kind = kind.and_then(FileType::from_number);
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(|entry| entry.strings().ok());
    let basename = metadata.get("general.basename").and_then(|entry| entry.str().ok());
    About {
        architecture: hyper.architecture().to_owned(),
        basename: basename.map(str::to_owned),
        parameters: Some(file.files().tensors().map(|tensor| tensor.info.layout().elements() as u64).sum()),
        quantization: kind.map(|kind| kind.to_string()),
        bytes: file.files().tensors().map(|tensor| tensor.info.byte_len()).sum(),
        trained_context: hyper.context,
        embedding: hyper.embedding,
        vocabulary: tokens.map_or(0, |tokens| tokens.len()),
        source: path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_as_people_call_them() {
        assert_eq!(name("smollm2"), "smollm2");
        assert_eq!(name("/models/Qwen3-4B.Q4_K_M.gguf"), "Qwen3-4B.Q4_K_M");
        assert_eq!(name("owner/name"), "owner/name");
        assert_eq!(name("/models/large-00001-of-00003.gguf"), "large");
        assert_eq!(name("/models/best-of-all.gguf"), "best-of-all");
    }

    #[test]
    fn a_model_in_several_files_is_listed_once() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.gguf", "a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "C.GGUF", "readme.txt"] {
            std::fs::write(folder.path().join(name), []).unwrap();
        }
        let found = files(folder.path()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["C.GGUF", "a-00001-of-00002.gguf", "b.gguf"]);
    }
}
