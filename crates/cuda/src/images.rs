//! Compiled kernels, by family and by the cards they are for.
//!
//! `tools/cuda/build.sh` makes them from `kernels/`; a check in CI says whether they are what the sources give.

use oxcart_tensor::DType;

/// Kernels that were compiled together: one file of `kernels/`, perhaps for one type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Elementwise,
    Arrange,
    Reduce,
    Rows,
    Norm,
    SoftMax,
    Rope,
    Sort,
    Conv,
    Recurrent,
    Product,
    /// Attention by matrix instructions.
    Attention(Numbers),
    AttentionPlain,
    /// The same for many queries.
    AttentionPrompt(Numbers),
    /// The same for few tokens.
    AttentionDecode(Numbers),
    /// Columns for products with few of them.
    Columns,
    /// Products with few columns.
    Matvec(DType),
    /// Products with some columns.
    Bands(DType),
    /// What comes before products with many columns.
    Sixteen,
    /// Products with many columns.
    Tiles(DType),
    /// Products with many columns on Hopper.
    Gemm,
}

/// In which numbers attention multiplies keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Numbers {
    /// Half precision, as they are.
    Half,
    /// Brain floats, as they are.
    Brain,
    /// Half precision, made of blocks.
    Any,
}

impl Numbers {
    /// What kernels are called after.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Numbers::Half => "half",
            Numbers::Brain => "brain",
            Numbers::Any => "any",
        }
    }
}

impl Family {
    /// The file of `kernels/` it is made from, and which of the images that were made of it.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Family::Elementwise => ("elementwise", ""),
            Family::Arrange => ("arrange", ""),
            Family::Reduce => ("reduce", ""),
            Family::Rows => ("rows", ""),
            Family::Norm => ("norm", ""),
            Family::SoftMax => ("soft_max", ""),
            Family::Rope => ("rope", ""),
            Family::Sort => ("sort", ""),
            Family::Conv => ("conv", ""),
            Family::Recurrent => ("recurrent", ""),
            Family::Product => ("product", ""),
            Family::Attention(numbers) => ("attention", numbers.name()),
            Family::AttentionPlain => ("attention_plain", ""),
            Family::AttentionPrompt(numbers) => ("attention_prompt", numbers.name()),
            Family::AttentionDecode(numbers) => ("attention_decode", numbers.name()),
            Family::Columns => ("columns", ""),
            Family::Matvec(dtype) => ("matvec", dtype.name()),
            Family::Bands(dtype) => ("bands", dtype.name()),
            Family::Sixteen => ("sixteen", ""),
            Family::Tiles(dtype) => ("tiles", dtype.name()),
            Family::Gemm => ("gemm", ""),
        }
    }
}

/// A file of `images/`: images of one family, compressed together, for cards from a capability on.
struct File {
    name: &'static str,
    capability: (u32, u32),
    /// Only for cards of exactly this capability: machine code instead of something the driver translates.
    exact: bool,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal: $($target:ident)*;)*) => {
        &[$($(files!($name, $target),)*)*]
    };
    ($name:literal, compute_75) => {
        files!($name, "compute_75", (7, 5), false)
    };
    ($name:literal, compute_80) => {
        files!($name, "compute_80", (8, 0), false)
    };
    ($name:literal, sm_90a) => {
        files!($name, "sm_90a", (9, 0), true)
    };
    ($name:literal, $target:literal, $capability:expr, $exact:literal) => {
        File {
            name: $name,
            capability: $capability,
            exact: $exact,
            bytes: include_bytes!(concat!("../images/", $name, ".", $target)),
        }
    };
}

const FILES: &[File] = files! {
    "elementwise": compute_75 sm_90a;
    "arrange": compute_75 sm_90a;
    "reduce": compute_75 sm_90a;
    "rows": compute_75 sm_90a;
    "norm": compute_75 sm_90a;
    "soft_max": compute_75 sm_90a;
    "rope": compute_75 sm_90a;
    "sort": compute_75 sm_90a;
    "conv": compute_75 sm_90a;
    "recurrent": compute_75 sm_90a;
    "product": compute_75 sm_90a;
    "attention_plain": compute_75 sm_90a;
    "columns": compute_75 sm_90a;
    "sixteen": compute_75 sm_90a;
    "attention": compute_75 compute_80 sm_90a;
    "attention_prompt": compute_75 compute_80 sm_90a;
    "attention_decode": compute_75 compute_80 sm_90a;
    "matvec": compute_75 compute_80 sm_90a;
    "bands": compute_75 compute_80 sm_90a;
    "tiles": compute_75 compute_80 sm_90a;
    "gemm": sm_90a;
};

