//! A model whose weights are where the placement wants them.
//!
//! A device that computes on host memory uses the mapped file as it is; to others, weights are written straight from the
//! mapping, to all devices at the same time. A device that has a weight from before, because the model moves, keeps it where it lies.
//!
//! Invariant: a loaded weight has the layout that the file's header gave and that was checked; its bytes are within its
//! buffer.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Buffer, BufferType, Buffers, Content, Device, HostMemory, Usage, place_all};
use oxcart_gguf::{Mapping, Metadata};
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{Graph, Layout, TensorId};

use super::error::Error;
use super::file::ModelFile;
use super::held::Held;
use super::hyper_parameters::HyperParameters;
use super::net::Section;
use super::placement::{Placement, is_mapped};

/// Threads that load each device: while one sends, the others read from the file and compute what the device is asked for.
const LOADERS: usize = 3;

/// What one device gets, and how far that is.
struct Lane<'l> {
    uploads: Vec<&'l Upload>,
    /// The first upload that no thread has taken yet.
    next: AtomicUsize,
    /// Bytes that are there.
    done: Mutex<usize>,
}

/// How far loading is, on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Position in the list of devices.
    pub device: usize,
    /// Bytes it has.
    pub done: usize,
    /// Bytes it will have.
    pub total: usize,
}

/// A weight in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    /// Size of the buffer.
    pub(crate) capacity: usize,
    pub(crate) device: usize,
}

/// All weights of a model.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    buffers: Buffers,
    /// By section, its weights by name.
    sections: Vec<HashMap<String, Weight>>,
    /// By section, its device.
    homes: Vec<usize>,
}

impl Weights {
    pub(crate) fn find(&self, name: &str, section: Section) -> Option<&Weight> {
        self.sections[self.index(section)].get(name)
    }

    /// As [`find`](Weights::find), in whatever section.
    pub(crate) fn find_anywhere(&self, name: &str) -> Option<&Weight> {
        self.sections.iter().find_map(|section| section.get(name))
    }

    fn index(&self, section: Section) -> usize {
        section.index(self.sections.len() - 2)
    }

    pub(crate) fn device_of(&self, section: Section) -> usize {
        self.homes[self.index(section)]
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Weight)> {
        self.sections.iter().flatten()
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }
}

/// A mapped file, lent to devices.
#[derive(Debug)]
struct Lent(Arc<Mapping>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A model that is ready to be used, by any number of contexts.
#[derive(Debug)]
pub struct Model {
    file: Arc<ModelFile>,
    placement: Placement,
    weights: Weights,
    mappings: Vec<Arc<Mapping>>,
    /// Whether some device computes on the mapping.
    uses_mapping: bool,
}

impl Model {
    /// Loads a model as placed, to all devices at the same time. `progress` is called from several threads.
    pub fn load(
        file: impl Into<Arc<ModelFile>>,
        placement: Placement,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Arc<Model>, Error> {
        Model::load_beside(&Held::nothing_of(file.into())?, placement, progress)
    }

    /// The same, where devices hold weights already: those that they still need stay where they are.
    pub(crate) fn load_beside(
        held: &Held,
        placement: Placement,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Arc<Model>, Error> {
        let (file, mappings) = (Arc::clone(held.file()), held.mappings().to_vec());
        let sections = vec![HashMap::new(); placement.sections().len()];
        let (homes, devices) = (placement.sections().to_vec(), placement.devices().len());
        let mut loading = Loading {
            file: &file,
            placement: &placement,
            mappings: &mappings,
            held,
            weights: Weights { buffers: Buffers::new(), sections, homes },
            uploads: Vec::new(),
        };
        for device in 0..devices {
            match is_mapped(&*placement.devices()[device]) {
                true => loading.lend(device, progress)?,
                false => loading.place(device)?,
            }
        }
        loading.upload_all(progress)?;
        let weights = loading.weights;
        let uses_mapping = placement.devices().iter().any(|device| is_mapped(&**device));
        Ok(Arc::new(Model { file, placement, weights, mappings, uses_mapping }))
    }

    /// Its file, size and shape without any weights: what is left of it while it is nowhere.
    pub fn without_weights(&self) -> Model {
        Model {
            file: Arc::clone(&self.file),
            placement: self.placement.clone(),
            weights: Weights::default(),
            mappings: self.mappings.clone(),
            uses_mapping: false,
        }
    }

    /// Its file.
    pub fn file(&self) -> &Arc<ModelFile> {
        &self.file
    }

    pub(crate) fn mappings(&self) -> &[Arc<Mapping>] {
        &self.mappings
    }

    /// Its size and shape.
    pub fn hyper(&self) -> &HyperParameters {
        self.file.hyper()
    }

    /// Everything the file says, for tokenizers and templates.
    pub fn metadata(&self) -> Metadata<'_> {
        self.file.metadata()
    }

    /// What tells this model from others: its header and the beginning of each tensor, as a digest.
    pub(crate) fn fingerprint(&self) -> Result<[u8; 32], Error> {
        const BEGINNING: usize = 64;
        let mut hasher = blake3::Hasher::new();
        for tensor in self.file.files().tensors() {
            let layout = tensor.info.layout();
            hasher.update(tensor.info.name().as_bytes());
            hasher.update(layout.to_string().as_bytes());
            let bytes = tensor.info.bytes_in(self.mappings[tensor.file_index].bytes())?;
            hasher.update(&bytes[..bytes.len().min(BEGINNING)]);
        }
        hasher.update(format!("{:?}", self.hyper()).as_bytes());
        Ok(*hasher.finalize().as_bytes())
    }

    /// Where everything is.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The devices it is on.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.placement.devices()
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Fails if a file that is computed on has become shorter since it was mapped.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        if self.uses_mapping {
            self.mappings.iter().try_for_each(|mapping| mapping.check())?;
        }
        Ok(())
    }
}

/// A tensor that must be written to a device.
struct Upload {
    device: usize,
    file: usize,
    /// First byte in the file.
    start: usize,
    /// Where it goes.
    storage: Storage,
    len: usize,
}

struct Loading<'a> {
    file: &'a ModelFile,
    placement: &'a Placement,
    mappings: &'a [Arc<Mapping>],
    held: &'a Held,
    weights: Weights,
    uploads: Vec<Upload>,
}

