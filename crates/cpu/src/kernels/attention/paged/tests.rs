//! Attention over pages against sums over all visible keys in double precision, and what must not matter to its bits.

mod alone;

use oxcart_tensor::DType;
use oxcart_tensor::ops::PagedAttn;

use super::super::super::soft_max::Slopes;
use super::PAGE;
use crate::kernels::testing::{Level, Tensor, Trial, nmse, numbers};

/// A batch: shapes, types and what is special about it.
#[derive(Clone, Debug)]
struct Setup {
    d: usize,
    dv: usize,
    heads: usize,
    key_heads: usize,
    types: (DType, DType),
    /// Sequence and position of each token.
    tokens: Vec<[i32; 2]>,
    sinks: bool,
    softcap: f32,
    max_bias: f32,
    window: usize,
    chunk: usize,
}

/// One token far into a sequence, a piece of a prompt, padding, and the first token of a third sequence.
fn plain() -> Setup {
    let piece = (60..70).map(|position| [2, position]);
    let tokens = [[0, 700]].into_iter().chain(piece).chain([[-1, 0], [1, 0]]).collect();
    Setup {
        d: 32,
        dv: 32,
        heads: 6,
        key_heads: 2,
        types: (DType::F32, DType::F32),
        tokens,
        sinks: false,
        softcap: 0.0,
        max_bias: 0.0,
        window: 0,
        chunk: 0,
    }
}

/// Tensors of a batch.
#[derive(Clone)]
struct Sources {
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    tokens: Tensor,
    sinks: Option<Tensor>,
}

impl Setup {
    fn op(&self) -> PagedAttn {
        let Setup { key_heads, softcap, max_bias, window, chunk, .. } = *self;
        let scale = 1.0 / (self.d.max(1) as f32).sqrt();
        PagedAttn { key_heads, scale, softcap, max_bias, window, chunk }
    }

    fn sequences(&self) -> usize {
        self.tokens.iter().map(|token| token[0] + 1).max().unwrap_or(0) as usize
    }

