//! Embeddings of n-grams: of a token and those just before it, found by a hash.

use super::HyperParameters;
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{
    MAX_BLOCKS, MAX_CONVOLUTION, MAX_HEAD_SIZE, MAX_NGRAM, MAX_NGRAM_ROWS, MAX_VOCABULARY,
};

/// Embeddings of n-grams, which one block adds to its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ngrams {
    /// The block.
    pub block: usize,
    /// Tokens of the longest; there are some of each length from two on.
    pub longest: usize,
    /// Channels of an embedding.
    pub width: usize,
    /// Tokens that the convolution sees, each so many apart as the longest n-gram has.
    pub taps: usize,
    /// The token that ends a text; what is before it is not seen.
    pub end: u32,
    /// What tokens are multiplied by, the last one first.
    pub multipliers: Vec<u64>,
    /// By embedding, the first row of the table that it may be and how many they are; as many for each length.
    pub ranges: Vec<(u32, u32)>,
}

impl Ngrams {
    /// Reads them, if there are any.
    pub(crate) fn read(keys: &Keys<'_>, hyper: &HyperParameters) -> Result<Option<Ngrams>, Error> {
        let key = "ple.layers";
        let Some(blocks) = keys.list(key, MAX_BLOCKS)?.filter(|blocks| !blocks.is_empty()) else {
            return Ok(None);
        };
        let block = blocks[0];
        if blocks.len() > 1 || !hyper.blocks.get(block).is_some_and(super::Block::is_recurrent) {
            return Err(keys.refuse(key, format!("{blocks:?}"), "must be one recurrent block"));
        }
        let key = "ple.ngram_size";
        let longest = keys.need_count(key, MAX_NGRAM)?;
        let each = keys.need_count("ple.heads_per_ngram", MAX_HEAD_SIZE)?;
        let width = keys.need_count("embedding_length_per_layer_input", MAX_HEAD_SIZE)?;
        let count = (longest - 1) * each;
        if longest < 2 || count * width != hyper.embedding {
            let rule = format!("{count} embeddings of {width} channels must be {} together", hyper.embedding);
            return Err(keys.refuse(key, longest, rule));
        }
        let list = |key: &str, count: usize, most: usize| -> Result<Vec<usize>, Error> {
            let list = keys.list(key, most)?.unwrap_or_default();
            match list.len() >= count {
                true => Ok(list),
                false => Err(keys.refuse(key, format!("{} numbers", list.len()), format!("must be {count}"))),
            }
        };
        let multipliers = list("ple.layer_multipliers", longest, usize::MAX)?;
        let firsts = list("ple.head_offsets", count, MAX_NGRAM_ROWS)?;
        let key = "ple.head_vocab_sizes";
        let sizes = list(key, count, MAX_NGRAM_ROWS)?;
        if sizes[..count].contains(&0) {
            return Err(keys.refuse(key, 0, "must be above zero"));
        }
        let end = keys.count("ple.eos_token_id", MAX_VOCABULARY)?.unwrap_or(0);
        Ok(Some(Ngrams {
            block,
            longest,
            width,
            taps: keys.need_count("ple.conv_kernel", MAX_CONVOLUTION)?,
            end: end as u32,
            multipliers: multipliers[..longest].iter().map(|&factor| factor as u64).collect(),
            ranges: firsts.iter().zip(&sizes).take(count).map(|(&a, &b)| (a as u32, b as u32)).collect(),
        }))
    }

    /// Rows that the table must have.
    pub(crate) fn rows(&self) -> usize {
        self.ranges.iter().map(|&(first, count)| (first + count) as usize).max().unwrap_or(0)
    }

    /// Numbers that the convolution has seen last, of so many channels.
    pub(crate) fn history(&self, channels: usize) -> usize {
        (self.taps - 1) * self.longest * channels
    }

    /// The rows of the last of these tokens. What is before the first, or before the end of a text, is as if texts ended there.
    pub(crate) fn rows_of<'n>(&'n self, tokens: &[u32]) -> impl Iterator<Item = u32> + use<'n> {
        let mut before = tokens.iter().rev().copied();
        let mut mixed = self.multipliers[0].wrapping_mul(before.next().unwrap_or(self.end).into());
        let mut is_cut = false;
        let each = self.ranges.len() / (self.longest - 1);
        let mut hashes = Vec::with_capacity(self.longest - 1);
        for factor in &self.multipliers[1..] {
            let token = before.next().filter(|&token| !is_cut && token != self.end);
            is_cut = token.is_none();
            mixed ^= factor.wrapping_mul(token.unwrap_or(self.end).into());
            hashes.push(mixed);
        }
        let ranges = self.ranges.iter().enumerate();
        ranges.map(move |(index, &(first, count))| first + (hashes[index / each] % u64::from(count)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ngrams() -> Ngrams {
        let (multipliers, ranges) = (vec![1, 3, 5], vec![(0, 100), (100, 7), (200, 100), (300, 100)]);
        Ngrams { block: 0, longest: 3, width: 4, taps: 2, end: 9, multipliers, ranges }
    }

    #[test]
    fn a_hash_takes_in_the_tokens_before() {
        let rows: Vec<u32> = ngrams().rows_of(&[4, 6, 2]).collect();
        let (two, three) = (2 ^ 18, 2 ^ 18 ^ 20);
        assert_eq!(rows, [two, 100 + two % 7, 200 + three, 300 + three]);
    }

    #[test]
    fn the_end_of_a_text_hides_what_is_before_it() {
        let rows = |tokens: &[u32]| ngrams().rows_of(tokens).collect::<Vec<_>>();
        assert_eq!(rows(&[4, 9, 2]), rows(&[2]));
        assert_eq!(rows(&[6, 9]), [9 ^ 18, 100 + (9 ^ 18) % 7, 200 + (9 ^ 18 ^ 45), 300 + (9 ^ 18 ^ 45)]);
        assert_ne!(rows(&[9, 6, 2]), rows(&[4, 6, 2]));
    }
}
