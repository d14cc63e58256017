//! Layout arithmetic against an enumeration of every element's bytes.

use proptest::prelude::*;

use super::*;

/// Byte offset of every block, in logical order.
fn block_offsets(layout: &Layout) -> Vec<usize> {
    let (ne, nb) = (layout.ne(), layout.nb());
    let mut offsets = Vec::new();
    for i3 in 0..ne[3] {
        for i2 in 0..ne[2] {
            for i1 in 0..ne[1] {
                for i0 in 0..ne[0] / layout.dtype().block_len() {
                    offsets.push(i0 * nb[0] + i1 * nb[1] + i2 * nb[2] + i3 * nb[3]);
                }
            }
        }
    }
    offsets
}

#[test]
fn packed_sizes() {
    let check = |dtype, ne: [usize; 4], nb, bytes| {
        let layout = Layout::packed(dtype, ne).unwrap();
        assert_eq!((layout.nb(), layout.byte_len()), (nb, bytes), "{layout}");
        assert!(layout.is_contiguous() && layout.is_free_of_overlap());
    };
    check(DType::F32, [5, 3, 2, 1], [4, 20, 60, 120], 120);
    check(DType::Q4_K, [512, 3, 1, 2], [144, 288, 864, 864], 1728);
    check(DType::Q4_0, [32, 1, 1, 1], [18, 18, 18, 18], 18);
    check(DType::F16, [0, 3, 1, 1], [2, 0, 0, 0], 0);
    check(DType::F16, [4, 0, 2, 1], [2, 8, 0, 0], 0);
}

#[test]
fn impossible_layouts_are_refused() {
    let packed = |dtype, ne: [usize; 4]| Layout::packed(dtype, ne).unwrap_err();
    assert_eq!(
        packed(DType::Q4_K, [255, 1, 1, 1]),
        LayoutError::PartialBlock { dtype: DType::Q4_K, ne0: 255 }
    );
    assert!(matches!(packed(DType::F32, [1 << 40, 1 << 40, 1, 1]), LayoutError::TooLarge { .. }));
    assert!(matches!(packed(DType::F32, [1 << 62, 1, 1, 1]), LayoutError::TooLarge { .. }));
    assert!(matches!(packed(DType::F64, [usize::MAX, 1, 1, 1]), LayoutError::TooLarge { .. }));

    let strided = |dtype, ne: [usize; 4], nb| Layout::strided(dtype, ne, nb).unwrap_err();
    assert_eq!(
        strided(DType::F32, [4, 2, 1, 1], [4, 18, 0, 0]),
        LayoutError::PartialStride { dtype: DType::F32, dim: 1, stride: 18 }
    );
    assert_eq!(
        strided(DType::Q4_0, [64, 2, 1, 1], [36, 72, 0, 0]),
        LayoutError::ScatteredBlocks { dtype: DType::Q4_0, stride: 36 }
    );
    assert!(matches!(strided(DType::F32, [1 << 62, 0, 1, 1], [4, 0, 0, 0]), LayoutError::TooLarge { .. }));
    assert!(matches!(strided(DType::F32, [1 << 62, 1, 1, 1], [0, 0, 0, 0]), LayoutError::TooLarge { .. }));
    let huge = usize::MAX / 8 * 4;
    assert!(matches!(strided(DType::F32, [4, 9, 1, 1], [4, huge, 0, 0]), LayoutError::TooLarge { .. }));
}

#[test]
fn unused_strides_may_be_anything() {
    let layout = Layout::strided(DType::F32, [4, 1, 1, 1], [4, 3, 77, 5]).unwrap();
    assert_eq!(layout.byte_len(), 16);
    assert!(layout.is_contiguous());
}

#[test]
fn contiguity_predicates() {
    // Rows of 4 f32 at a distance of 32 bytes.
    let padded = Layout::strided(DType::F32, [4, 3, 2, 1], [4, 32, 96, 192]).unwrap();
    assert!(!padded.is_contiguous() && padded.is_contiguous_above(1) && padded.is_padded_1d());
    assert!(padded.has_contiguous_rows() && padded.is_contiguous_to(1) && !padded.is_contiguous_to(2));
    assert!(!padded.is_transposed() && padded.is_free_of_overlap());

    // Free distance of planes too.
    let planes = Layout::strided(DType::F32, [4, 3, 2, 1], [4, 32, 200, 400]).unwrap();
    assert!(!planes.is_contiguous_above(1) && planes.is_contiguous_above(2) && !planes.is_padded_1d());

    let transposed = Layout::packed(DType::F32, [4, 3]).unwrap().transposed().unwrap();
    assert_eq!((transposed.ne(), transposed.nb()), (Shape::from([3, 4]), [16, 4, 48, 48]));
    assert!(transposed.is_transposed() && transposed.is_free_of_overlap());
    assert!(!transposed.has_contiguous_rows() && !transposed.is_contiguous());

    // Images stored pixel by pixel: channels are fastest.
    let pixels = Layout::packed(DType::F32, [3, 5, 4, 1]).unwrap().permuted([2, 0, 1, 3]).unwrap();
    assert_eq!(pixels.ne(), Shape::from([5, 4, 3]));
    assert!(pixels.has_contiguous_channels());

    let broadcast = Layout::strided(DType::F32, [4, 3, 1, 1], [4, 0, 0, 0]).unwrap();
    assert!(!broadcast.is_free_of_overlap() && broadcast.byte_len() == 16);
}

