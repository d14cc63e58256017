//! The models in a folder of a worker's own, whose tensors its clients need not send.
//!
//! A thread computes what each tensor is known by, once per file, and looks from time to time for what has changed. Invariant: a tensor is
//! found by nothing but the digest of all of its bytes. Whether it still has that digest is for the reader to see, who says so if not.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oxcart_backend::Content;
use oxcart_gguf::{FileState, Gguf, TensorInfo};
use oxcart_llm::model::Contents;
use oxcart_rpc::wire::ContentSum;
use oxcart_rpc::worker::Copies;

use crate::digests::Digests;

/// How long the folder is not looked at again.
const BETWEEN_LOOKS: Duration = Duration::from_secs(60);
/// Folders in folders that are looked into.
const MAX_DEPTH: usize = 8;
/// Files that are used.
const MAX_FILES: usize = 4096;
/// Tensors of all of them.
const MAX_TENSORS: usize = 1 << 18;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// What a folder has to offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Files of models.
    pub files: usize,
    /// Tensors in them, each content once.
    pub tensors: usize,
    /// Bytes of these.
    pub bytes: u64,
}

/// Whom to tell what is there, after each look that has found something new.
pub type Told = Box<dyn Fn(&Offered) + Send>;

/// A folder of models.
#[derive(Debug)]
pub struct OwnModels {
    shared: Arc<SharedFolder>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread that looks and all others share.
#[derive(Debug, Default)]
struct SharedFolder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By path, files that were looked through.
    files: BTreeMap<PathBuf, Arc<Known>>,
    /// By digest, where its content is.
    places: HashMap<[u8; 32], Place>,
    /// Whether to look again at once.
    look: bool,
    ended: bool,
}

/// A file that was looked through, and the state it was in.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    state: Option<FileState>,
    tensors: Vec<([u8; 32], u64, u64)>,
}

#[derive(Clone, Debug)]
struct Place {
    file: Arc<Known>,
    offset: u64,
    len: u64,
}

impl SharedFolder {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.lock().ended
    }
}

impl State {
    /// Has a file serve, or what a path was before serve no more.
    fn put(&mut self, path: PathBuf, known: Option<Known>) {
        let before = match known.map(Arc::new) {
            Some(known) => {
                index(&mut self.places, &known);
                self.files.insert(path, known)
            }
            None => self.files.remove(&path),
        };
        if before.is_some() {
            self.index_all();
        }
    }

    /// Finds tensors where they are now.
    fn index_all(&mut self) {
        self.places.clear();
        self.files.values().for_each(|file| index(&mut self.places, file));
    }

    fn offered(&self) -> Offered {
        let bytes = self.places.values().map(|place| place.len).sum();
        Offered { files: self.files.len(), tensors: self.places.len(), bytes }
    }
}

/// Finds the tensors of one more file.
fn index(places: &mut HashMap<[u8; 32], Place>, file: &Arc<Known>) {
    for &(digest, offset, len) in &file.tensors {
        if places.len() < MAX_TENSORS {
            places.entry(digest).or_insert_with(|| Place { file: Arc::clone(file), offset, len });
        }
    }
}

impl OwnModels {
    /// The models in a folder, and in folders in it. What their tensors are known by is kept with `digests`, if there is such a place.
    pub fn start(
        folder: impl Into<PathBuf>,
        digests: Option<Digests>,
        told: Told,
    ) -> std::io::Result<Arc<OwnModels>> {
        let folder = folder.into();
        // A folder that cannot be read is said to be so now.
        fs::read_dir(&folder)?;
        let shared = Arc::new(SharedFolder::default());
        let of_thread = Arc::clone(&shared);
        let looks = move || look_again_and_again(&of_thread, &folder, digests.as_ref(), &told);
        let thread = thread::Builder::new().name("own models".into()).spawn(looks)?;
        Ok(Arc::new(OwnModels { shared, thread: Some(thread) }))
    }

    /// Has the folder looked at now.
    pub fn look(&self) {
        self.shared.lock().look = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for OwnModels {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // What it found is of no use any more.
            let _ = thread.join();
        }
    }
}

