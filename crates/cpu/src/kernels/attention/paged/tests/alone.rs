//! A token's result has the same bits however tokens are cut into batches, whatever else is in them, wherever pages lie, and
//! on every instruction set with fused multiply-adds. That threads do not matter either is what every [`Trial`] shows.
//!
//! [`Trial`]: crate::kernels::testing::Trial

use std::collections::BTreeMap;

use oxcart_tensor::DType;
use proptest::prelude::*;

use super::super::PAGE;
use super::{Setup, Sources, plain};
use crate::kernels::testing::{Level, Tensor, numbers};

/// Some sequences, and which of their last tokens are computed.
#[derive(Clone, Debug)]
struct Sequences {
    setup: Setup,
    /// Tokens of each sequence, and how many of them are computed.
    lengths: Vec<(usize, usize)>,
    seed: u64,
}

/// Rows of a sequence: queries, keys, values, as bytes.
struct Rows {
    queries: Vec<f32>,
    keys: Tensor,
    values: Tensor,
}

/// Numbers below a bound that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

impl Sequences {
    fn rows(&self, sequence: usize) -> Rows {
        let Setup { d, dv, heads, key_heads, types, .. } = self.setup;
        let (length, _) = self.lengths[sequence];
        let seed = self.seed.wrapping_add(1000 * sequence as u64);
        let tensor = |seed, dtype, width: usize| {
            let values: Vec<_> = numbers(seed, width * length).iter().map(|x| 2.0 * x).collect();
            Tensor::of(dtype, [width, length], &values)
        };
        Rows {
            queries: numbers(seed + 1, d * heads * length).iter().map(|x| 3.0 * x).collect(),
            keys: tensor(seed + 2, types.0, d * key_heads),
            values: tensor(seed + 3, types.1, dv * key_heads),
        }
    }

    /// Tokens in batches: each batch takes some of the next tokens of some sequences, in any order, and padding.
    fn batches(&self, draw: &mut Draw, largest: usize) -> Vec<Vec<Option<(usize, usize)>>> {
        let mut next: Vec<_> = self.lengths.iter().map(|&(length, computed)| length - computed).collect();
        let mut batches = Vec::new();
        while next.iter().zip(&self.lengths).any(|(next, (length, _))| next < length) {
            let mut order: Vec<_> = (0..next.len()).collect();
            draw.shuffle(&mut order);
            let mut batch = Vec::new();
            for sequence in order {
                let left = self.lengths[sequence].0 - next[sequence];
                for _ in 0..draw.below(largest + 1).min(left) {
                    batch.push(Some((sequence, next[sequence])));
                    next[sequence] += 1;
                }
                if draw.below(4) == 0 {
                    batch.push(None);
                }
            }
            if batch.iter().any(Option::is_some) {
                batches.push(batch);
            }
        }
        batches
    }

    /// The tensors of a batch. Pages are anywhere, and cells behind the last token of a sequence hold anything.
    fn sources(&self, rows: &[Rows], batch: &[Option<(usize, usize)>], draw: &mut Draw) -> (Setup, Sources) {
        let Setup { d, dv, heads, key_heads, types, .. } = self.setup;
        let end_of = |sequence| {
            let positions = batch.iter().flatten().filter(|token| token.0 == sequence);
            positions.map(|token| token.1 + 1).max().unwrap_or(0)
        };
        let ends: Vec<_> = (0..rows.len()).map(end_of).collect();
        let pages: Vec<_> = ends.iter().map(|end| end.div_ceil(PAGE)).collect();
        let longest = pages.iter().copied().max().unwrap_or(0) + draw.below(3);
        let count = pages.iter().sum::<usize>() + 1 + draw.below(5);
        let mut free: Vec<_> = (0..count as i32).collect();
        draw.shuffle(&mut free);
        let mut table = vec![-1; longest * rows.len()];
        let garbage = |dtype: DType, width: usize| {
            let values = vec![if dtype.is_quantized() { 7.0 } else { f32::NAN }; width * count * PAGE];
            Tensor::of(dtype, [width, count * PAGE], &values)
        };
        let (mut keys, mut values) = (garbage(types.0, d * key_heads), garbage(types.1, dv * key_heads));
        for (sequence, (rows, &end)) in rows.iter().zip(&ends).enumerate() {
            for position in 0..end {
                let entry = &mut table[sequence * longest + position / PAGE];
                if *entry < 0 {
                    *entry = free.pop().unwrap();
                }
                let cell = *entry as usize * PAGE + position % PAGE;
                for (to, from) in [(&mut keys, &rows.keys), (&mut values, &rows.values)] {
                    let len = from.layout.nb()[1];
                    to.bytes[cell * len..][..len].copy_from_slice(&from.bytes[position * len..][..len]);
                }
            }
        }
        let mut queries = Vec::new();
        for token in batch {
            match *token {
                Some((sequence, at)) => {
                    queries.extend(&rows[sequence].queries[at * d * heads..][..d * heads]);
                }
                None => queries.extend(vec![1.0; d * heads]),
            }
        }
        let tokens: Vec<_> = batch
            .iter()
            .map(|token| token.map_or([-1, 0], |(sequence, at)| [sequence as i32, at as i32]))
            .collect();
        let sinks = numbers(self.seed + 9, heads);
        let sources = Sources {
            q: Tensor::of(DType::F32, [d, heads, batch.len()], &queries),
            keys,
            values,
            table: Tensor::i32([longest, rows.len()], &table),
            tokens: Tensor::i32([2, tokens.len()], &tokens.concat()),
            sinks: self.setup.sinks.then(|| Tensor::of(DType::F32, [heads, 1], &sinks)),
        };
        (Setup { tokens, ..self.setup.clone() }, sources)
    }

