//! Models in other types: every tensor of a file is expanded and quantized again, row by row, by all cores.
//!
//! Invariant: the result does not depend on the number of threads, and never is in memory as a whole.

mod collector;
mod importance;
mod recipe;

use std::cmp::Ordering;
use std::io::{self, Write};

use oxcart_gguf::{Builder, ByteOrder, Data, GgufSet, Metadata, SetTensor};
use oxcart_tensor::quant::{QuantError, dequantize_row, quantize_row};
use oxcart_tensor::{DType, Layout, LayoutError};

pub use self::collector::Collector;
pub use self::importance::Importance;
use self::recipe::{Model, Recipe, is_quantized};
use crate::file_type::FileType;

/// Why a model could not be quantized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] oxcart_gguf::Error),
    /// A tensor has no such layout.
    #[error("{tensor}: {source}")]
    Layout {
        /// Its name.
        tensor: String,
        /// Why.
        source: LayoutError,
    },
    /// Importance data that cannot be used.
    #[error("importance data: {reason}")]
    Importance {
        /// Why.
        reason: String,
    },
    /// The type is only worth something with importance data.
    #[error("{file} needs importance data for {tensor}")]
    NeedsImportance {
        /// What the file should have become.
        file: FileType,
        /// A tensor without any.
        tensor: String,
    },
    /// The type cannot be made.
    #[error("{tensor} cannot become {dtype}: {source}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What it should have become.
        dtype: DType,
        /// Why it cannot.
        source: QuantError,
    },
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The tensor.
    pub name: String,
    /// Its elements.
    pub elements: u64,
    /// Its type so far.
    pub from: DType,
    /// Its type from now on.
    pub to: DType,
}

/// Elements that are expanded at a time.
const SPAN: usize = 4 << 20;

/// A model about to be quantized.
#[derive(Debug)]
pub struct Quantization<'m> {
    model: &'m GgufSet,
    file: FileType,
    tensors: Vec<(SetTensor<'m>, DType)>,
    importance: Option<&'m Importance>,
}

