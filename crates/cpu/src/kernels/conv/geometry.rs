//! Where kernel and image meet: positions, taps and pixels along each axis.
//!
//! Lines and planes are volumes with one row or one slice, so everything is written for volumes.

use std::ops::Range;

use oxcart_tensor::ops::{ConvGeometry, Im2colGeometry};

use crate::view::RowAt;

/// One axis: position `o` and tap `k` meet at pixel `o * stride + k * dilation - pad`.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Axis {
    /// Pixels.
    pub(in crate::kernels) image: usize,
    /// Taps.
    pub(in crate::kernels) kernel: usize,
    /// Positions of the kernel.
    pub(in crate::kernels) positions: usize,
    pub(in crate::kernels) stride: usize,
    pad: usize,
    pub(in crate::kernels) dilation: usize,
}

/// `a / b`, rounded up.
#[inline(always)]
const fn div_up(a: i64, b: usize) -> i64 {
    // Dividing takes long, and mostly nothing is to be divided.
    if b == 1 { a } else { -(-a).div_euclid(b as i64) }
}

/// The part of `0..len` from `from` to `to`.
#[inline(always)]
fn clip(from: i64, to: i64, len: usize) -> Range<usize> {
    let from = from.clamp(0, len as i64) as usize;
    from..to.clamp(from as i64, len as i64) as usize
}

impl Axis {
    /// An axis along which nothing happens.
    const FLAT: Axis = Axis { image: 1, kernel: 1, positions: 1, stride: 1, pad: 0, dilation: 1 };

    const fn new<const N: usize>(
        geometry: &ConvGeometry<N>,
        axis: usize,
        image: usize,
        kernel: usize,
        positions: usize,
    ) -> Axis {
        Axis {
            image,
            kernel,
            positions,
            stride: geometry.stride[axis] as usize,
            pad: geometry.pad[axis] as usize,
            dilation: geometry.dilation[axis] as usize,
        }
    }

    /// A window of adjacent elements, as pooling has them.
    pub(in crate::kernels) const fn window(
        image: usize,
        [kernel, stride, pad]: [u32; 3],
        positions: usize,
    ) -> Axis {
        Axis {
            image,
            kernel: kernel as usize,
            positions,
            stride: stride as usize,
            pad: pad as usize,
            dilation: 1,
        }
    }

    /// The pixel under a tap, if it is one.
    #[inline(always)]
    pub(in crate::kernels) fn pixel(&self, position: usize, tap: usize) -> Option<usize> {
        let padded = position * self.stride + tap * self.dilation;
        padded.checked_sub(self.pad).filter(|&pixel| pixel < self.image)
    }

    /// The taps that meet pixels at a position.
    #[inline(always)]
    pub(in crate::kernels) fn taps(&self, position: usize) -> Range<usize> {
        let first = self.pad as i64 - (position * self.stride) as i64;
        clip(div_up(first, self.dilation), div_up(first + self.image as i64, self.dilation), self.kernel)
    }

    /// The positions at which a tap meets a pixel.
    #[inline(always)]
    pub(in crate::kernels) fn positions_inside(&self, tap: usize) -> Range<usize> {
        let first = self.pad as i64 - (tap * self.dilation) as i64;
        clip(div_up(first, self.stride), div_up(first + self.image as i64, self.stride), self.positions)
    }

    /// The position at which a tap meets a pixel, if there is one.
    #[inline(always)]
    pub(in crate::kernels) fn position(&self, pixel: usize, tap: usize) -> Option<usize> {
        let from_first = (pixel + self.pad).checked_sub(tap * self.dilation)?;
        let position = from_first / self.stride;
        (from_first.is_multiple_of(self.stride) && position < self.positions).then_some(position)
    }
}

/// Which dimensions of the image tensor are what.
#[derive(Clone, Copy, Debug)]
enum Dimensions {
    /// `[x, channel, batch]`.
    Line,
    /// `[x, y, channel, batch]`.
    Plane,
    /// `[x, y, z, channel + channels * batch]`.
    Volume,
}

/// A kernel moving over images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volume {
    dimensions: Dimensions,
    /// Width, height, depth.
    pub(super) axes: [Axis; 3],
    pub(super) channels: usize,
}

impl Volume {
    /// Lines or planes, unfolded into rows.
    pub(super) fn unfolded(
        geometry: &Im2colGeometry,
        kernel: [usize; 4],
        image: [usize; 4],
        columns: [usize; 4],
    ) -> Volume {
        match geometry {
            Im2colGeometry::Line(geometry) => Volume {
                dimensions: Dimensions::Line,
                axes: [Axis::new(geometry, 0, image[0], kernel[0], columns[1]), Axis::FLAT, Axis::FLAT],
                channels: image[1],
            },
            Im2colGeometry::Plane(geometry) => {
                Volume::plane(geometry, kernel, image, [columns[1], columns[2]])
            }
        }
    }

    /// Planes.
    pub(super) fn plane(
        geometry: &ConvGeometry<2>,
        kernel: [usize; 4],
        image: [usize; 4],
        positions: [usize; 2],
    ) -> Volume {
        let axis = |i: usize| Axis::new(geometry, i, image[i], kernel[i], positions[i]);
        Volume { dimensions: Dimensions::Plane, axes: [axis(0), axis(1), Axis::FLAT], channels: image[2] }
    }

    /// Volumes.
    pub(super) fn new(
        geometry: &ConvGeometry<3>,
        kernel: [usize; 4],
        image: [usize; 4],
        positions: [usize; 3],
        channels: usize,
    ) -> Volume {
        let axis = |i: usize| Axis::new(geometry, i, image[i], kernel[i], positions[i]);
        Volume { dimensions: Dimensions::Volume, axes: [axis(0), axis(1), axis(2)], channels }
    }

    /// A row of pixels.
    #[inline(always)]
    pub(super) fn row(&self, channel: usize, z: usize, y: usize, batch: usize) -> RowAt {
        match self.dimensions {
            Dimensions::Line => [channel, batch, 0],
            Dimensions::Plane => [y, channel, batch],
            Dimensions::Volume => [y, z, batch * self.channels + channel],
        }
    }

    /// Channel, depth, height and batch of a row of pixels; the way back from [`Volume::row`].
    #[inline(always)]
    pub(super) fn row_is(&self, [i1, i2, i3]: RowAt) -> [usize; 4] {
        match self.dimensions {
            Dimensions::Line => [i1, 0, 0, i2],
            Dimensions::Plane => [i2, 0, i1, i3],
            Dimensions::Volume => [i3 % self.channels, i2, i1, i3 / self.channels],
        }
    }

    /// A position, from the row of the unfolded image it has: `([x, y, z], batch)`.
    #[inline(always)]
    pub(super) fn position(&self, [i1, i2, i3]: RowAt) -> ([usize; 3], usize) {
        match self.dimensions {
            Dimensions::Line => ([i1, 0, 0], i2),
            Dimensions::Plane => ([i1, i2, 0], i3),
            Dimensions::Volume => ([i1, i2, i3 % self.axes[2].positions], i3 / self.axes[2].positions),
        }
    }

    /// Elements under the kernel at each position.
    pub(super) fn taps(&self) -> usize {
        super::product(&[self.channels, self.axes[2].kernel, self.axes[1].kernel, self.axes[0].kernel])
    }

    /// Where taps of a row of the kernel start among all of them.
    #[inline(always)]
    pub(super) fn tap_row(&self, channel: usize, z: usize, y: usize) -> usize {
        ((channel * self.axes[2].kernel + z) * self.axes[1].kernel + y) * self.axes[0].kernel
    }
}
