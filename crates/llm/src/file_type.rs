//! What a file says about how it was quantized: a name that people know, and the number in `general.file_type`.

use std::fmt;
use std::str::FromStr;

use oxcart_tensor::DType;

/// How a model file is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType {
    name: &'static str,
    number: u32,
    base: DType,
}

/// Set in the number when it was guessed from the tensors instead of given.
const GUESSED: u32 = 1024;

const fn kind(name: &'static str, number: u32, base: DType) -> FileType {
    FileType { name, number, base }
}

const ALL: [FileType; 33] = [
    kind("F32", 0, DType::F32),
    kind("F16", 1, DType::F16),
    kind("Q4_0", 2, DType::Q4_0),
    kind("Q4_1", 3, DType::Q4_1),
    kind("Q8_0", 7, DType::Q8_0),
    kind("Q5_0", 8, DType::Q5_0),
    kind("Q5_1", 9, DType::Q5_1),
    kind("Q2_K", 10, DType::Q2_K),
    kind("Q3_K_S", 11, DType::Q3_K),
    kind("Q3_K_M", 12, DType::Q3_K),
    kind("Q3_K_L", 13, DType::Q3_K),
    kind("Q4_K_S", 14, DType::Q4_K),
    kind("Q4_K_M", 15, DType::Q4_K),
    kind("Q5_K_S", 16, DType::Q5_K),
    kind("Q5_K_M", 17, DType::Q5_K),
    kind("Q6_K", 18, DType::Q6_K),
    kind("IQ2_XXS", 19, DType::IQ2_XXS),
    kind("IQ2_XS", 20, DType::IQ2_XS),
    kind("Q2_K_S", 21, DType::Q2_K),
    kind("IQ3_XS", 22, DType::IQ3_S),
    kind("IQ3_XXS", 23, DType::IQ3_XXS),
    kind("IQ1_S", 24, DType::IQ1_S),
    kind("IQ4_NL", 25, DType::IQ4_NL),
    kind("IQ3_S", 26, DType::IQ3_S),
    kind("IQ3_M", 27, DType::IQ3_S),
    kind("IQ2_S", 28, DType::IQ2_XS),
    kind("IQ2_M", 29, DType::IQ2_S),
    kind("IQ4_XS", 30, DType::IQ4_XS),
    kind("IQ1_M", 31, DType::IQ1_M),
    kind("BF16", 32, DType::BF16),
    kind("TQ1_0", 36, DType::TQ1_0),
    kind("TQ2_0", 37, DType::TQ2_0),
    kind("MXFP4_MOE", 38, DType::MXFP4),
];

impl FileType {
    /// All of them.
    pub fn all() -> &'static [FileType] {
        &ALL
    }

    /// The one with a number of `general.file_type`.
    pub fn from_number(number: u64) -> Option<FileType> {
        let number = u32::try_from(number).ok()? & !GUESSED;
        ALL.into_iter().find(|kind| kind.number == number)
    }

    /// The name, for example `Q4_K_M`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The number in `general.file_type`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The type of most of its tensors.
    pub fn base(&self) -> DType {
        self.base
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// There is no file type of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no file type {0}; there are {list}", list = names())]
pub struct UnknownFileType(pub String);

fn names() -> String {
    ALL.map(|kind| kind.name).join(", ")
}

impl FromStr for FileType {
    type Err = UnknownFileType;

    fn from_str(name: &str) -> Result<FileType, UnknownFileType> {
        // Short for the middle one.
        let full = match name.to_uppercase().as_str() {
            "Q3_K" => "Q3_K_M".to_owned(),
            "Q4_K" => "Q4_K_M".to_owned(),
            "Q5_K" => "Q5_K_M".to_owned(),
            other => other.to_owned(),
        };
        ALL.into_iter().find(|kind| kind.name == full).ok_or_else(|| UnknownFileType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique() {
        for (i, kind) in ALL.iter().enumerate() {
            assert_eq!(kind.name.parse::<FileType>().as_ref(), Ok(kind));
            assert_eq!(FileType::from_number(kind.number.into()).as_ref(), Some(kind));
            assert!(ALL[..i].iter().all(|other| other.number < kind.number));
        }
        assert_eq!("q4_k".parse::<FileType>().unwrap().name(), "Q4_K_M");
        assert_eq!(FileType::from_number(1024 + 7).unwrap().name(), "Q8_0");
        assert!("Q9".parse::<FileType>().unwrap_err().to_string().contains("MXFP4_MOE"));
    }
}