    /// The bits of every token's result.
    fn results(&self, draw: &mut Draw, largest: usize, level: Level) -> BTreeMap<(usize, usize), Vec<u32>> {
        let rows: Vec<_> = (0..self.lengths.len()).map(|sequence| self.rows(sequence)).collect();
        let width = self.setup.dv * self.setup.heads;
        let mut results = BTreeMap::new();
        for batch in self.batches(draw, largest) {
            let (setup, sources) = self.sources(&rows, &batch, draw);
            let found = setup.trial(&sources).on(level).values();
            for (token, found) in batch.iter().zip(found.chunks_exact(width)) {
                let bits: Vec<_> = found.iter().map(|x| x.to_bits()).collect();
                match *token {
                    Some(token) => assert!(results.insert(token, bits).is_none()),
                    None => assert!(bits.iter().all(|&bits| bits == 0)),
                }
            }
        }
        results
    }

    fn check(&self) {
        let mut draw = Draw(self.seed);
        for level in Level::available() {
            assert_eq!(self.results(&mut draw, usize::MAX - 1, level), self.results(&mut draw, 1, level));
        }
        // Scalar code rounds products before it adds them.
        let fused: Vec<_> = Level::available().into_iter().filter(|level| *level != Level::Scalar).collect();
        let Some(&first) = fused.first() else { return };
        let expected = self.results(&mut draw, usize::MAX - 1, first);
        assert_eq!(expected.len(), self.lengths.iter().map(|(_, computed)| computed).sum::<usize>());
        for largest in [3, 30] {
            for &level in &fused {
                let found = self.results(&mut draw, largest, level);
                assert!(found == expected, "{level}, at most {largest} at a time: {self:?}");
            }
        }
    }
}

/// Types of keys and of values; all that a cache may have.
fn types() -> impl Strategy<Value = DType> {
    use DType::{BF16, F16, F32, IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    prop::sample::select(vec![F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL])
}

prop_compose! {
    fn sequences()(
        (heads, key_heads) in prop::sample::select(vec![(1, 1), (6, 2), (9, 3), (8, 1), (14, 2), (5, 5)]),
        sizes in (1usize..4, 1usize..4),
        odd in any::<bool>(),
        types in (types(), types()),
        lengths in prop::collection::vec((1usize..1200, 1usize..30), 1..4),
        (sinks, softcap, max_bias) in prop::sample::select(vec![
            (false, 0.0, 0.0), (true, 0.0, 0.0), (false, 20.0, 0.0), (true, 0.0, 8.0),
        ]),
        (window, chunk) in prop::sample::select(vec![(0, 0), (0, 0), (100, 0), (700, 0), (0, 96), (0, 640)]),
        seed in 0u64..1_000_000,
    ) -> Sequences {
        // Only blocks need whole multiples of 32.
        let size = |n: usize, dtype: DType| {
            if odd && !dtype.is_quantized() { 32 * n - 7 } else { 32 * n }
        };
        let (d, dv) = (size(sizes.0, types.0), size(sizes.1, types.1));
        let lengths = lengths.into_iter().map(|(length, computed)| (length, computed.min(length))).collect();
        let setup = Setup { d, dv, heads, key_heads, types, sinks, softcap, max_bias, window, chunk, ..plain() };
        Sequences { setup, lengths, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_token_has_the_same_bits_in_any_batch(sequences in sequences()) {
        sequences.check();
    }
}

/// A prompt in one batch, and token by token, over several spans.
#[test]
fn a_prompt_has_the_bits_of_its_tokens() {
    for dtype in [DType::F16, DType::Q8_0, DType::Q5_1] {
        let setup = Setup { types: (dtype, dtype), heads: 3, key_heads: 1, ..plain() };
        Sequences { setup, lengths: vec![(1100, 60), (70, 70)], seed: 5 }.check();
    }
}