impl<'m> Quantization<'m> {
    /// Decides what each tensor becomes, and finds out whether that can be done.
    pub fn new(
        model: &'m GgufSet,
        file: FileType,
        importance: Option<&'m Importance>,
    ) -> Result<Quantization<'m>, QuantizeError> {
        let mut tensors: Vec<SetTensor<'m>> = model.tensors().collect();
        tensors.sort_by(|a, b| by_layer(a.info.name(), b.info.name()));
        let about = Model { has_importance: importance.is_some(), ..about(model, &tensors) };
        let mut recipe = Recipe::new(file, &about);
        let mut chosen = Vec::new();
        for tensor in tensors {
            let (name, layout) = (tensor.info.name(), tensor.info.layout());
            let dtype = layout.dtype();
            let is_number = dtype.is_quantized() || matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
            let dims = usize::try_from(tensor.info.dims()).unwrap_or(usize::MAX);
            let dtype = match is_number && is_quantized(name, dims, &about.architecture) {
                true => recipe.next(name, layout.ne().extents()),
                false => layout.dtype(),
            };
            if dtype != layout.dtype() {
                let is_weighted = weights_of(importance, name, &layout)?.is_some();
                if !is_weighted && recipe::needs_importance(name, dtype, file) {
                    return Err(QuantizeError::NeedsImportance { file, tensor: name.to_owned() });
                }
                can_be_made(name, dtype, is_weighted)?;
            }
            chosen.push((tensor, dtype));
        }
        Ok(Quantization { model, file, tensors: chosen, importance })
    }

    /// What becomes of each tensor, in the order of the new file.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.tensors.iter().map(|(tensor, to)| Change {
            name: tensor.info.name().to_owned(),
            elements: tensor.info.layout().ne().extents().iter().map(|n| *n as u64).product(),
            from: tensor.info.layout().dtype(),
            to: *to,
        })
    }

    /// Writes the new file, telling how many elements are done. Returns its length.
    pub fn write(
        &self,
        out: impl Write,
        threads: usize,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<u64, QuantizeError> {
        // Tensors are written one after another, so what they share is only borrowed one at a time.
        let shared = std::cell::RefCell::new((progress, 0u64, None));
        let mut builder = Builder::new();
        let ours = ["general.quantization_version", "general.file_type"];
        for entry in self.model.metadata().iter() {
            let is_split = entry.key().starts_with("split.");
            let is_told_anew = self.importance.is_some() && entry.key().starts_with("quantize.imatrix.");
            if !ours.contains(&entry.key()) && !is_split && !is_told_anew {
                builder.set(entry.key(), entry.value());
            }
        }
        builder.set(ours[0], 2u32).set(ours[1], self.file.number());
        if let Some(importance) = self.importance {
            builder.set("quantize.imatrix.file", beginning(&importance.file));
            if let Some(dataset) = &importance.dataset {
                builder.set("quantize.imatrix.dataset", beginning(dataset));
            }
            let count = u32::try_from(importance.len()).unwrap_or(u32::MAX);
            builder.set("quantize.imatrix.entries_count", count);
            if importance.chunks > 0 {
                builder.set("quantize.imatrix.chunks_count", importance.chunks);
            }
        }
        for (tensor, dtype) in &self.tensors {
            let (name, layout) = (tensor.info.name(), tensor.info.layout());
            let error = |source| QuantizeError::Layout { tensor: name.to_owned(), source };
            let new = Layout::packed(*dtype, layout.ne()).map_err(error)?;
            let weights = weights_of(self.importance, name, &layout)?;
            let shared = &shared;
            let data = Data::stream(move |out| {
                let (progress, done, failed) = &mut *shared.borrow_mut();
                let outcome = convert(tensor, *dtype, weights, threads.max(1), out, &mut |elements| {
                    *done += elements;
                    progress(name, *done);
                });
                outcome.map_err(|error| match error {
                    Convert::Io(error) => error,
                    Convert::Other(error) => {
                        *failed = Some(error);
                        io::Error::other("see above")
                    }
                })
            });
            builder.tensor(name, new, data);
        }
        let written = builder.write(out);
        match shared.into_inner().2 {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }
}

/// The beginning of a text, as long as llama.cpp's tool notes it.
fn beginning(text: &str) -> &str {
    let end = (0..=text.len().min(127)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// How much the columns of a tensor matter, if that is known.
fn weights_of<'m>(
    importance: Option<&'m Importance>,
    name: &str,
    layout: &Layout,
) -> Result<Option<&'m [f32]>, QuantizeError> {
    let ne = layout.ne().extents();
    importance.map_or(Ok(None), |importance| importance.of(name, ne[0], ne[2]))
}

/// Those of no layer first, then layer by layer, by name.
fn by_layer(a: &str, b: &str) -> Ordering {
    let layer = |name: &str| -> Option<u64> { name.strip_prefix("blk.")?.split('.').next()?.parse().ok() };
    layer(a).cmp(&layer(b)).then_with(|| a.cmp(b))
}

/// What the recipe wants to know; where the file does not say, a model without anything special.
fn about(model: &GgufSet, tensors: &[SetTensor<'_>]) -> Model {
    let metadata: Metadata<'_> = model.metadata();
    let architecture = metadata
        .get("general.architecture")
        .and_then(|entry| Some(entry.str().ok()?.to_owned()))
        .unwrap_or_default();
    // Of one number for each layer, the first counts.
    let number = |key: &str| {
        let entry = metadata.get(&format!("{architecture}.{key}"))?;
        let first = || entry.integers().ok()?.next().and_then(|number| usize::try_from(number).ok());
        entry.usize().ok().or_else(first)
    };
    let heads = number("attention.head_count").unwrap_or(0);
    Model {
        layers: number("block_count").unwrap_or(0),
        experts: number("expert_count").unwrap_or(0),
        heads,
        kv_heads: number("attention.head_count_kv").unwrap_or(heads),
        values: tensors.iter().filter(|tensor| recipe::makes_values(tensor.info.name())).count(),
        has_output: tensors.iter().any(|tensor| tensor.info.name() == "output.weight"),
        has_importance: false,
        architecture,
    }
}

/// Finds out before anything is written.
fn can_be_made(tensor: &str, dtype: DType, is_weighted: bool) -> Result<(), QuantizeError> {
    let values = vec![0.0; dtype.block_len()];
    let weights = vec![1.0; dtype.block_len()];
    let mut out = vec![0; dtype.block_bytes()];
    quantize_row(dtype, &values, is_weighted.then_some(&weights), &mut out)
        .map_err(|source| QuantizeError::Tensor { tensor: tensor.to_owned(), dtype, source })
}

/// Why a conversion ended.
enum Convert {
    Io(io::Error),
    Other(QuantizeError),
}

impl From<io::Error> for Convert {
    fn from(error: io::Error) -> Convert {
        Convert::Io(error)
    }
}

impl From<oxcart_gguf::Error> for Convert {
    fn from(error: oxcart_gguf::Error) -> Convert {
        Convert::Other(error.into())
    }
}

/// Writes a tensor as another type.
fn convert(
    tensor: &SetTensor<'_>,
    dtype: DType,
    weights: Option<&[f32]>,
    threads: usize,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Convert> {
    let layout = tensor.info.layout();
    let (from, columns) = (layout.dtype(), layout.ne().extents()[0]);
    let is_little = tensor.file.format().byte_order == ByteOrder::Little;
    // Rare enough to be read at once.
    let whole = match is_little {
        true => Vec::new(),
        false => {
            let mut bytes = vec![0; layout.byte_len()];
            tensor.file.read_tensor_little_endian(&tensor.info, &mut bytes)?;
            bytes
        }
    };
    let row = from.row_bytes(columns).unwrap_or(0).max(1);
    let rows = layout.byte_len() / row;
    let at_once = (SPAN / columns.max(1)).clamp(1, rows.max(1));
    let mut bytes = vec![0; at_once * row];
    for start in (0..rows).step_by(at_once) {
        let count = at_once.min(rows - start);
        let bytes = &mut bytes[..count * row];
        match is_little {
            true => tensor.file.read_tensor_part(&tensor.info, (start * row) as u64, bytes)?,
            false => bytes.copy_from_slice(&whole[start * row..(start + count) * row]),
        }
        if dtype == from {
            out.write_all(bytes)?;
        } else {
            // Each matrix of a tensor has weights of its own.
            let of_matrix = layout.ne().extents()[1].max(1);
            let of_row = |at: usize| weights.map(|all| &all[(start + at) / of_matrix * columns..][..columns]);
            let converted = convert_rows(from, dtype, columns, bytes, threads, of_row);
            let error = |source| {
                Convert::Other(QuantizeError::Tensor { tensor: tensor.info.name().to_owned(), dtype, source })
            };
            out.write_all(&converted.map_err(error)?)?;
        }
        progress((count * columns) as u64);
    }
    Ok(())
}

/// Rows as another type, each thread some of them.
fn convert_rows<'w>(
    from: DType,
    to: DType,
    columns: usize,
    bytes: &[u8],
    threads: usize,
    weights: impl Fn(usize) -> Option<&'w [f32]> + Sync,
) -> Result<Vec<u8>, QuantError> {
    let row = from.row_bytes(columns).ok_or(QuantError::PartialBlock { dtype: from, len: columns })?;
    let new_row = to.row_bytes(columns).ok_or(QuantError::PartialBlock { dtype: to, len: columns })?;
    let rows = bytes.len() / row.max(1);
    let mut out = vec![0; rows * new_row];
    let share = rows.div_ceil(threads).max(1);
    let convert = |first: usize, bytes: &[u8], out: &mut [u8]| {
        let mut values = vec![0.0; columns];
        for (at, (bytes, out)) in bytes.chunks_exact(row).zip(out.chunks_exact_mut(new_row)).enumerate() {
            dequantize_row(from, bytes, &mut values)?;
            quantize_row(to, &values, weights(first + at), out)?;
        }
        Ok(())
    };
    let convert = &convert;
    std::thread::scope(|scope| {
        let threads: Vec<_> = bytes
            .chunks(share * row)
            .zip(out.chunks_mut(share * new_row))
            .enumerate()
            .map(|(at, (bytes, out))| scope.spawn(move || convert(at * share, bytes, out)))
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(out)
}
