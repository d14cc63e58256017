//! Importance data collected from a model: squares of what goes into its matrices while it reads a text, summed by column, in the
//! file format of llama.cpp's `llama-imatrix`.
//!
//! Invariant: every row that counts is that of a token of the text. Texts are computed in pieces for which graphs are built exactly, so
//! that nothing fills up a step.

use std::collections::BTreeMap;
use std::io::Write;

use oxcart_backend::Buffers;
use oxcart_gguf::Builder;
use oxcart_tensor::{DType, Layout, Op, Shape, TensorId, TensorRef};

use super::QuantizeError;
use super::importance::ENDS;
use crate::model::Error;
use crate::runner::batch::largest_bucket;
use crate::runner::watch::Watch;
use crate::runner::{Piece, Runner, SequenceId, Wanted};

/// Collects importance data.
#[derive(Debug)]
pub struct Collector {
    sums: BTreeMap<String, Sums>,
    chunk_tokens: usize,
    chunks: usize,
    /// Whether the matrix of the output counts, too.
    with_output: bool,
    /// What was read last and from which tensor: several matrices have the same rows.
    rows: Option<(TensorId, Vec<u8>)>,
}

/// What went into one tensor.
#[derive(Debug)]
struct Sums {
    /// Columns of all matrices, one after another.
    squares: Vec<f64>,
    /// Rows that each matrix was multiplied with where matrices are chosen by row, else those of all of them, as one number.
    counts: Vec<f64>,
}

impl Collector {
    /// Nothing so far, of chunks of so many tokens. Matrices of blocks count, and that of the output if it shall.
    pub fn new(chunk_tokens: usize, with_output: bool) -> Collector {
        Collector { sums: BTreeMap::new(), chunk_tokens, chunks: 0, with_output, rows: None }
    }

    /// Has a model read a chunk, without knowing of those before.
    pub fn read(&mut self, runner: &mut Runner, chunk: &[u32]) -> Result<(), Error> {
        let sequence = runner.open()?;
        let read = self.read_in(runner, sequence, chunk);
        runner.close(sequence)?;
        self.rows = None;
        self.chunks += usize::from(read.is_ok());
        read
    }

    fn read_in(&mut self, runner: &mut Runner, sequence: SequenceId, chunk: &[u32]) -> Result<(), Error> {
        let batch = runner.options().batch;
        let mut rest = chunk;
        while !rest.is_empty() {
            let (tokens, behind) = rest.split_at(largest_bucket(rest.len().min(batch)));
            // With results of all tokens, since the last blocks leave out those of which none are wanted.
            let piece = Piece { sequence, tokens, wanted: Wanted::From(0) };
            self.rows = None;
            runner.compute_watched(&[piece], self)?;
            rest = behind;
        }
        Ok(())
    }

    /// Tensors that it knows something about.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether it knows nothing.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Writes the file, with the names of the texts that were read. Returns its length.
    pub fn write(&self, texts: &[&str], out: impl Write) -> Result<u64, QuantizeError> {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut builder = Builder::new();
        builder.set("general.type", "imatrix").set("imatrix.datasets", texts.to_vec());
        builder.set("imatrix.chunk_count", number(self.chunks));
        builder.set("imatrix.chunk_size", number(self.chunk_tokens));
        for (name, sums) in &self.sums {
            let matrices = sums.counts.len();
            for (end, numbers, columns) in
                [(ENDS[0], &sums.squares, sums.squares.len() / matrices), (ENDS[1], &sums.counts, 1)]
            {
                let tensor = format!("{name}{end}");
                let error = |source| QuantizeError::Layout { tensor: tensor.clone(), source };
                let layout = Layout::packed(DType::F32, Shape::from([columns, matrices])).map_err(error)?;
                let bytes: Vec<u8> =
                    numbers.iter().flat_map(|number| (*number as f32).to_le_bytes()).collect();
                builder.tensor(&tensor, layout, bytes);
            }
        }
        Ok(builder.write(out)?)
    }

    /// The tensor that a node multiplies with, if it is one that counts.
    fn matrices_of<'g>(&self, node: TensorRef<'g>) -> Option<(&'g str, TensorRef<'g>, TensorRef<'g>)> {
        if !matches!(node.op(), Op::MulMat(_) | Op::MulMatId(_)) {
            return None;
        }
        let (matrices, rows) = (node.source(0)?, node.source(1)?);
        let name = matrices.root().name().filter(|_| matrices.root().is_leaf())?;
        let counts = name.starts_with("blk.") || (self.with_output && name == "output.weight");
        (counts && rows.dtype() == DType::F32).then_some((name, matrices, rows))
    }
}

impl Watch for Collector {
    fn wants(&self, node: TensorRef<'_>) -> bool {
        self.matrices_of(node).is_some()
    }

