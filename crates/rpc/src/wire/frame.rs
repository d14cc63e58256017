//! What messages between two Oxcarts stand in: length, kind, flags and ticket, then the body.

/// Bytes before the body.
pub const FRAME_BYTES: usize = 16;

/// The start of a message. Numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of the body.
    pub length: u32,
    /// Which message it is.
    pub kind: u16,
    /// None yet.
    pub flags: u16,
    /// What an answer belongs to.
    pub ticket: u64,
}

impl FrameHead {
    /// As bytes.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..].copy_from_slice(&self.ticket.to_le_bytes());
        bytes
    }

    /// From bytes; whatever they are, they are one.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> FrameHead {
        let [l0, l1, l2, l3, k0, k1, f0, f1, ticket @ ..] = *bytes;
        FrameHead {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            flags: u16::from_le_bytes([f0, f1]),
            ticket: u64::from_le_bytes(ticket),
        }
    }
}
