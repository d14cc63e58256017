//! Against sums in double precision, over geometries that recorded cases leave out.

use half::f16;
use oxcart_tensor::ops::{
    Col2im1d, Conv2d, Conv2dDw, Conv3d, ConvGeometry, ConvTranspose1d, ConvTranspose2d, Im2col, Im2col3d,
    Im2colBack, Im2colGeometry,
};
use oxcart_tensor::{DType, Layout, Shape};

use crate::kernels::testing::{Tensor, noise, run};

const F32: DType = DType::F32;
const F16: DType = DType::F16;

/// Odd strides and dilations, padding on one side only, and padding larger than the kernel.
const GEOMETRIES: [ConvGeometry<3>; 6] = [
    ConvGeometry::DENSE,
    ConvGeometry { stride: [2, 1, 3], pad: [1, 2, 0], dilation: [1, 2, 1] },
    ConvGeometry { stride: [1, 2, 1], pad: [5, 4, 3], dilation: [1, 1, 1] },
    ConvGeometry { stride: [3, 3, 2], pad: [0, 5, 1], dilation: [2, 1, 2] },
    ConvGeometry { stride: [1, 1, 1], pad: [2, 0, 2], dilation: [3, 1, 1] },
    ConvGeometry { stride: [7, 5, 4], pad: [6, 6, 6], dilation: [1, 3, 2] },
];

fn line(geometry: &ConvGeometry<3>) -> ConvGeometry<1> {
    ConvGeometry { stride: [geometry.stride[0]], pad: [geometry.pad[0]], dilation: [geometry.dilation[0]] }
}

fn plane(geometry: &ConvGeometry<3>) -> ConvGeometry<2> {
    let two = |[x, y, _]: [u32; 3]| [x, y];
    ConvGeometry { stride: two(geometry.stride), pad: two(geometry.pad), dilation: two(geometry.dilation) }
}

/// The pixel under a tap along one axis, if it is one.
fn pixel<const N: usize>(
    geometry: &ConvGeometry<N>,
    axis: usize,
    o: usize,
    k: usize,
    len: usize,
) -> Option<usize> {
    let at = o * geometry.stride[axis] as usize + k * geometry.dilation[axis] as usize;
    at.checked_sub(geometry.pad[axis] as usize).filter(|&at| at < len)
}

/// A pixel as a kernel of this type meets it.
fn rounded(image: f64, kernel: &Tensor) -> f64 {
    if kernel.layout.dtype() == F16 { f16::from_f64(image).to_f64() } else { image }
}

/// An image of packed planes with gaps in between.
fn with_gaps(dtype: DType, ne: [usize; 4], seed: u64) -> Tensor {
    let [n0, n1, n2, _] = ne;
    let size = dtype.block_bytes();
    let plane = n0 * n1 * size;
    let nb = [size, n0 * size, plane + 3 * size, n2 * (plane + 3 * size) + 5 * size];
    Tensor::with_layout(Layout::strided(dtype, ne, nb).unwrap(), noise(seed))
}

#[test]
fn lines_and_planes_unfold() {
    for geometry in &GEOMETRIES {
        for (image_type, dtype) in [(F32, F32), (F32, F16), (F16, F16)] {
            let exact = |x: f64| if dtype == F16 { f16::from_f64(x).to_f64() } else { x };
            let kernel = Tensor::noise(F32, [3, 5, 2, 1], 1);
            let image = Tensor::noise(image_type, [29, 5, 3, 1], 2);
            let one = line(geometry);
            let op = Im2col { geometry: Im2colGeometry::Line(one), dtype };
            for y in run(op, &[&kernel, &image]) {
                y.assert_near(0.0, |[tap, o, n, _]| {
                    let (c, k) = (tap / 3, tap % 3);
                    exact(pixel(&one, 0, o, k, 29).map_or(0.0, |x| image.at([x, c, n, 0])))
                });
            }
            let kernel = Tensor::noise(F16, [3, 2, 7, 4], 1);
            let image = with_gaps(image_type, [33, 17, 7, 2], 3);
            let two = plane(geometry);
            let op = Im2col { geometry: Im2colGeometry::Plane(two), dtype };
            for y in run(op, &[&kernel, &image]) {
                y.assert_near(0.0, |[tap, ox, oy, n]| {
                    let (c, ky, kx) = (tap / 6, tap / 3 % 2, tap % 3);
                    let at = pixel(&two, 0, ox, kx, 33).zip(pixel(&two, 1, oy, ky, 17));
                    exact(at.map_or(0.0, |(x, y)| image.at([x, y, c, n])))
                });
            }
        }
    }
}