    /// The first position that a token sees.
    fn first(&self, position: usize) -> usize {
        let window = if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) };
        window.max(position.checked_div(self.chunk).unwrap_or(0) * self.chunk)
    }

    /// Pages of all sequences, in an order that looks random.
    fn sources(&self, seed: u64) -> Sources {
        let sequences = self.sequences();
        let pages_of = |token: &[i32; 2]| if token[0] < 0 { 0 } else { token[1] as usize / PAGE + 1 };
        let longest = self.tokens.iter().map(pages_of).max().unwrap_or(0);
        let mut table = vec![-1; longest * sequences];
        let mut pages = 0;
        for sequence in 0..sequences {
            let own = self.tokens.iter().filter(|token| token[0] == sequence as i32);
            let Some(last) = own.map(|token| token[1] as usize).max() else { continue };
            for page in 0..=last / PAGE {
                table[sequence * longest + page] = pages;
                pages += 1;
            }
        }
        // One page belongs to no sequence.
        let count = pages as usize + 1;
        let mut order: Vec<_> = (0..count as i32).collect();
        let noise = numbers(seed.wrapping_add(77), count);
        order.sort_by(|&a, &b| noise[a as usize].total_cmp(&noise[b as usize]));
        table.iter_mut().filter(|page| **page >= 0).for_each(|page| *page = order[*page as usize]);
        let fill = |seed, dtype, ne: [usize; 2], size: f32| {
            let values: Vec<_> = numbers(seed, ne.iter().product()).iter().map(|x| x * size).collect();
            Tensor::of(dtype, ne, &values)
        };
        let Setup { d, dv, heads, key_heads, types, .. } = *self;
        let rows = self.tokens.len();
        Sources {
            q: Tensor::of(
                DType::F32,
                [d, heads, rows],
                numbers(seed, d * heads * rows).iter().map(|x| 2.0 * x),
            ),
            keys: fill(seed + 1, types.0, [d * key_heads, count * PAGE], 2.0),
            values: fill(seed + 2, types.1, [dv * key_heads, count * PAGE], 1.0),
            table: Tensor::i32([longest, sequences], &table),
            tokens: Tensor::i32([2, rows], &self.tokens.concat()),
            sinks: self.sinks.then(|| fill(seed + 3, DType::F32, [heads, 1], 5.0)),
        }
    }

    fn exact(&self, sources: &Sources) -> Vec<f64> {
        let [q, keys, values] = [&sources.q, &sources.keys, &sources.values].map(Tensor::exact);
        let sinks = sources.sinks.as_ref().map(Tensor::exact);
        let (table, longest) = (sources.table.i32s(), sources.table.ne()[0]);
        let Setup { d, dv, heads, key_heads, softcap, .. } = *self;
        let (slopes, scale) = (Slopes::new(self.max_bias, heads), f64::from(self.op().scale));
        let mut all = Vec::new();
        for (token, &[sequence, position]) in self.tokens.iter().enumerate() {
            if sequence < 0 {
                all.extend(vec![0.0; dv * heads]);
                continue;
            }
            let (sequence, position) = (sequence as usize, position as usize);
            let cells: Vec<_> = (self.first(position)..=position)
                .map(|at| (at, table[sequence * longest + at / PAGE] as usize * PAGE + at % PAGE))
                .collect();
            for head in 0..heads {
                let (q, key_head) = (&q[(token * heads + head) * d..][..d], head / (heads / key_heads));
                let score = |&(at, cell): &(usize, usize)| {
                    let key = &keys[(cell * key_heads + key_head) * d..][..d];
                    let mut score = q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * scale;
                    if softcap != 0.0 {
                        score = f64::from(softcap) * (score / f64::from(softcap)).tanh();
                    }
                    if self.max_bias > 0.0 {
                        score -= f64::from(slopes.of(head)) * (position - at) as f64;
                    }
                    score
                };
                let scores: Vec<_> = cells.iter().map(score).collect();
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().copied().chain(sink).map(|x| (x - max).exp()).sum();
                let mut row = vec![0.0; dv];
                for (score, (_, cell)) in scores.iter().zip(&cells) {
                    let value = &values[(cell * key_heads + key_head) * dv..][..dv];
                    row.iter_mut().zip(value).for_each(|(y, v)| *y += (score - max).exp() / sum * v);
                }
                all.extend(row);
            }
        }
        all
    }

    fn trial<'a>(&self, sources: &'a Sources) -> Trial<'a> {
        let Sources { q, keys, values, table, tokens, sinks } = sources;
        Trial::with(
            self.op(),
            &[Some(q), Some(keys), Some(values), Some(table), Some(tokens), sinks.as_ref()],
        )
    }

    fn check(&self, most: f64) {
        let sources = self.sources(1);
        let exact = self.exact(&sources);
        for level in Level::available() {
            let error = nmse(&self.trial(&sources).on(level).values(), &exact);
            assert!(error < most, "{level}: {error:.2e}: {self:?}");
        }
    }
}

#[test]
fn any_length_and_place() {
    plain().check(1e-11);
    for last in [0, 1, 62, 63, 64, 65, 511, 512, 513, 1100] {
        for count in [1, 2, 40] {
            let first = (last + 1 - count).max(0);
            Setup { tokens: (first..=last).map(|position| [0, position]).collect(), ..plain() }.check(1e-11);
        }
    }
}

#[test]
fn windows_chunks_sinks_slopes_and_caps() {
    for (window, chunk) in [(0, 0), (1, 0), (64, 0), (100, 0), (0, 1), (0, 48), (0, 512), (100, 130)] {
        for (sinks, max_bias, softcap) in [(false, 0.0, 0.0), (true, 8.0, 0.0), (true, 0.0, 3.0)] {
            Setup { window, chunk, sinks, max_bias, softcap, ..plain() }.check(1e-11);
        }
    }
}

#[test]
fn heads_share_keys_and_values() {
    for (heads, key_heads) in [(1, 1), (12, 1), (9, 3), (5, 5), (40, 2), (70, 1)] {
        Setup { heads, key_heads, ..plain() }.check(1e-11);
    }
}

#[test]
fn heads_of_any_size() {
    for (d, dv) in [(1, 1), (2, 3), (40, 40), (72, 64), (33, 47), (192, 128), (576, 512)] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            Setup { d, dv, types: (dtype, dtype), ..plain() }.check(1e-11);
        }
    }
}