impl Loading<'_> {
    fn note(&mut self, index: usize, weight: Weight) {
        let tensor = &self.placement.tensors()[index];
        let section = self.weights.index(tensor.section);
        self.weights.sections[section].insert(tensor.name.clone(), weight);
    }

    /// The tensors of a device, by their positions in the placement.
    fn tensors_of(&self, device: usize) -> Vec<usize> {
        let tensors = self.placement.tensors().iter().enumerate();
        tensors.filter(|(_, tensor)| tensor.device == device).map(|(index, _)| index).collect()
    }

    /// The tensor in its file: which file, first byte, layout.
    fn in_file(&self, name: &str) -> Result<(usize, usize, Layout), Error> {
        let missing = || Error::MissingTensor { name: name.to_owned() };
        let tensor = self.file.files().tensor(name).ok_or_else(missing)?;
        let start = usize::try_from(tensor.info.offset()).map_err(|_| missing())?;
        // The mapping has all bytes of the tensor, or this fails.
        tensor.info.bytes_in(self.mappings[tensor.file_index].bytes())?;
        Ok((tensor.file_index, start, tensor.info.layout()))
    }

    /// Lets a device use the mapped files.
    fn lend(&mut self, device: usize, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), Error> {
        let mut lent: Vec<Option<BufferId>> = vec![None; self.mappings.len()];
        for index in self.tensors_of(device) {
            let (file, offset, layout) = self.in_file(&self.placement.tensors()[index].name)?;
            let buffer = match lent[file] {
                Some(buffer) => buffer,
                None => {
                    let memory = HostMemory::shared(Arc::new(Lent(Arc::clone(&self.mappings[file]))));
                    let buffer = self.placement.devices()[device].buffer_from_host(memory)?;
                    buffer.set_usage(Usage::Weights);
                    self.weights.buffers.add(buffer)
                }
            };
            lent[file] = Some(buffer);
            let (storage, capacity) = (Storage { buffer, offset }, self.mappings[file].bytes().len());
            self.note(index, Weight { layout, storage, capacity, device });
        }
        let total = self.placement.shares()[device].weights;
        progress(Progress { device, done: total, total });
        Ok(())
    }

    /// Gives the tensors of a device places in its memory, those that it has excepted. Each part of the model has buffers of its own, so
    /// that a part that leaves gives all of its memory back.
    fn place(&mut self, device: usize) -> Result<(), Error> {
        let mut graph = Graph::new();
        let mut known: HashMap<&str, Weight> = HashMap::new();
        let mut kept: HashMap<BufferId, BufferId> = HashMap::new();
        let mut new: Vec<Vec<(TensorId, &str)>> = vec![Vec::new(); self.weights.sections.len()];
        let target = &self.placement.devices()[device];
        let tensors = self.tensors_of(device);
        let mut seen: HashSet<&str> = HashSet::new();
        for &index in &tensors {
            let tensor = &self.placement.tensors()[index];
            if !seen.insert(&tensor.name) {
                continue;
            }
            if let Some((weight, buffer)) = self.held.find(target, &tensor.name) {
                let add = || self.weights.buffers.add(Arc::clone(buffer));
                let buffer = *kept.entry(weight.storage.buffer).or_insert_with(add);
                let storage = Storage { buffer, ..weight.storage };
                known.insert(&tensor.name, Weight { storage, device, ..*weight });
                continue;
            }
            let id = graph.leaf_with_layout(self.in_file(&tensor.name)?.2)?;
            graph.set_name(id, &tensor.name)?;
            new[self.weights.index(tensor.section)].push((id, &tensor.name));
        }
        let buffer_type: Arc<dyn BufferType> = target.buffer_type();
        for part in new {
            let ids: Vec<TensorId> = part.iter().map(|&(id, _)| id).collect();
            for buffer in place_all(&mut graph, &ids, &buffer_type, &mut self.weights.buffers)? {
                self.weights.buffers.get(buffer)?.set_usage(Usage::Weights);
            }
            for (id, name) in part {
                let unplaced = || oxcart_backend::Error::NotPlaced { id, name: name.to_owned() };
                let storage = graph.storage(id)?.ok_or_else(unplaced)?;
                let (file, start, layout) = self.in_file(name)?;
                self.uploads.push(Upload { device, file, start, storage, len: layout.byte_len() });
                let capacity = self.weights.buffers.get(storage.buffer)?.len();
                known.insert(name, Weight { layout, storage, capacity, device });
            }
        }
        for index in tensors {
            let weight = known[self.placement.tensors()[index].name.as_str()];
            self.note(index, weight);
        }
        Ok(())
    }

    /// Writes everything, a thread for each device.
    fn upload_all(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), Error> {
        let lane = |device: usize| {
            let uploads: Vec<&Upload> =
                self.uploads.iter().filter(|upload| upload.device == device).collect();
            let missing: usize = uploads.iter().map(|upload| upload.len).sum();
            let done = Mutex::new(self.placement.shares()[device].weights.saturating_sub(missing));
            Lane { uploads, next: AtomicUsize::new(0), done }
        };
        let lanes: Vec<Lane<'_>> = (0..self.placement.devices().len()).map(lane).collect();
        let failed = AtomicBool::new(false);
        let work = |lane: &Lane<'_>| -> Result<(), Error> {
            while let Some(upload) = lane.uploads.get(lane.next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                self.upload(upload).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                // Told under the lock, so that it never goes backwards.
                let mut done = lane.done.lock().unwrap_or_else(PoisonError::into_inner);
                *done += upload.len;
                let total = self.placement.shares()[upload.device].weights;
                progress(Progress { device: upload.device, done: *done, total });
            }
            Ok(())
        };
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = lanes
                .iter()
                .flat_map(|lane| std::iter::repeat_n(lane, LOADERS.min(lane.uploads.len())))
                .map(|lane| scope.spawn(move || work(lane)))
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            results.into_iter().try_for_each(|result| {
                let died = oxcart_backend::Error::DeviceFailed {
                    device: "a device".to_owned(),
                    reason: "the thread that loaded its weights died".to_owned(),
                };
                result.unwrap_or(Err(died.into()))
            })
        })
    }

    fn upload(&self, upload: &Upload) -> Result<(), Error> {
        let mapping = &self.mappings[upload.file];
        let buffer = self.weights.buffers.get(upload.storage.buffer)?;
        let bytes = &mapping.bytes()[upload.start..upload.start + upload.len];
        match self.content_of(upload, &**buffer, bytes)? {
            Some(content) => buffer.write_known(upload.storage.offset, bytes, &content)?,
            None => buffer.write(upload.storage.offset, bytes)?,
        }
        Ok(mapping.check()?)
    }

    /// What a tensor is known by, if its device asks for that: from before, in which case nothing of it is read, or found out now.
    fn content_of(
        &self,
        upload: &Upload,
        buffer: &dyn Buffer,
        bytes: &[u8],
    ) -> Result<Option<Content>, Error> {
        let (file, contents) = (&self.file.files().files()[upload.file], &self.file.contents()[upload.file]);
        let (start, len) = (upload.start as u64, upload.len as u64);
        if let Some(content) = contents.find_at(file, start, len) {
            return Ok(Some(content));
        }
        let content = buffer.content_of(bytes);
        if let Some(content) = content {
            self.mappings[upload.file].check()?;
            contents.note_at(start, len, content);
        }
        Ok(content)
    }
}
