//! Importance data: how much each column of a tensor matters, as squares of what goes into it, from a file that llama.cpp's
//! `llama-imatrix` writes.
//!
//! Invariant: all weights are finite and not negative.

use std::collections::BTreeMap;
use std::path::Path;

use oxcart_gguf::{Gguf, TensorInfo};
use oxcart_tensor::DType;

use super::QuantizeError;

/// What stands behind the name of a tensor: sums of squares, and over how many rows they are.
pub(super) const ENDS: [&str; 2] = [".in_sum2", ".counts"];

/// How much columns of tensors matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// Columns of all matrices of a tensor, one after another.
    weights: BTreeMap<String, Vec<f32>>,
    /// Where it came from.
    pub(super) file: String,
    pub(super) dataset: Option<String>,
    pub(super) chunks: u32,
}

impl Importance {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Importance, QuantizeError> {
        let file = Gguf::open(path)?;
        let metadata = file.metadata();
        let wrong = |reason: String| QuantizeError::Importance { reason };
        let is_it = metadata.get("general.type").and_then(|entry| entry.str().ok()) == Some("imatrix");
        let chunks = metadata.get("imatrix.chunk_count").and_then(|entry| entry.usize().ok());
        let (true, Some(chunks)) = (is_it, chunks) else {
            return Err(wrong("the file has none".into()));
        };
        let dataset = metadata.get("imatrix.datasets").and_then(|entry| entry.strings().ok()?.next());
        let mut weights = BTreeMap::new();
        for sums in file.tensors().iter().filter(|tensor| tensor.name().ends_with(ENDS[0])) {
            let name = &sums.name()[..sums.name().len() - ENDS[0].len()];
            let counts = file
                .tensor(&format!("{name}{}", ENDS[1]))
                .ok_or_else(|| wrong(format!("{name} has sums, but no counts")))?;
            let (sums, counts) = (numbers(&file, &sums)?, numbers(&file, &counts)?);
            weights.insert(name.to_owned(), means(name, &sums, &counts)?);
        }
        match weights.is_empty() {
            true => Err(wrong("the file has none".into())),
            false => Ok(Importance {
                weights,
                file: path.to_string_lossy().into_owned(),
                dataset: dataset.map(|text| text.to_string()),
                chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
            }),
        }
    }

    /// Tensors that it is about.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether it is about none.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The weights of a tensor of so many columns and matrices, if it is about it.
    pub(super) fn of(
        &self,
        name: &str,
        columns: usize,
        matrices: usize,
    ) -> Result<Option<&[f32]>, QuantizeError> {
        match self.weights.get(name) {
            Some(weights) if weights.len() == columns * matrices => Ok(Some(weights)),
            // Those of embeddings are about what comes out of them.
            Some(_) if name != "token_embd.weight" => Err(QuantizeError::Importance {
                reason: format!("it is about another model: {name} has {columns} x {matrices} columns"),
            }),
            _ => Ok(None),
        }
    }
}

/// All numbers of a tensor.
fn numbers(file: &Gguf, info: &TensorInfo<'_>) -> Result<Vec<f32>, QuantizeError> {
    if info.layout().dtype() != DType::F32 {
        return Err(QuantizeError::Importance { reason: format!("{} is not F32", info.name()) });
    }
    let mut bytes = vec![0; info.layout().byte_len()];
    file.read_tensor_little_endian(info, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

/// Sums as means; what was never used matters as much as anything.
fn means(name: &str, sums: &[f32], counts: &[f32]) -> Result<Vec<f32>, QuantizeError> {
    let wrong = |reason: &str| QuantizeError::Importance { reason: format!("{name}: {reason}") };
    if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        return Err(wrong("sums and counts do not belong together"));
    }
    let of_each = sums.len() / counts.len();
    let mut means = Vec::with_capacity(sums.len());
    for (sums, count) in sums.chunks_exact(of_each).zip(counts) {
        let count = count.round();
        means.extend(sums.iter().map(|sum| if count > 0.0 { sum / count } else { 1.0 }));
    }
    match means.iter().all(|mean| mean.is_finite() && *mean >= 0.0) {
        true => Ok(means),
        false => Err(wrong("a number is negative or not finite")),
    }
}

#[cfg(test)]
mod tests {
    use oxcart_gguf::Builder;
    use oxcart_tensor::{Layout, Shape};

    use super::*;

    fn file(counts: &[f32], sums: &[f32]) -> Result<Importance, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let layout = |ne: [usize; 4]| Layout::packed(DType::F32, Shape::from(ne)).unwrap();
        let (columns, matrices) = (sums.len() / counts.len(), counts.len());
        let mut builder = Builder::new();
        builder.set("general.type", "imatrix").set("imatrix.datasets", vec!["text.txt"]);
        builder.set("imatrix.chunk_count", 3u32).set("imatrix.chunk_size", 512u32);
        builder.tensor("blk.0.x.weight.in_sum2", layout([columns, matrices, 1, 1]), bytes(sums));
        builder.tensor("blk.0.x.weight.counts", layout([1, matrices, 1, 1]), bytes(counts));
        builder.write(std::fs::File::create(&path).unwrap()).unwrap();
        Importance::open(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn sums_become_means() {
        let read = file(&[2.0, 0.0], &[2.0, 4.0, 7.0, 8.0]).unwrap();
        assert_eq!(read.of("blk.0.x.weight", 2, 2).unwrap(), Some(&[1.0, 2.0, 1.0, 1.0][..]));
        assert_eq!((read.len(), read.chunks, read.dataset.as_deref()), (1, 3, Some("text.txt")));
        assert_eq!(read.of("blk.0.y.weight", 2, 2).unwrap(), None);
        assert!(read.of("blk.0.x.weight", 2, 1).unwrap_err().to_string().contains("another model"));
        assert!(file(&[1.0], &[-1.0]).unwrap_err().contains("negative"));
        assert!(file(&[1.0], &[f32::NAN]).unwrap_err().contains("not finite"));
    }
}
