//! What a file says about how it was quantized: a name that people know, and the number in `general.file_type`.

use std::fmt;
use std::str::FromStr;

use oxcart_tensor::DType;

/// Set in the number when it was guessed from the tensors instead of given.
const GUESSED: u32 = 1024;

/// Makes the types of a table: name and number, and the type of most tensors.
macro_rules! file_types {
    ($($name:ident = $number:literal, $base:ident;)*) => {
        /// How a model file is quantized.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs, reason = "as people know them")]
        #[repr(u32)]
        pub enum FileType {
            $($name = $number,)*
        }

        const ALL: &[FileType] = &[$(FileType::$name,)*];

        impl FileType {
            /// The name, for example `Q4_K_M`.
            pub fn name(self) -> &'static str {
                match self {
                    $(FileType::$name => stringify!($name),)*
                }
            }

            /// The type of most of its tensors.
            pub fn base(self) -> DType {
                match self {
                    $(FileType::$name => DType::$base,)*
                }
            }
        }
    };
}

file_types! {
    F32 = 0, F32;
    F16 = 1, F16;
    Q4_0 = 2, Q4_0;
    Q4_1 = 3, Q4_1;
    Q8_0 = 7, Q8_0;
    Q5_0 = 8, Q5_0;
    Q5_1 = 9, Q5_1;
    Q2_K = 10, Q2_K;
    Q3_K_S = 11, Q3_K;
    Q3_K_M = 12, Q3_K;
    Q3_K_L = 13, Q3_K;
    Q4_K_S = 14, Q4_K;
    Q4_K_M = 15, Q4_K;
    Q5_K_S = 16, Q5_K;
    Q5_K_M = 17, Q5_K;
    Q6_K = 18, Q6_K;
    IQ2_XXS = 19, IQ2_XXS;
    IQ2_XS = 20, IQ2_XS;
    Q2_K_S = 21, Q2_K;
    IQ3_XS = 22, IQ3_S;
    IQ3_XXS = 23, IQ3_XXS;
    IQ1_S = 24, IQ1_S;
    IQ4_NL = 25, IQ4_NL;
    IQ3_S = 26, IQ3_S;
    IQ3_M = 27, IQ3_S;
    IQ2_S = 28, IQ2_XS;
    IQ2_M = 29, IQ2_S;
    IQ4_XS = 30, IQ4_XS;
    IQ1_M = 31, IQ1_M;
    BF16 = 32, BF16;
    TQ1_0 = 36, TQ1_0;
    TQ2_0 = 37, TQ2_0;
    MXFP4_MOE = 38, MXFP4;
}

impl FileType {
    /// All of them.
    pub fn all() -> &'static [FileType] {
        ALL
    }

    /// The one with a number of `general.file_type`.
    pub fn from_number(number: u64) -> Option<FileType> {
        let number = u32::try_from(number).ok()? & !GUESSED;
        ALL.iter().copied().find(|kind| kind.number() == number)
    }

    /// The number in `general.file_type`.
    pub fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no file type of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no file type {0}; there are {list}", list = names())]
pub struct UnknownFileType(pub String);

fn names() -> String {
    ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
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
        ALL.iter().copied().find(|kind| kind.name() == full).ok_or_else(|| UnknownFileType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique() {
        for (i, kind) in ALL.iter().enumerate() {
            assert_eq!(kind.name().parse::<FileType>().as_ref(), Ok(kind));
            assert_eq!(FileType::from_number(kind.number().into()).as_ref(), Some(kind));
            assert!(ALL[..i].iter().all(|other| other.number() < kind.number()));
        }
        assert_eq!("q4_k".parse::<FileType>().unwrap().name(), "Q4_K_M");
        assert_eq!(FileType::from_number(1024 + 7).unwrap().name(), "Q8_0");
        assert!("Q9".parse::<FileType>().unwrap_err().to_string().contains("MXFP4_MOE"));
    }
}