#[test]
fn wide_kernels_unfold() {
    let (kernel, image) = (Tensor::noise(F32, [20, 2, 1, 1], 1), Tensor::noise(F32, [31, 2, 1, 1], 2));
    let geometry = ConvGeometry { stride: [3], pad: [4], dilation: [1] };
    for y in run(Im2col { geometry: Im2colGeometry::Line(geometry), dtype: F32 }, &[&kernel, &image]) {
        y.assert_near(0.0, |[tap, o, ..]| {
            pixel(&geometry, 0, o, tap % 20, 31).map_or(0.0, |x| image.at([x, tap / 20, 0, 0]))
        });
    }
}

#[test]
fn volumes_unfold() {
    for geometry in &GEOMETRIES {
        for dtype in [F32, F16] {
            let (channels, [w, h, d]) = (3, [13, 8, 7]);
            let kernel = Tensor::noise(F32, [3, 2, 2, 2 * channels], 1);
            let image = with_gaps(F32, [w, h, d, 2 * channels], 2);
            let depth = |y: &Tensor| y.ne()[3] / 2;
            for y in run(Im2col3d { geometry: *geometry, channels, dtype }, &[&kernel, &image]) {
                y.assert_near(0.0, |[tap, ox, oy, oz]| {
                    let (c, kz, ky, kx) = (tap / 12, tap / 6 % 2, tap / 3 % 2, tap % 3);
                    let (n, oz) = (oz / depth(&y), oz % depth(&y));
                    let at = pixel(geometry, 0, ox, kx, w)
                        .zip(pixel(geometry, 1, oy, ky, h))
                        .zip(pixel(geometry, 2, oz, kz, d));
                    let value = at.map_or(0.0, |((x, y), z)| image.at([x, y, z, n * channels + c]));
                    if dtype == F16 { f16::from_f64(value).to_f64() } else { value }
                });
            }
        }
    }
}

#[test]
fn gradients_fold_back() {
    for geometry in &GEOMETRIES {
        let (ne, two) = ([23, 19, 5, 2], plane(geometry));
        let kernel = Tensor::noise(F16, [3, 2, 5, 4], 1);
        let im2col = Im2col { geometry: Im2colGeometry::Plane(two), dtype: F32 };
        let columns = run(im2col, &[&kernel, &Tensor::noise(F32, ne, 2)]).remove(0).ne();
        let gradient = Tensor::noise(F32, columns, 3);
        let mut exact = vec![0.0; ne.iter().product()];
        for n in 0..columns[3] {
            for (oy, ox) in (0..columns[2]).flat_map(|oy| (0..columns[1]).map(move |ox| (oy, ox))) {
                for tap in 0..columns[0] {
                    let (c, ky, kx) = (tap / 6, tap / 3 % 2, tap % 3);
                    let at = pixel(&two, 0, ox, kx, ne[0]).zip(pixel(&two, 1, oy, ky, ne[1]));
                    if let Some((x, y)) = at {
                        exact[((n * ne[2] + c) * ne[1] + y) * ne[0] + x] += gradient.at([tap, ox, oy, n]);
                    }
                }
            }
        }
        let op = Im2colBack { geometry: Im2colGeometry::Plane(two), ne: Shape::from(ne) };
        for y in run(op, &[&gradient, &kernel]) {
            y.assert_near(1e-5, |[x, y, c, n]| exact[((n * ne[2] + c) * ne[1] + y) * ne[0] + x]);
        }
    }
}

#[test]
fn gradients_of_lines_fold_back() {
    let geometry = ConvGeometry { stride: [2], pad: [4], dilation: [3] };
    let kernel = Tensor::noise(F32, [3, 4, 1, 1], 1);
    let (op, image) = (Im2colGeometry::Line(geometry), Tensor::noise(F32, [21, 4, 3, 1], 2));
    let columns = run(Im2col { geometry: op, dtype: F32 }, &[&kernel, &image]).remove(0).ne();
    let gradient = Tensor::noise(F32, columns, 3);
    for y in run(Im2colBack { geometry: op, ne: Shape::from(image.ne()) }, &[&gradient, &kernel]) {
        y.assert_near(1e-5, |[x, c, n, _]| {
            let meets = (0..3).flat_map(|k| (0..columns[1]).map(move |o| (k, o)));
            let meets = meets.filter(|&(k, o)| pixel(&geometry, 0, o, k, 21) == Some(x));
            meets.map(|(k, o)| gradient.at([c * 3 + k, o, n, 0])).sum()
        });
    }
}

