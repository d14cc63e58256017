//! What fuzzing checks, with any bytes: used by the fuzz targets and by the replay of their corpora.
#![allow(clippy::unwrap_used, reason = "a panic is a finding")]
#![allow(dead_code, unreachable_pub, reason = "each user needs a part")]

pub mod client;
mod conversation;
mod honest;
pub mod introduction;
pub mod life;
pub mod nodes;
pub mod pairing;
mod pipe;
pub mod pulse;
mod rig;
pub mod script;
pub mod session;
pub mod wire;

/// Bytes as a source of choices. At their end, every choice is zero.
#[derive(Clone, Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    /// One of so many.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }
}