/// Every type of keys and of values. Queries rounded to eight bits are what the limit is about.
#[test]
fn every_type_of_keys_and_values() {
    let tokens = || plain().tokens.split_off(4);
    for dtype in DType::all().filter(|dtype| dtype.dot_partner().is_some()) {
        let (d, dv, heads) = (256, 32, 4);
        Setup { d, dv, heads, tokens: tokens(), types: (dtype, DType::F16), ..plain() }.check(3e-4);
    }
    for dtype in DType::all().filter(|dtype| dtype.decodes()) {
        let (d, dv, heads) = (32, 256, 4);
        Setup { d, dv, heads, tokens: tokens(), types: (DType::F16, dtype), ..plain() }.check(1e-11);
    }
}

/// Values as the first channels of keys, rows of both further apart than they are long.
#[test]
fn values_may_be_part_of_keys() {
    let setup = Setup { d: 96, dv: 64, heads: 16, key_heads: 1, types: (DType::F16, DType::F16), ..plain() };
    let mut sources = setup.sources(1);
    let cells = sources.keys.ne()[1];
    sources.values = sources.keys.clone().strided([64, cells], [2, 192, 192 * cells, 192 * cells]);
    let exact = setup.exact(&sources);
    for level in Level::available() {
        assert!(nmse(&setup.trial(&sources).on(level).values(), &exact) < 1e-11, "{level}");
    }
}

/// Cells that a token does not see, of its own pages too, may hold anything.
#[test]
fn what_is_not_seen_may_be_anything() {
    let setup = Setup { window: 90, ..plain() };
    let mut sources = setup.sources(1);
    let exact = setup.exact(&sources);
    let (table, longest) = (sources.table.i32s(), sources.table.ne()[0]);
    let mut seen = vec![false; sources.keys.ne()[1]];
    for &[sequence, position] in setup.tokens.iter().filter(|token| token[0] >= 0) {
        for at in setup.first(position as usize)..=position as usize {
            seen[table[sequence as usize * longest + at / PAGE] as usize * PAGE + at % PAGE] = true;
        }
    }
    for (tensor, bad) in [(&mut sources.keys, f32::NAN), (&mut sources.values, f32::INFINITY)] {
        let mut values = tensor.values();
        for (row, _) in values.chunks_mut(64).zip(&seen).filter(|(_, seen)| !**seen) {
            row.fill(bad);
        }
        *tensor = Tensor::of(DType::F32, [64, seen.len()], &values);
    }
    for level in Level::available() {
        assert!(nmse(&setup.trial(&sources).on(level).values(), &exact) < 1e-11, "{level}");
    }
}

#[test]
fn bad_indices_are_refused() {
    let setup = plain();
    let refused = |change: &dyn Fn(&mut Sources), because: &str| {
        let mut sources = setup.sources(1);
        change(&mut sources);
        let why = setup.trial(&sources).refused();
        assert!(why.contains(because), "{why}");
    };
    let set = |tensor: &mut Tensor, index: usize, value: i32| {
        tensor.bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    };
    refused(&|sources| set(&mut sources.tokens, 0, 3), "sequence 3 is not below 3");
    refused(&|sources| set(&mut sources.tokens, 0, i32::MAX), "sequence 2147483647 is not below 3");
    refused(&|sources| set(&mut sources.tokens, 1, 704), "position 704 is not below 704");
    refused(&|sources| set(&mut sources.tokens, 1, -1), "position -1 is not below 704");
    refused(&|sources| set(&mut sources.table, 3, -1), "page -1 is not below 15");
    refused(&|sources| set(&mut sources.table, 10, 15), "page 15 is not below 15");
    refused(&|sources| set(&mut sources.table, 0, i32::MIN), "page -2147483648 is not below 15");
}

/// Pages outside the window of every token need not be there.
#[test]
fn only_pages_that_are_seen_are_looked_up() {
    let setup = Setup { window: 130, tokens: vec![[0, 700]], ..plain() };
    let mut sources = setup.sources(1);
    let exact = setup.exact(&sources);
    for page in 0..571 / PAGE {
        sources.table.bytes[4 * page..][..4].copy_from_slice(&(-1i32).to_le_bytes());
    }
    for level in Level::available() {
        assert!(nmse(&setup.trial(&sources).on(level).values(), &exact) < 1e-11);
    }
}

#[test]
fn padding_gives_zeros() {
    let setup = Setup { tokens: vec![[0, 3], [-1, 5], [-7, i32::MIN]], sinks: true, ..plain() };
    for level in Level::available() {
        let found = setup.trial(&setup.sources(1)).on(level).values();
        assert!(found[..192].iter().all(|&x| x != 0.0));
        assert!(found[192..].iter().all(|&x| x.to_bits() == 0));
    }
}