#[test]
fn lines_fold() {
    for dtype in [F32, F16, DType::BF16] {
        for (kernel, stride, crop, positions) in [(4, 2, 0, 97), (3, 5, 2, 64), (7, 1, 6, 200), (1, 3, 0, 1)]
        {
            let channels = 13;
            let a = Tensor::noise(dtype, [kernel * channels, positions, 1, 1], 1);
            let tolerance = if dtype == F32 { 1e-6 } else { 2e-2 };
            for y in run(Col2im1d { stride, channels, crop }, &[&a]) {
                y.assert_near(tolerance, |[t, o, ..]| {
                    let taps = (0..kernel).flat_map(|k| (0..positions).map(move |p| (k, p)));
                    let taps = taps.filter(|&(k, p)| p * stride + k == t + crop);
                    taps.map(|(k, p)| a.at([o * kernel + k, p, 0, 0])).sum()
                });
            }
        }
    }
}

fn plane_sum(geometry: &ConvGeometry<2>, kernel: &Tensor, image: &Tensor, [ox, oy, o, n]: [usize; 4]) -> f64 {
    let ([kw, kh, channels, _], [w, h, ..]) = (kernel.ne(), image.ne());
    let mut sum = 0.0;
    for ky in 0..kh {
        for kx in 0..kw {
            let at = pixel(geometry, 0, ox, kx, w).zip(pixel(geometry, 1, oy, ky, h));
            let Some((x, y)) = at else { continue };
            for c in 0..channels {
                sum += rounded(image.at([x, y, c, n]), kernel) * kernel.at([kx, ky, c, o]);
            }
        }
    }
    sum
}

#[test]
fn planes_convolve() {
    for (i, geometry) in GEOMETRIES.iter().map(plane).enumerate() {
        for dtype in [F32, F16] {
            let kernel = Tensor::noise(dtype, [3, 2, 5, 39], 1);
            let ne = [21, 14, 5, 2];
            let axes = [[0, 1, 2, 3], [1, 2, 0, 3], [1, 0, 2, 3], [0, 2, 1, 3]][i % 4];
            let image = Tensor::permuted(F32, ne, axes, 2);
            for y in run(Conv2d { geometry }, &[&kernel, &image]) {
                y.assert_near(2e-5, |at| plane_sum(&geometry, &kernel, &image, at));
            }
        }
    }
}

#[test]
fn kernels_without_taps_give_zeros() {
    let geometry = ConvGeometry { stride: [1, 2], pad: [2, 1], dilation: [1, 1] };
    for dtype in [F32, F16] {
        for (kernel, image) in [
            ([0, 3, 2, 3], [5, 6, 2, 2]),
            ([3, 0, 2, 3], [5, 6, 2, 2]),
            ([3, 3, 0, 3], [5, 6, 0, 2]),
            ([3, 3, 2, 3], [0, 0, 2, 2]),
        ] {
            let (kernel, image) = (Tensor::noise(dtype, kernel, 1), Tensor::noise(F32, image, 2));
            for y in run(Conv2d { geometry }, &[&kernel, &image]) {
                assert!(!y.layout.is_empty());
                y.assert_near(0.0, |_| 0.0);
            }
        }
        let (kernel, image) = (Tensor::noise(dtype, [0, 2, 1, 4], 1), Tensor::noise(F32, [5, 6, 4, 2], 2));
        for y in run(Conv2dDw { geometry }, &[&kernel, &image]) {
            y.assert_near(0.0, |_| 0.0);
        }
        let kernel = Tensor::noise(dtype, [3, 2, 0, 6], 1);
        let op = Conv3d { geometry: ConvGeometry::DENSE, channels: 2, batch: 1, filters: 3 };
        for y in run(op, &[&kernel, &Tensor::noise(F32, [4, 4, 4, 2], 2)]) {
            y.assert_near(0.0, |_| 0.0);
        }
        let (kernel, image) = (Tensor::noise(dtype, [3, 2, 0, 1], 1), Tensor::noise(F32, [4, 0, 1, 1], 2));
        for y in run(ConvTranspose1d { stride: 2 }, &[&kernel, &image]) {
            y.assert_near(0.0, |_| 0.0);
        }
    }
    // A batch of none, no filters, and rows without elements.
    for (kernel, image) in
        [([3, 3, 2, 3], [5, 6, 2, 0]), ([3, 3, 2, 0], [5, 6, 2, 2]), ([0, 3, 2, 2], [5, 6, 2, 1])]
    {
        let (kernel, image) = (Tensor::noise(F32, kernel, 1), Tensor::noise(F32, image, 2));
        run(Conv2d { geometry }, &[&kernel, &image]);
        for dtype in [F32, F16] {
            run(Im2col { geometry: Im2colGeometry::Plane(geometry), dtype }, &[&kernel, &image]);
        }
    }
}