/// The image of a family that suits a card best.
pub(crate) fn image(family: Family, capability: (u32, u32)) -> Option<Vec<u8>> {
    let (name, part) = family.file();
    let fits = |file: &&File| {
        file.name == name
            && if file.exact { file.capability == capability } else { file.capability <= capability }
    };
    let best = FILES.iter().filter(fits).max_by_key(|file| (file.capability, file.exact))?;
    unpack(best.bytes)?.into_iter().find(|(name, _)| name == part).map(|(_, image)| image)
}

/// Images and their names, from the bytes of a file: a count, name and length of each, then the images. What was committed is
/// whole; a test looks at all of it.
fn unpack(mut bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut content = Vec::new();
    lzma_rs::xz_decompress(&mut bytes, &mut content).ok()?;
    let mut rest = content.as_slice();
    let mut take = |count: usize| {
        let (taken, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(taken)
    };
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
    let count = number(take(4)?)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let length = usize::from(take(1)?[0]);
        let name = String::from_utf8(take(length)?.to_vec()).ok()?;
        entries.push((name, number(take(4)?)?));
    }
    entries.into_iter().map(|(name, length)| Some((name, take(length)?.to_vec()))).collect()
}

/// Names of the kernels in an image: sections of machine code, entries of PTX. For tests; what was committed is whole.
#[cfg(test)]
pub(crate) fn kernels_of(image: &[u8]) -> Vec<String> {
    if !image.starts_with(b"\x7fELF") {
        let text = String::from_utf8_lossy(image);
        let entry = |line: &str| Some(line.split_once(".entry ")?.1.split(['(', ' ']).next()?.to_owned());
        return text.lines().filter_map(entry).collect();
    }
    let number = |at: usize, bytes: usize| {
        image[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    // The table of sections, and where their names are.
    let (table, size, count, names) = (number(0x28, 8), number(0x3A, 2), number(0x3C, 2), number(0x3E, 2));
    let names = number(table + names * size + 0x18, 8);
    let name = |section: usize| {
        let text = &image[names + number(table + section * size, 4)..];
        let text = text.split(|&byte| byte == 0).next()?;
        Some(String::from_utf8_lossy(text).strip_prefix(".text.")?.to_owned())
    };
    (0..count).filter_map(name).collect()
}

/// All kernels of all images that cards of a capability are given, with the file and the part of it.
#[cfg(test)]
pub(crate) fn all_kernels(capability: (u32, u32)) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    let fits =
        |file: &&File| if file.exact { file.capability == capability } else { file.capability <= capability };
    for file in FILES.iter().filter(fits) {
        let is_better = |other: &&File| {
            other.name == file.name && (other.capability, other.exact) > (file.capability, file.exact)
        };
        if FILES.iter().filter(fits).any(|other| is_better(&other)) {
            continue;
        }
        for (part, image) in unpack(file.bytes).unwrap_or_default() {
            found.extend(kernels_of(&image).into_iter().map(|kernel| (file.name, part.clone(), kernel)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_whole() {
        for file in FILES {
            let start: &[u8] = if file.exact { b"\x7fELF" } else { b"//" };
            let images = unpack(file.bytes).unwrap();
            assert!(!images.is_empty());
            for (name, image) in images {
                assert!(image.starts_with(start), "{} {name} {:?}", file.name, file.capability);
            }
        }
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= 8 << 20, "{bytes} bytes of images");
    }

    #[test]
    fn every_type_has_kernels_for_every_card() {
        const CARDS: [(u32, u32); 7] = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];
        for capability in CARDS {
            for family in [Family::Norm, Family::Sixteen, Family::Attention(Numbers::Any)] {
                assert!(image(family, capability).is_some(), "{family:?} {capability:?}");
            }
            // Cards below 8.0 know no brain floats.
            for numbers in [Numbers::Half, Numbers::Brain] {
                let known = numbers == Numbers::Half || capability >= (8, 0);
                for family in [Family::AttentionPrompt(numbers), Family::AttentionDecode(numbers)] {
                    assert_eq!(image(family, capability).is_some(), known, "{family:?} {capability:?}");
                }
            }
        }
        assert!(image(Family::Norm, (7, 0)).is_none());
        let is_known = |dtype: &DType| dtype.is_quantized() && dtype.decodes();
        for file in FILES.iter().filter(|file| matches!(file.name, "matvec" | "bands" | "tiles")) {
            let images = unpack(file.bytes).unwrap();
            for dtype in DType::all().filter(is_known) {
                assert!(images.iter().any(|(name, _)| name == dtype.name()), "{} {dtype}", file.name);
            }
        }
    }
}
