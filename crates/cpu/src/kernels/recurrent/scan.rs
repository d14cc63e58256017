//! The skeleton of recurrences: each head of each sequence has a state, a matrix that every token changes and that
//! every token's output is made of. The result is flat: outputs `[rows, heads, tokens, sequences]`, then the last
//! states `[width, rows, heads, sequences]`, newest first.
//!
//! Tokens come one after another, so work is cut by heads, sequences and, where rows of a state do not need each
//! other, by blocks of rows. Blocks are the same for any number of threads.

use std::ops::Range;

use crate::job::{Fault, Kernel, LONGEST_WHOLE, Run, Stop};
use crate::simd::Simd;
use crate::view::{Dst, Share};

/// Sizes of a recurrence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    /// Elements in a row of a state.
    pub(crate) width: usize,
    /// Rows of a state, which is also how many outputs a head has per token.
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    /// Tokens of each sequence.
    pub(crate) tokens: usize,
    pub(crate) sequences: usize,
    /// How many of the last states are wanted; those before the first token are not written.
    pub(crate) snapshots: usize,
    /// Rows that are computed together.
    pub(crate) block: usize,
}

/// One token of a block of rows.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub(crate) head: usize,
    pub(crate) token: usize,
    pub(crate) sequence: usize,
    pub(crate) rows: Range<usize>,
}

/// What a token does to a state.
pub(crate) trait Recurrence {
    /// How often it looks at each element of the state.
    const UNITS: usize = 1;

    /// Changes the rows of the state and makes their outputs.
    fn token<S: Simd>(&mut self, s: S, at: &At, state: &mut [f32], out: &mut [f32]);
}

impl Extents {
    fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block.max(1))
    }

    fn units(&self) -> usize {
        self.blocks().saturating_mul(self.heads).saturating_mul(self.sequences)
    }

    /// Bytes that [`scan`] needs for the state it works on.
    pub(crate) const fn scratch(&self) -> usize {
        self.block.saturating_mul(self.width).saturating_mul(size_of::<f32>())
    }

    /// Rows that are computed together, where they need not be: so many, but fewer of long rows, so that a token does not take
    /// long.
    pub(crate) fn block(most: usize, rows: usize, width: usize) -> usize {
        most.min(rows).min((LONGEST_WHOLE / width.max(1)).max(1))
    }

    /// A kernel that scans, with `extra` bytes of each thread's own besides the state; `None` if a token would take too long.
    pub(crate) fn kernel(&self, run: Run, extra: usize) -> Option<Kernel> {
        if self.block.saturating_mul(self.width) > LONGEST_WHOLE {
            return None;
        }
        let sizes = [self.width, self.rows, self.heads, self.tokens, self.sequences];
        let work = sizes.iter().fold(1, |work: usize, &n| work.saturating_mul(n));
        Some(Kernel::units(run, self.units(), work).own(self.scratch().saturating_add(extra)))
    }
}

/// Does this thread's share of a recurrence. `states` are the initial ones, of which sequence `q` begins with number
/// `first(q)`; `state` is memory for a block of rows.
#[inline(always)]
pub(crate) fn scan<S: Simd, R: Recurrence>(
    s: S,
    (dst, share, stop): (Dst<'_>, Share, Stop<'_>),
    extents: Extents,
    (states, first): (&[f32], impl Fn(usize) -> usize),
    state: &mut [f32],
    mut recurrence: R,
) -> Result<(), Fault> {
    let Extents { width, rows, heads, tokens, sequences, snapshots, block } = extents;
    let outputs = tokens * sequences * heads * rows;
    for unit in share.of(extents.units()) {
        let (start, unit) = (unit % extents.blocks() * block, unit / extents.blocks());
        let (head, sequence) = (unit % heads, unit / heads);
        let rows_here = start..(start + block).min(rows);
        let len = rows_here.len();
        let state = &mut state[..len * width];
        let from = ((first(sequence) * heads + head) * rows + start) * width;
        if stop.after(state.len()) {
            return Ok(());
        }
        state.copy_from_slice(&states[from..from + state.len()]);
        for token in 0..tokens {
            if stop.after(R::UNITS * state.len()) {
                return Ok(());
            }
            let at = At { head, token, sequence, rows: rows_here.clone() };
            let out = ((sequence * tokens + token) * heads + head) * rows + start;
            // SAFETY: only the outputs of this unit at this token are touched; no other unit has them.
            let mut out = unsafe { dst.packed::<f32>() }.part(out..out + len);
            recurrence.token(s, &at, state, out.slice());
            let age = tokens - 1 - token;
            if age < snapshots {
                if stop.after(state.len()) {
                    return Ok(());
                }
                let to = outputs + (((age * sequences + sequence) * heads + head) * rows + start) * width;
                // SAFETY: only this unit's rows of one snapshot are touched; no other unit has them.
                let mut to = unsafe { dst.packed::<f32>() }.part(to..to + state.len());
                to.slice().copy_from_slice(state);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::kernels::testing::Tensor;

    /// A flat result against outputs and the states after each token; what is older than the first token must not have
    /// been written.
    pub(crate) fn compare(y: &Tensor, outputs: &[f64], history: &[Vec<f64>], snapshots: usize) {
        let near = |found: f32, wanted: f64| (f64::from(found) - wanted).abs() <= 2e-5 * (1.0 + wanted.abs());
        let (values, size) = (y.values(), history[0].len());
        for (i, (&found, &wanted)) in values.iter().zip(outputs).enumerate() {
            assert!(near(found, wanted), "output {i} is {found} instead of {wanted}");
        }
        assert_eq!(values.len(), outputs.len() + snapshots * size);
        for age in 0..snapshots {
            let start = outputs.len() + age * size;
            match history.len().checked_sub(age + 1) {
                Some(token) => {
                    for (i, &wanted) in history[token].iter().enumerate() {
                        let found = values[start + i];
                        assert!(near(found, wanted), "state {i} of age {age} is {found} instead of {wanted}");
                    }
                }
                None => assert!((start..start + size).all(|i| y.is_untouched(i)), "age {age} was written"),
            }
        }
    }
}
