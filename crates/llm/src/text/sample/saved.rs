//! A sampler as bytes: its settings, where it is, and what it has seen.
//!
//! ```text
//! "OXSA"  u32 version (1)
//! settings: f32 temperature, range, exponent, top-n-sigma; u64 top-k; f32 typical-p, top-p, min-p, xtc probability, xtc
//!     threshold; u8 mirostat [f32 tau, eta]; f32 repeat, frequency, presence penalty; u64 window; u8 prompt too;
//!     u8 dry [f32 multiplier, base; u64 allowed length, window; tokens breakers]; u32 count [u32 token, f32 bias]...;
//!     u64 seed; u8 logprobs [u64 count]
//! state: u64 index; f32 mu; tokens penalized; tokens searched for repetitions
//! ```
//!
//! Little endian; tokens are a count and so many numbers, all `u32`; what stands in brackets is there if the byte before
//! is 1.
//!
//! Invariant: reading what was written gives an equal sampler. Any other bytes are an error; a count is believed only as far
//! as there are bytes.

use super::settings::{Dry, Mirostat};
use super::{SampleError, Sampler, SamplerSettings};
use crate::text::vocab::Token;

const MAGIC: &[u8] = b"OXSA";
const VERSION: u32 = 1;

/// Why bytes are no saved sampler.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedSamplerError {
    /// They begin with something else.
    #[error("these bytes are not a saved sampler")]
    NotASampler,
    /// Another version wrote them.
    #[error("the saved sampler has version {found}, but only {VERSION} can be read")]
    Version {
        /// Which one.
        found: u32,
    },
    /// They end too soon.
    #[error("the saved sampler ends too soon, at byte {at}")]
    TooShort {
        /// Where.
        at: usize,
    },
    /// They go on for too long.
    #[error("the saved sampler has {extra} bytes too many")]
    TooLong {
        /// By how much.
        extra: usize,
    },
    /// A number that is out of range, at this place.
    #[error("the saved sampler is damaged at byte {at}")]
    Damaged {
        /// Where.
        at: usize,
    },
    /// Settings that make no sense.
    #[error("the saved sampler has settings that make no sense: {0}")]
    Settings(#[source] SampleError),
}

impl Sampler {
    /// This sampler as bytes, from which [`restore`](Sampler::restore) makes one that goes on in the same way.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Writer(MAGIC.to_vec());
        bytes.u32(VERSION);
        bytes.settings(&self.settings);
        bytes.u64(self.index);
        bytes.f32(self.mu);
        let (penalized, searched) = self.noted();
        bytes.tokens(penalized);
        bytes.tokens(searched);
        bytes.0
    }

    /// The sampler that [`save`](Sampler::save) made these bytes from.
    pub fn restore(bytes: &[u8]) -> Result<Sampler, SavedSamplerError> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else { return Err(SavedSamplerError::NotASampler) };
        let mut reader = Reader { all: bytes, rest };
        match reader.u32()? {
            VERSION => {}
            found => return Err(SavedSamplerError::Version { found }),
        }
        let mut sampler = Sampler::new(reader.settings()?).map_err(SavedSamplerError::Settings)?;
        sampler.index = reader.u64()?;
        sampler.mu = reader.f32()?;
        let before = reader.at();
        let (penalized, searched) = (reader.tokens()?, reader.tokens()?);
        penalized.iter().for_each(|&token| sampler.penalties.accept(token));
        if let Some(repetitions) = &mut sampler.repetitions {
            searched.iter().for_each(|&token| repetitions.accept(token));
        }
        // More than there is room for was never saved.
        let kept = {
            let (penalized, searched) = sampler.noted();
            (penalized.len(), searched.len())
        };
        if kept != (penalized.len(), searched.len()) {
            return Err(SavedSamplerError::Damaged { at: before });
        }
        match reader.rest.len() {
            0 => Ok(sampler),
            extra => Err(SavedSamplerError::TooLong { extra }),
        }
    }

    /// The tokens that penalties count, and those that are searched for repetitions.
    fn noted(&self) -> (impl ExactSizeIterator<Item = Token>, impl ExactSizeIterator<Item = Token>) {
        let searched = self.repetitions.as_ref().map(|repetitions| repetitions.recent());
        let searched = searched.unwrap_or(const { &std::collections::VecDeque::new() });
        (self.penalties.seen().iter().copied(), searched.iter().copied())
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    fn tokens(&mut self, tokens: impl ExactSizeIterator<Item = Token>) {
        self.u32(tokens.len() as u32);
        tokens.for_each(|token| self.u32(token));
    }

    fn settings(&mut self, settings: &SamplerSettings) {
        for value in [
            settings.temperature,
            settings.temperature_range,
            settings.temperature_exponent,
            settings.top_n_sigma,
        ] {
            self.f32(value);
        }
        self.u64(settings.top_k as u64);
        for value in [
            settings.typical_p,
            settings.top_p,
            settings.min_p,
            settings.xtc_probability,
            settings.xtc_threshold,
        ] {
            self.f32(value);
        }
        self.u8(settings.mirostat.is_some().into());
        if let Some(Mirostat { tau, eta }) = settings.mirostat {
            self.f32(tau);
            self.f32(eta);
        }
        self.f32(settings.repeat_penalty);
        self.f32(settings.frequency_penalty);
        self.f32(settings.presence_penalty);
        self.u64(settings.penalty_window as u64);
        self.u8(settings.penalize_prompt.into());
        self.u8(settings.dry.is_some().into());
        if let Some(dry) = &settings.dry {
            self.f32(dry.multiplier);
            self.f32(dry.base);
            self.u64(dry.allowed_length as u64);
            self.u64(dry.window as u64);
            self.tokens(dry.breakers.iter().copied());
        }
        self.u32(settings.logit_bias.len() as u32);
        for &(token, bias) in &settings.logit_bias {
            self.u32(token);
            self.f32(bias);
        }
        self.u64(settings.seed);
        self.u8(settings.logprobs.is_some().into());
        if let Some(count) = settings.logprobs {
            self.u64(count as u64);
        }
    }
}

