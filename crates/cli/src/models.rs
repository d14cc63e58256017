//! The model that a command is about: its file, fetched first where it is not here yet.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::pull::{About, Error, Hub, Name, Store};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::quantity;

/// What is used where no model is named.
pub(crate) const DEFAULT: &str = "smollm2";

/// What is used for embeddings where no model is named.
pub(crate) const DEFAULT_EMBEDDER: &str = "nomic-embed";

/// Where models come from
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MirrorArgs {
    /// Mirror of https://huggingface.co to fetch models from. By default, HF_ENDPOINT
    #[arg(long, value_name = "URL")]
    pub(crate) mirror: Option<String>,
}

impl MirrorArgs {
    pub(crate) fn hub(&self) -> Hub {
        Hub::from_env_or(self.mirror.as_deref())
    }
}

/// Where models are kept.
pub(crate) fn store() -> Result<Store, Failure> {
    let homeless =
        || Failure::Usage("there is no home folder to keep models in; set OXCART_CACHE to a folder".into());
    Ok(Store::at(oxcart::folders::models().ok_or_else(homeless)?))
}

/// The file of a model, and whether it had to be fetched.
pub(crate) fn fetch(name: &Name, mirror: &MirrorArgs) -> Result<(PathBuf, bool), Failure> {
    if let Name::Path(path) = name {
        return Ok((path.clone(), false));
    }
    let store = store()?;
    if let Some(path) = store.find(name) {
        tracing::debug!("{name} is {}", path.display());
        return Ok((path, false));
    }
    let hub = mirror.hub();
    // If that fails, so does what follows, and says why.
    if let Ok(about) = store.look_up(name, &hub) {
        tracing::info!("fetching {name}: {}", described(&about).join(", "));
    }
    let (mut progress, start) = (Progress::new(name.to_string()), Instant::now());
    let fetched = store.fetch(name, &hub, &mut |step| progress.set(step.done, step.total));
    progress.finish();
    let path = fetched.map_err(Failure::from)?;
    let bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!("fetched {name}: {} in {seconds:.1} s", ByteSize(bytes));
    Ok((path, true))
}

/// `4.7 GiB`, `licence apache-2.0`, `a context of 40,960 tokens`: what is known of a model that is not here.
pub(crate) fn described(about: &About) -> Vec<String> {
    let size = about.bytes.map_or_else(|| "unknown size".to_owned(), |bytes| ByteSize(bytes).to_string());
    let licence = about.licence.as_ref().map(|licence| format!("licence {licence}"));
    let context = about.context.map(|tokens| format!("a context of {} tokens", quantity::grouped(tokens)));
    [Some(size), licence, context].into_iter().flatten().collect()
}

/// The file of a model that was named on its own: any path is taken for one, also of a file that has another name than models have.
pub(crate) fn existing_or_fetched(named: &Path, mirror: &MirrorArgs) -> Result<PathBuf, Failure> {
    // What is not Unicode can only be a file.
    let Some(text) = named.to_str() else { return Ok(named.to_owned()) };
    match text.parse::<Name>() {
        Ok(name) => Ok(fetch(&name, mirror)?.0),
        Err(error) => match std::fs::metadata(named) {
            Err(missing) if missing.kind() == ErrorKind::NotFound => Err(Failure::from(error)),
            // The reader says best what is wrong with a path.
            _ => Ok(named.to_owned()),
        },
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.is_about_the_name() {
            true => Failure::Usage(error.to_string()),
            false => Failure::Machine(error.to_string()),
        }
    }
}