#[test]
fn volumes_convolve() {
    for geometry in &GEOMETRIES {
        for dtype in [F32, F16] {
            let (channels, batch, filters, [w, h, d]) = (3, 2, 5, [11, 8, 7]);
            let kernel = Tensor::noise(dtype, [3, 2, 2, channels * filters], 1);
            let image = Tensor::permuted(F32, [w, h, d, channels * batch], [2, 0, 1, 3], 2);
            let op = Conv3d { geometry: *geometry, channels, batch, filters };
            for y in run(op, &[&kernel, &image]) {
                y.assert_near(2e-5, |[ox, oy, oz, i]| {
                    let (n, o) = (i / filters, i % filters);
                    let mut sum = 0.0;
                    for tap in 0..12 {
                        let (kz, ky, kx) = (tap / 6, tap / 3 % 2, tap % 3);
                        let at = pixel(geometry, 0, ox, kx, w)
                            .zip(pixel(geometry, 1, oy, ky, h))
                            .zip(pixel(geometry, 2, oz, kz, d));
                        let Some(((x, y), z)) = at else { continue };
                        for c in 0..channels {
                            sum += rounded(image.at([x, y, z, n * channels + c]), &kernel)
                                * kernel.at([kx, ky, kz, o * channels + c]);
                        }
                    }
                    sum
                });
            }
        }
    }
}

#[test]
fn channels_convolve_alone() {
    for geometry in GEOMETRIES.iter().map(plane) {
        for dtype in [F32, F16] {
            // More channels than a chunk holds.
            let (kernel_ne, ne) = ([3, 2, 1, 133], [17, 12, 133, 2]);
            let by_plane = (Tensor::noise(dtype, kernel_ne, 1), Tensor::noise(F32, ne, 2));
            let by_pixel = (
                Tensor::permuted(dtype, kernel_ne, [3, 0, 1, 2], 1),
                Tensor::permuted(F32, ne, [2, 0, 1, 3], 2),
            );
            for (kernel, image) in [by_plane, by_pixel] {
                for y in run(Conv2dDw { geometry }, &[&kernel, &image]) {
                    y.assert_near(1e-5, |[ox, oy, c, n]| {
                        let mut sum = 0.0;
                        for (ky, kx) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                            let at = pixel(&geometry, 0, ox, kx, 17).zip(pixel(&geometry, 1, oy, ky, 12));
                            // Unlike the others, this one does not round the image.
                            sum +=
                                at.map_or(0.0, |(x, y)| image.at([x, y, c, n]) * kernel.at([kx, ky, 0, c]));
                        }
                        sum
                    });
                }
            }
        }
    }
}

#[test]
fn transposed_lines_spread() {
    for dtype in [F32, F16] {
        for (taps, stride, len) in [(3, 1, 40), (5, 2, 300), (2, 5, 33), (1, 1, 1)] {
            let (filters, channels) = (3, 37);
            let kernel = Tensor::permuted(dtype, [taps, filters, channels, 1], [0, 2, 1, 3], 1);
            let image = Tensor::noise(F32, [len, channels, 1, 1], 2);
            for y in run(ConvTranspose1d { stride }, &[&kernel, &image]) {
                y.assert_near(2e-5, |[t, o, ..]| {
                    let meets = (0..len).filter(|x| (x * stride..x * stride + taps).contains(&t));
                    let products = meets.flat_map(|x| (0..channels).map(move |c| (x, c)));
                    products
                        .map(|(x, c)| {
                            rounded(image.at([x, c, 0, 0]), &kernel) * kernel.at([t - x * stride, o, c, 0])
                        })
                        .sum()
                });
            }
        }
    }
}

#[test]
fn transposed_planes_spread() {
    for dtype in [F32, F16] {
        for ([kw, kh], stride) in [([3, 2], 1), ([2, 3], 2), ([2, 1], 4), ([4, 5], 3)] {
            let (filters, channels, [w, h, batch]) = (3, 19, [11, 7, 2]);
            let kernel = Tensor::noise(dtype, [kw, kh, filters, channels], 1);
            let image = Tensor::permuted(F32, [w, h, channels, batch], [0, 2, 1, 3], 2);
            for y in run(ConvTranspose2d { stride }, &[&kernel, &image]) {
                y.assert_near(2e-5, |[tx, ty, o, n]| {
                    let mut sum = 0.0;
                    for y in (0..h).filter(|y| (y * stride..y * stride + kh).contains(&ty)) {
                        for x in (0..w).filter(|x| (x * stride..x * stride + kw).contains(&tx)) {
                            for c in 0..channels {
                                sum += rounded(image.at([x, y, c, n]), &kernel)
                                    * kernel.at([tx - x * stride, ty - y * stride, o, c]);
                            }
                        }
                    }
                    sum
                });
            }
        }
    }
}