struct Reader<'a> {
    all: &'a [u8],
    rest: &'a [u8],
}

impl Reader<'_> {
    fn at(&self) -> usize {
        self.all.len() - self.rest.len()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SavedSamplerError> {
        let too_short = SavedSamplerError::TooShort { at: self.all.len() };
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(too_short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, SavedSamplerError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SavedSamplerError> {
        self.array().map(u64::from_le_bytes)
    }

    fn f32(&mut self) -> Result<f32, SavedSamplerError> {
        self.u32().map(f32::from_bits)
    }

    fn bool(&mut self) -> Result<bool, SavedSamplerError> {
        let at = self.at();
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(SavedSamplerError::Damaged { at }),
        }
    }

    /// A size; one that is more than any here stands for no limit.
    fn size(&mut self) -> Result<usize, SavedSamplerError> {
        Ok(usize::try_from(self.u64()?).unwrap_or(usize::MAX))
    }

    /// As many things of so many bytes as the count before them says.
    fn list<T>(
        &mut self,
        bytes: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, SavedSamplerError>,
    ) -> Result<Vec<T>, SavedSamplerError> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / bytes {
            return Err(SavedSamplerError::TooShort { at: self.all.len() });
        }
        (0..count).map(|_| each(self)).collect()
    }

    fn tokens(&mut self) -> Result<Vec<Token>, SavedSamplerError> {
        self.list(4, Reader::u32)
    }

    fn settings(&mut self) -> Result<SamplerSettings, SavedSamplerError> {
        // Fields are read in the order in which they are written here.
        Ok(SamplerSettings {
            temperature: self.f32()?,
            temperature_range: self.f32()?,
            temperature_exponent: self.f32()?,
            top_n_sigma: self.f32()?,
            top_k: self.size()?,
            typical_p: self.f32()?,
            top_p: self.f32()?,
            min_p: self.f32()?,
            xtc_probability: self.f32()?,
            xtc_threshold: self.f32()?,
            mirostat: match self.bool()? {
                true => Some(Mirostat { tau: self.f32()?, eta: self.f32()? }),
                false => None,
            },
            repeat_penalty: self.f32()?,
            frequency_penalty: self.f32()?,
            presence_penalty: self.f32()?,
            penalty_window: self.size()?,
            penalize_prompt: self.bool()?,
            dry: match self.bool()? {
                true => Some(Dry {
                    multiplier: self.f32()?,
                    base: self.f32()?,
                    allowed_length: self.size()?,
                    window: self.size()?,
                    breakers: self.tokens()?,
                }),
                false => None,
            },
            logit_bias: self.list(8, |reader| Ok((reader.u32()?, reader.f32()?)))?,
            seed: self.u64()?,
            logprobs: match self.bool()? {
                true => Some(self.size()?),
                false => None,
            },
        })
    }
}