    fn look(&mut self, node: TensorRef<'_>, buffers: &Buffers) -> Result<(), Error> {
        let Some((name, matrices, rows)) = self.matrices_of(node) else { return Ok(()) };
        let name = name.to_owned();
        let bytes = match self.rows.take() {
            Some((id, bytes)) if id == rows.id() => bytes,
            _ => buffers.bytes(rows)?,
        };
        let [_, _, deep, wide] = matrices.ne().extents();
        let (columns, count) = (rows.ne().extents()[0], deep * wide);
        let chosen = match node.source(2) {
            Some(ids) => Some((ids, buffers.bytes(ids)?)),
            None => None,
        };
        let sums = self.sums.entry(name).or_insert_with(|| Sums {
            squares: vec![0.0; columns * count],
            counts: vec![0.0; if chosen.is_some() { count } else { 1 }],
        });
        let rows_of = Rows { bytes: &bytes, layout: *rows.layout() };
        match &chosen {
            Some((ids, numbers)) => sums.add_chosen(rows_of, *ids.layout(), numbers),
            None => sums.add(rows_of, [deep, wide]),
        }
        self.rows = Some((rows.id(), bytes));
        Ok(())
    }
}

/// Rows as they lie in memory.
#[derive(Clone, Copy)]
struct Rows<'b> {
    bytes: &'b [u8],
    layout: Layout,
}

impl Rows<'_> {
    /// Adds the squares of a row.
    fn add_squares(&self, [i1, i2, i3]: [usize; 3], sums: &mut [f64]) {
        let nb = self.layout.nb();
        let start = i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
        for (column, sum) in sums.iter_mut().enumerate() {
            let at = start + column * nb[0];
            let number = self.bytes.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            let number = f64::from(f32::from_le_bytes(number.unwrap_or_default()));
            *sum += number * number;
        }
    }
}

impl Sums {
    /// Rows that each matrix is multiplied with that they meet; one matrix, with all of them.
    fn add(&mut self, rows: Rows<'_>, [deep, wide]: [usize; 2]) {
        let [columns, high, far, farther] = rows.layout.ne().extents();
        for (i3, i2) in (0..farther).flat_map(|i3| (0..far).map(move |i2| (i3, i2))) {
            let matrix = (i3 % wide) * deep + i2 % deep;
            let sums = &mut self.squares[matrix * columns..][..columns];
            (0..high).for_each(|i1| rows.add_squares([i1, i2, i3], sums));
        }
        self.counts[0] += (high * far * farther) as f64 / (deep * wide) as f64;
    }

    /// Rows, each with the matrices that were chosen for its token.
    fn add_chosen(&mut self, rows: Rows<'_>, ids: Layout, numbers: &[u8]) {
        let [columns, slots, tokens, _] = rows.layout.ne().extents();
        let (used, nb) = (ids.ne().extents()[0], ids.nb());
        for (token, slot) in (0..tokens).flat_map(|token| (0..used).map(move |slot| (token, slot))) {
            let at = token * nb[1] + slot * nb[0];
            let id = numbers.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            let matrix = id.and_then(|id| usize::try_from(i32::from_le_bytes(id)).ok());
            let Some(matrix) = matrix.filter(|matrix| *matrix < self.counts.len()) else { continue };
            rows.add_squares([slot % slots, token, 0], &mut self.squares[matrix * columns..][..columns]);
            self.counts[matrix] += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(numbers: &[f32], ne: [usize; 4]) -> (Vec<u8>, Layout) {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        (bytes, Layout::packed(DType::F32, Shape::from(ne)).unwrap())
    }

    fn sums(squares: usize, counts: usize) -> Sums {
        Sums { squares: vec![0.0; squares], counts: vec![0.0; counts] }
    }

    #[test]
    fn one_matrix_is_multiplied_with_all_rows() {
        let (bytes, layout) = rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 1, 3, 1]);
        let mut one = sums(2, 1);
        one.add(Rows { bytes: &bytes, layout }, [1, 1]);
        assert_eq!((one.squares, one.counts), (vec![35.0, 56.0], vec![3.0]));
    }

    #[test]
    fn matrices_of_heads_have_rows_of_their_own() {
        let (bytes, layout) = rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [2, 2, 2, 1]);
        let mut two = sums(4, 1);
        two.add(Rows { bytes: &bytes, layout }, [2, 1]);
        assert_eq!((two.squares, two.counts), (vec![10.0, 20.0, 74.0, 100.0], vec![2.0]));
    }

    #[test]
    fn experts_count_the_rows_that_chose_them() {
        // Two tokens, which two of three experts see: [columns, 1, tokens] and ids [used, tokens].
        let (bytes, layout) = rows(&[1.0, 2.0, 3.0, 4.0], [2, 1, 2, 1]);
        let ids: Vec<u8> = [0_i32, 2, 2, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
        let shape = Layout::packed(DType::I32, Shape::from([2, 2])).unwrap();
        let mut three = sums(6, 3);
        three.add_chosen(Rows { bytes: &bytes, layout }, shape, &ids);
        assert_eq!(three.squares, [1.0, 4.0, 0.0, 0.0, 10.0, 20.0]);
        assert_eq!(three.counts, [1.0, 0.0, 2.0]);
    }
}