impl Copies for OwnModels {
    fn open(&self, digest: &[u8; 32], len: u64) -> Option<Box<dyn Read + '_>> {
        let place = self.shared.lock().places.get(digest).filter(|place| place.len == len)?.clone();
        let path = &place.file.path;
        let open = || -> std::io::Result<File> {
            // Opening a pipe would wait for its other end.
            if !fs::metadata(path)?.is_file() {
                return Err(std::io::ErrorKind::InvalidInput.into());
            }
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(place.offset))?;
            Ok(file)
        };
        match open() {
            Ok(file) if FileState::of(&file) == place.file.state => Some(Box::new(file.take(len))),
            _ => {
                self.doubt(digest);
                None
            }
        }
    }

    fn doubt(&self, digest: &[u8; 32]) {
        let mut state = self.shared.lock();
        if let Some(place) = state.places.get(digest) {
            let path = place.file.path.clone();
            state.put(path, None);
            state.look = true;
            self.shared.changed.notify_all();
        }
    }
}

/// What the thread does until it is to end.
fn look_again_and_again(shared: &SharedFolder, folder: &Path, digests: Option<&Digests>, told: &Told) {
    let mut offered = None;
    loop {
        look(shared, folder, digests);
        let mut state = shared.lock();
        let now = state.offered();
        if state.ended {
            return;
        }
        if offered != Some(now) {
            offered = Some(now);
            drop(state);
            told(&now);
            state = shared.lock();
        }
        let wait = |state: &mut State| !state.ended && !state.look;
        let waited = shared.changed.wait_timeout_while(state, BETWEEN_LOOKS, wait);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.look = false;
    }
}

/// Looks through files that are new or have changed, and forgets those that are gone.
fn look(shared: &SharedFolder, folder: &Path, digests: Option<&Digests>) {
    let mut paths = Vec::new();
    find(folder, MAX_DEPTH, &mut paths);
    paths.sort();
    {
        let mut state = shared.lock();
        state.files.retain(|path, _| paths.binary_search(path).is_ok());
        state.index_all();
    }
    for path in paths {
        let state = fs::metadata(&path)
            .ok()
            .filter(fs::Metadata::is_file)
            .and_then(|_| File::open(&path).ok())
            .map(|file| FileState::of(&file));
        let is_known = {
            let state_there = shared.lock();
            let known = state_there.files.get(&path);
            known.is_some_and(|known| state.is_some_and(|state| state == known.state))
        };
        if is_known {
            continue;
        }
        let known = look_through(shared, &path, digests);
        if shared.has_ended() {
            return;
        }
        // Each file serves as soon as it is known; what is no model, or changes while it is read, does not.
        shared.lock().put(path, known);
    }
}

/// Files of models in a folder and, so deep, in those in it. Links to folders are not followed, so there are no circles.
fn find(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth > 0 {
            find(&path, depth - 1, paths);
        } else if path.extension().is_some_and(|extension| extension == "gguf") && paths.len() < MAX_FILES {
            paths.push(path);
        }
    }
}

/// What the tensors of a file are known by: from before, or from reading it now.
fn look_through(shared: &SharedFolder, path: &Path, digests: Option<&Digests>) -> Option<Known> {
    let file = Gguf::open(path).ok()?;
    let (contents, state) = (Contents::of(&file), file.state());
    if let Some(digests) = digests {
        digests.recall_one(&contents);
    }
    let mut tensors = Vec::new();
    for tensor in file.tensors().iter() {
        let content = match contents.find(&file, &tensor) {
            Some(content) => content,
            None => {
                let content = read(shared, &file, &tensor)?;
                contents.note(&tensor, content);
                content
            }
        };
        tensors.push((content.digest, tensor.offset(), tensor.byte_len()));
    }
    if let Some(digests) = digests {
        // If it cannot be kept, it is computed again the next time.
        let _ = digests.keep_one(&file, &contents);
    }
    (file.state() == state).then(|| Known { path: path.to_owned(), state, tensors })
}

/// What the bytes of a tensor are known by; `None` if they cannot be read, or the worker does not want to know any more.
fn read(shared: &SharedFolder, file: &Gguf, tensor: &TensorInfo<'_>) -> Option<Content> {
    let mut reader = file.tensor_reader(tensor);
    let mut sum = ContentSum::default();
    let mut piece = vec![0; PIECE];
    let mut left = tensor.byte_len();
    while left > 0 {
        if shared.has_ended() {
            return None;
        }
        let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let piece = piece.get_mut(..len)?;
        reader.read_exact(piece).ok()?;
        sum.update(piece);
        left = left.saturating_sub(len as u64);
    }
    Some(sum.finish())
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = oxcart_backend::ByteSize(self.bytes);
        let counted = |number, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let (files, tensors) = (counted(self.files, "file"), counted(self.tensors, "tensor"));
        write!(f, "{files} with {tensors} ({bytes})")
    }
}