#[test]
fn quantized_rows_stay_whole() {
    let weights = Layout::packed(DType::Q8_0, [64, 3, 2]).unwrap();
    assert_eq!(weights.permuted([0, 2, 1, 3]).unwrap().nb(), [34, 204, 68, 408]);
    assert_eq!(weights.transposed(), Err(LayoutError::BlocksMoved { dtype: DType::Q8_0 }));
    assert!(matches!(weights.permuted([0, 2, 2, 3]), Err(LayoutError::NotAPermutation { .. })));
    assert!(matches!(weights.permuted([0, 1, 2, 4]), Err(LayoutError::NotAPermutation { .. })));
}

#[test]
fn reshaping() {
    let a = Layout::packed(DType::F32, [6, 4]).unwrap();
    assert_eq!(a.reshaped([3, 8]).unwrap(), Layout::packed(DType::F32, [3, 8]).unwrap());
    assert!(matches!(a.reshaped([5, 5]), Err(LayoutError::ElementCount { .. })));
    assert_eq!(a.transposed().unwrap().reshaped([24]), Err(LayoutError::NotContiguous));
}

#[test]
fn display_shows_strides_only_when_they_matter() {
    let a = Layout::packed(DType::F16, [64, 3]).unwrap();
    assert_eq!(a.to_string(), "f16[64, 3]");
    assert_eq!(a.transposed().unwrap().to_string(), "f16[3, 64]@[128, 2]");
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let dtypes = prop::sample::select(vec![DType::F32, DType::F16, DType::I8, DType::Q8_0, DType::Q4_K]);
    (dtypes, prop::array::uniform4(0_usize..4), prop::array::uniform4(0_usize..9), any::<bool>()).prop_map(
        |(dtype, ne, steps, packed)| {
            let ne = [ne[0] * dtype.block_len(), ne[1], ne[2], ne[3]];
            if packed {
                return Layout::packed(dtype, ne).unwrap();
            }
            let mut nb = steps.map(|step| step * dtype.block_bytes());
            if dtype.is_quantized() {
                nb[0] = dtype.block_bytes();
            }
            Layout::strided(dtype, ne, nb).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn byte_length_is_where_the_last_block_ends(layout in any_layout()) {
        let end = block_offsets(&layout).into_iter().max().map_or(0, |last| last + layout.dtype().block_bytes());
        prop_assert_eq!(layout.byte_len(), end);
    }

    #[test]
    fn contiguous_means_consecutive(layout in any_layout()) {
        let offsets = block_offsets(&layout);
        let consecutive = offsets.iter().enumerate().all(|(i, &o)| o == i * layout.dtype().block_bytes());
        if layout.is_contiguous() {
            prop_assert!(consecutive);
        } else if !layout.is_empty() {
            prop_assert!(!consecutive);
        }
    }

    #[test]
    fn free_of_overlap_means_distinct_bytes(layout in any_layout()) {
        let mut offsets = block_offsets(&layout);
        offsets.sort_unstable();
        let distinct = offsets.windows(2).all(|w| w[1] - w[0] >= layout.dtype().block_bytes());
        if layout.is_free_of_overlap() {
            prop_assert!(distinct);
        }
    }

    #[test]
    fn permuting_there_and_back_is_identity(layout in any_layout(), shift in 0_usize..6) {
        let axes = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 2, 1], [0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2]][shift];
        let mut back = [0; DIMS];
        for (i, &axis) in axes.iter().enumerate() {
            back[axis] = i;
        }
        prop_assert_eq!(layout.permuted(axes).unwrap().permuted(back).unwrap(), layout);
    }

    #[test]
    fn no_input_panics(dtype in prop::sample::select(DType::all().collect::<Vec<_>>()),
                       ne in prop::array::uniform4(any::<usize>()), nb in prop::array::uniform4(any::<usize>())) {
        if let Ok(layout) = Layout::strided(dtype, ne, nb) {
            prop_assert!(layout.byte_len() <= MAX_BYTES);
            layout.is_contiguous_above(1);
            layout.is_padded_1d();
            layout.is_free_of_overlap();
            layout.is_contiguous_to(5);
        }
        let _ = Layout::packed(dtype, ne);
    }
}
