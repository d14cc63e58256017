//! The model that a command is about: its file, fetched first where it is not here yet.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use oxcart::backend::ByteSize;
use oxcart::pull::{Error, Hub, Name, Store};

use crate::door;
use crate::failure::Failure;
use crate::progress::Progress;

/// What is used where no model is named.
pub(crate) const DEFAULT: &str = "smollm2";

/// Where models are kept.
pub(crate) fn store() -> Result<Store, Failure> {
    let homeless =
        || Failure::Usage("there is no home folder to keep models in, set OXCART_CACHE to one".into());
    Ok(Store::at(oxcart::folders::models().ok_or_else(homeless)?))
}

/// The file of a model, and whether it had to be fetched.
pub(crate) fn fetch(name: &Name) -> Result<(PathBuf, bool), Failure> {
    if let Name::Path(path) = name {
        return Ok((path.clone(), false));
    }
    let store = store()?;
    if let Some(path) = store.find(name) {
        return Ok((path, false));
    }
    let (mut progress, start) = (Progress::new(name.to_string()), Instant::now());
    let fetched = store.fetch(name, &Hub::from_env(), &mut |step| progress.set(step.done, step.total));
    progress.finish();
    let path = fetched.map_err(Failure::from)?;
    let bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
    let seconds = start.elapsed().as_secs_f64();
    // Says what took so long; the work goes on if that cannot be printed.
    let _ = writeln!(door::stderr(), "fetched {name}: {} in {seconds:.1} s", ByteSize(bytes));
    Ok((path, true))
}

/// The file of a model that was named on its own: any path is taken for one, also of a file that has another name than models have.
pub(crate) fn existing_or_fetched(named: &Path) -> Result<PathBuf, Failure> {
    match named.to_str().and_then(|text| text.parse::<Name>().ok()) {
        Some(name) => Ok(fetch(&name)?.0),
        // The reader says best what is wrong with a path.
        None => Ok(named.to_owned()),
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
