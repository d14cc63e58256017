//! The two things that change how a GGUF file is spelled: its version and its byte order.

use std::fmt;

/// Version of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Version {
    /// Lengths, counts and extents have 32 bits.
    V1,
    /// Lengths, counts and extents have 64 bits.
    V2,
    /// As version 2; files in big-endian order became official.
    #[default]
    V3,
}

impl Version {
    /// The number in the file.
    pub const fn number(self) -> u32 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
            Version::V3 => 3,
        }
    }

    /// The version with this number.
    pub const fn from_number(number: u32) -> Option<Version> {
        match number {
            1 => Some(Version::V1),
            2 => Some(Version::V2),
            3 => Some(Version::V3),
            _ => None,
        }
    }

    /// Bytes of a length, a count or an extent.
    pub(crate) const fn length_bytes(self) -> u64 {
        match self {
            Version::V1 => 4,
            Version::V2 | Version::V3 => 8,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// Order of the bytes of every number in a file, those inside tensors and quantized blocks included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ByteOrder {
    /// Least significant byte first; nearly all files.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl fmt::Display for ByteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ByteOrder::Little => "little",
            ByteOrder::Big => "big",
        })
    }
}

/// How a file is encoded. The default is what all programs write today: version 3, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Format {
    /// Version of the file format.
    pub version: Version,
    /// Order of the bytes of every number.
    pub byte_order: ByteOrder,
}

impl Format {
    /// The format of a file by the number after its magic, read as little-endian; the version if there is none such.
    pub(crate) fn from_version_field(number: u32) -> Result<Format, u32> {
        // The magic is the same in both orders; a version read in the wrong one has nothing in its low half.
        let (number, byte_order) = if number.trailing_zeros() >= 16 && number != 0 {
            (number.swap_bytes(), ByteOrder::Big)
        } else {
            (number, ByteOrder::Little)
        };
        let version = Version::from_number(number).ok_or(number)?;
        Ok(Format { version, byte_order })
    }
}
