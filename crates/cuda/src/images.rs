//! Compiled kernels, by family and by the cards they are for.
//!
//! `tools/cuda/build.sh` makes them from `kernels/`; a check in CI says whether they are what the sources give.

/// Kernels that were compiled together: one file of `kernels/`.
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
}

/// A file of `images/`: compressed, for cards from a capability on.
struct Image {
    family: Family,
    capability: (u32, u32),
    /// Only for cards of exactly this capability: machine code instead of something the driver translates.
    exact: bool,
    bytes: &'static [u8],
}

macro_rules! images {
    ($($family:ident $name:literal;)*) => {
        const IMAGES: &[Image] = &[
            $(
                Image { family: Family::$family, capability: (9, 0), exact: true, bytes: include_bytes!(concat!("../images/", $name, ".sm_90a")) },
                Image { family: Family::$family, capability: (7, 5), exact: false, bytes: include_bytes!(concat!("../images/", $name, ".compute_75")) },
            )*
        ];
    };
}

images! {
    Elementwise "elementwise";
    Arrange "arrange";
    Reduce "reduce";
    Rows "rows";
    Norm "norm";
    SoftMax "soft_max";
    Rope "rope";
    Sort "sort";
    Conv "conv";
    Recurrent "recurrent";
}

/// The kernels of a family that suit a card best.
pub(crate) fn image(family: Family, capability: (u32, u32)) -> Option<Vec<u8>> {
    let fits = |image: &&Image| {
        image.family == family
            && if image.exact { image.capability == capability } else { image.capability <= capability }
    };
    let best = IMAGES.iter().filter(fits).max_by_key(|image| (image.capability, image.exact))?;
    // What was committed decompresses; a test looks at all of it.
    miniz_oxide::inflate::decompress_to_vec_zlib(best.bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_kernels_for_every_card() {
        for image in IMAGES {
            let text = miniz_oxide::inflate::decompress_to_vec_zlib(image.bytes).unwrap();
            let start: &[u8] = if image.exact { b"\x7fELF" } else { b"//" };
            assert!(text.starts_with(start), "{:?} {:?}", image.family, image.capability);
            for capability in [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
                assert!(
                    super::image(image.family, capability).is_some(),
                    "{:?} {capability:?}",
                    image.family
                );
            }
        }
        assert!(super::image(Family::Norm, (7, 0)).is_none());
    }
}
