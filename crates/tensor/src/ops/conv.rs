//! Convolutions, unfolded and direct. Kernels are not flipped; dimension 0 is the width, 1 the height, 2 the depth.

use super::check::same_steps;
use super::work::{LineGeometry, sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::layout::Layout;
use crate::shape::Shape;

/// How a kernel moves over an image, axis by axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvGeometry<const N: usize> {
    /// Distance of neighbouring positions.
    pub stride: [u32; N],
    /// Zeros around the image.
    pub pad: [u32; N],
    /// Distance of neighbouring kernel elements.
    pub dilation: [u32; N],
}

impl<const N: usize> ConvGeometry<N> {
    /// Every position, no padding, no gaps.
    pub const DENSE: ConvGeometry<N> = ConvGeometry { stride: [1; N], pad: [0; N], dilation: [1; N] };

    fn check(&self, args: &Args<'_>) -> Result<(), OpError> {
        self.stride.iter().try_for_each(|&n| args.positive("stride", n))?;
        self.pad.iter().try_for_each(|&n| args.word("pad", n))?;
        self.dilation.iter().try_for_each(|&n| args.positive("dilation", n))
    }

    /// Positions along one axis: `(in + 2 pad - dilation (kernel - 1) - 1) / stride + 1`, which must be positive. The
    /// division truncates, so a kernel may stick out of the padded image by less than a stride; it meets zeros there.
    fn positions(&self, args: &Args<'_>, axis: usize, image: usize, kernel: usize) -> Result<usize, OpError> {
        let (image, kernel) = (image as i128, kernel as i128);
        let (pad, dilation, stride) =
            (i128::from(self.pad[axis]), i128::from(self.dilation[axis]), i128::from(self.stride[axis]));
        let room = image + 2 * pad - dilation * (kernel - 1) - 1;
        let count = room / stride + 1;
        let rule = || {
            format!("leaves no position for a kernel of {kernel} in an image of {image} along axis {axis}")
        };
        args.param("geometry", self, count > 0, rule())?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

impl<const N: usize> ConvGeometry<N> {
    /// Pairs of a tap and a pixel under it, along one axis.
    fn windows(&self, axis: usize, image: u64, kernel: u64, positions: u64) -> u64 {
        let (stride, dilation, pad) = (self.stride[axis], self.dilation[axis], self.pad[axis]);
        LineGeometry { len: image, kernel, positions, stride, dilation, pad }.pairs()
    }
}

fn product(factors: &[usize]) -> usize {
    // Too large a product is refused when the result's layout is made.
    factors.iter().fold(1, |product: usize, &n| product.saturating_mul(n))
}

/// Over lines or over planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Im2colGeometry {
    /// Kernel `[width, channels, filters]`, image `[width, channels, batch]`.
    Line(ConvGeometry<1>),
    /// Kernel `[width, height, channels, filters]`, image `[width, height, channels, batch]`.
    Plane(ConvGeometry<2>),
}

/// The image values under each kernel position, as rows: channel by channel, in each row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Im2col {
    /// How the kernel moves.
    pub geometry: Im2colGeometry,
    /// `f16` or `f32`.
    pub dtype: DType,
}

/// Gradient of [`Im2col`]: rows summed back into an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Im2colBack {
    /// How the kernel moved.
    pub geometry: Im2colGeometry,
    /// Extents of the image.
    pub ne: Shape,
}

/// As [`Im2col`] over volumes; channels share dimension 3 of the image with the batch. Of the kernel, the last extent does
/// not matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Im2col3d {
    /// How the kernel moves.
    pub geometry: ConvGeometry<3>,
    /// Channels of the image.
    pub channels: usize,
    /// `f16` or `f32`.
    pub dtype: DType,
}

/// Rows of kernel-by-filter products summed at their positions; the end of a transposed 1-D convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Col2im1d {
    /// Distance of neighbouring positions.
    pub stride: usize,
    /// Filters.
    pub channels: usize,
    /// Elements cut off at both ends.
    pub crop: usize,
}

/// Direct 2-D convolution: kernel `[w, h, channels, filters]`, image `[w, h, channels, batch]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2d {
    /// How the kernel moves.
    pub geometry: ConvGeometry<2>,
}

/// Direct 3-D convolution; channels share dimension 3 with filters (kernel) and batch (image).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv3d {
    /// How the kernel moves.
    pub geometry: ConvGeometry<3>,
    /// Channels of the image.
    pub channels: usize,
    /// Images.
    pub batch: usize,
    /// Filters.
    pub filters: usize,
}

/// Depthwise 2-D convolution: kernel `[w, h, 1, channels]`, image `[w, h, channels, batch]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2dDw {
    /// How the kernel moves.
    pub geometry: ConvGeometry<2>,
}

/// Transposed 1-D convolution: kernel `[w, filters, channels]`, image `[w, channels]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTranspose1d {
    /// Distance of neighbouring positions.
    pub stride: usize,
}

/// Transposed 2-D convolution: kernel `[w, h, filters, channels]`, image `[w, h, channels, batch]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTranspose2d {
    /// Distance of neighbouring positions along both axes.
    pub stride: usize,
}

impl Im2colGeometry {
    /// Extents of the unfolded image, after checking that kernel and image fit together.
    fn unfolded(&self, args: &Args<'_>, kernel: &Operand, image: Shape) -> Result<Shape, OpError> {
        let [k0, k1, k2, _] = kernel.extents();
        match self {
            Im2colGeometry::Line(geometry) => {
                geometry.check(args)?;
                kernel.flat_from(3)?;
                kernel.extent(1, image[1], "channels of the image")?;
                let width = geometry.positions(args, 0, image[0], k0)?;
                Ok(Shape::from([product(&[k1, k0]), width, image[2]]))
            }
            Im2colGeometry::Plane(geometry) => {
                geometry.check(args)?;
                kernel.extent(2, image[2], "channels of the image")?;
                let width = geometry.positions(args, 0, image[0], k0)?;
                let height = geometry.positions(args, 1, image[1], k1)?;
                Ok(Shape::from([product(&[k2, k1, k0]), width, height, image[3]]))
            }
        }
    }
}

fn check_column_dtype(args: &Args<'_>, dtype: DType) -> Result<(), OpError> {
    const REAL: &[DType] = &[DType::F16, DType::F32];
    args.result_dtype(dtype, WantedDType::OneOf(REAL), REAL.contains(&dtype))
}

impl Operation for Im2col {
    const INFO: OpInfo = OpInfo::new("IM2COL", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        check_column_dtype(args, self.dtype)?;
        match self.dtype {
            DType::F16 => image.one_of(&[DType::F32, DType::F16])?,
            _ => image.f32()?,
        }
        if let Im2colGeometry::Line(_) = self.geometry {
            image.flat_from(3)?;
            image.contiguous_rows()?;
        } else {
            image.contiguous_planes()?;
        }
        args.fresh(self.dtype, self.geometry.unfolded(args, &kernel, image.ne())?)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Operation for Im2colBack {
    const INFO: OpInfo = OpInfo::new("IM2COL_BACK", Category::Training, &[need("gradient"), need("kernel")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, kernel] = args.sources();
        gradient.f32()?;
        kernel.one_of(&[DType::F32, DType::F16])?;
        gradient.contiguous()?;
        if let Im2colGeometry::Line(_) = self.geometry {
            args.param("ne", self.ne, self.ne.is_3d(), "must have at most 3 dimensions")?;
        }
        let unfolded = self.geometry.unfolded(args, &kernel, self.ne)?;
        gradient.shape_is(unfolded, "the unfolded image")?;
        args.fresh(DType::F32, self.ne)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let (kernel, image, columns) = (sizes.ne(1), sizes.result_ne(), sizes.ne(0));
        let ([height, kernel_height], planes, [down, across]) = match self.geometry {
            Im2colGeometry::Line(geometry) => {
                let across = geometry.windows(0, image[0], kernel[0], columns[1]);
                ([1, 1], times([image[1], image[2]]), [1, across])
            }
            Im2colGeometry::Plane(geometry) => {
                let windows =
                    |axis: usize| geometry.windows(axis, image[axis], kernel[axis], columns[axis + 1]);
                ([image[1], kernel[1]], times([image[2], image[3]]), [windows(1), windows(0)])
            }
        };
        let plane = sum([times([height, kernel_height]), times([down, sum([across, kernel[0]])])]);
        sum([sizes.result(), times([planes, plane])])
    }
}

impl Operation for Im2col3d {
    const INFO: OpInfo = OpInfo::new("IM2COL_3D", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        self.geometry.check(args)?;
        check_column_dtype(args, self.dtype)?;
        image.f32()?;
        image.unit_stride()?;
        let channels = self.channels;
        args.positive("channels", channels)?;
        image.shape(image.ne()[3].is_multiple_of(channels), "dimension 3 must be whole channels")?;
        let [k0, k1, k2, _] = kernel.extents();
        let width = self.geometry.positions(args, 0, image.ne()[0], k0)?;
        let height = self.geometry.positions(args, 1, image.ne()[1], k1)?;
        let depth = self.geometry.positions(args, 2, image.ne()[2], k2)?;
        let batch = image.ne()[3] / channels;
        args.fresh(self.dtype, [product(&[channels, k2, k1, k0]), width, height, product(&[depth, batch])])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Operation for Col2im1d {
    const INFO: OpInfo = OpInfo::new("COL2IM_1D", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        let Col2im1d { stride, channels, crop } = *self;
        a.one_of(&[DType::F32, DType::F16, DType::BF16])?;
        a.contiguous()?;
        a.flat_from(2)?;
        args.positive("stride", stride)?;
        args.positive("channels", channels)?;
        args.word("crop", crop)?;
        let [row, positions, ..] = a.extents();
        a.shape(
            row.is_multiple_of(channels),
            format!("rows must be whole multiples of {channels} channels"),
        )?;
        a.shape(positions > 0, "needs at least one row")?;
        let full = product(&[positions - 1, stride]).saturating_add(row / channels);
        let kept = full.checked_sub(product(&[2, crop])).filter(|&kept| kept > 0);
        args.param("crop", crop, kept.is_some(), format!("leaves nothing of {full} elements"))?;
        args.fresh(a.dtype(), [kept.unwrap_or(0), channels])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([row, ..], [len, ..]) = (sizes.ne(0), sizes.result_ne());
        let (channels, stride) = (self.channels as u64, self.stride as u64);
        let each = (row / channels.max(1)).div_ceil(stride.max(1));
        sum([sizes.result(), times([len, channels, each]).min(sizes.source(0))])
    }
}

impl Operation for Conv2d {
    const INFO: OpInfo = OpInfo::new("CONV_2D", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        self.geometry.check(args)?;
        kernel.one_of(&[DType::F32, DType::F16])?;
        kernel.contiguous()?;
        image.f32()?;
        kernel.extent(2, image.ne()[2], "channels of the image")?;
        let [k0, k1, _, filters] = kernel.extents();
        let width = self.geometry.positions(args, 0, image.ne()[0], k0)?;
        let height = self.geometry.positions(args, 1, image.ne()[1], k1)?;
        args.fresh(DType::F32, [width, height, filters, image.ne()[3]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([width, height, channels, _], [x, y, filters, batch]) = (sizes.ne(0), sizes.result_ne());
        times([x, y, batch, width, height, channels, sum([filters, 1])])
    }
}

impl Operation for Conv3d {
    const INFO: OpInfo = OpInfo::new("CONV_3D", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        let Conv3d { geometry, channels, batch, filters } = *self;
        geometry.check(args)?;
        args.word("channels", channels)?;
        args.word("batch", batch)?;
        args.word("filters", filters)?;
        kernel.one_of(&[DType::F32, DType::F16])?;
        kernel.contiguous()?;
        image.f32()?;
        kernel.extent(3, product(&[channels, filters]), "channels times filters")?;
        image.extent(3, product(&[channels, batch]), "channels times batch")?;
        let [k0, k1, k2, _] = kernel.extents();
        let width = geometry.positions(args, 0, image.ne()[0], k0)?;
        let height = geometry.positions(args, 1, image.ne()[1], k1)?;
        let depth = geometry.positions(args, 2, image.ne()[2], k2)?;
        args.fresh(DType::F32, [width, height, depth, product(&[filters, batch])])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([width, height, depth, _], [x, y, z, _]) = (sizes.ne(0), sizes.result_ne());
        let taps = times([width, height, depth, self.channels as u64]);
        times([x, y, z, self.batch as u64, taps, sum([self.filters as u64, 1])])
    }
}

/// Strides of a `[w, h, c, n]` image stored pixel by pixel.
fn pixel_by_pixel(dtype: DType, [w, h, c, n]: [usize; 4]) -> Option<Layout> {
    Layout::packed(dtype, [c, w, h, n]).ok()?.permuted([2, 0, 1, 3]).ok()
}

impl Operation for Conv2dDw {
    const INFO: OpInfo = OpInfo::new("CONV_2D_DW", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        self.geometry.check(args)?;
        kernel.one_of(&[DType::F32, DType::F16])?;
        image.f32()?;
        let [k0, k1, _, _] = kernel.extents();
        let [_, _, channels, batch] = image.extents();
        kernel.extent(2, 1, "one kernel per channel")?;
        kernel.extent(3, channels, "channels of the image")?;
        let width = self.geometry.positions(args, 0, image.ne()[0], k0)?;
        let height = self.geometry.positions(args, 1, image.ne()[1], k1)?;
        let ne = [width, height, channels, batch];
        if image.layout().is_contiguous() {
            kernel.contiguous()?;
            return args.fresh(DType::F32, ne);
        }
        // Otherwise both are stored with channels fastest, and so is the result.
        let pixels = pixel_by_pixel(DType::F32, image.extents());
        let image_fits = image.layout().has_contiguous_channels()
            && pixels.is_some_and(|pixels| same_steps(&image.layout(), &pixels));
        image.stride_rule(image_fits, "must be packed, either plane by plane or pixel by pixel")?;
        let taps = Layout::packed(kernel.dtype(), [channels, k0, k1])
            .and_then(|taps| taps.permuted([3, 0, 1, 2]))
            .is_ok_and(|taps| same_steps(&kernel.layout(), &taps));
        kernel.stride_rule(taps, "must be packed with channels fastest, like the image")?;
        match pixel_by_pixel(DType::F32, ne) {
            Some(layout) => Ok(Outcome::Fresh(layout)),
            None => args.fresh(DType::F32, ne),
        }
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([kernel_width, ..], [.., channels, batch]) = (sizes.ne(0), sizes.result_ne());
        let windows = |axis: usize| {
            self.geometry.windows(axis, sizes.ne(1)[axis], sizes.ne(0)[axis], sizes.result_ne()[axis])
        };
        let plane = times([windows(1), sum([windows(0), kernel_width])]);
        sum([sizes.result(), times([channels, batch, plane])])
    }
}

/// Elements a transposed convolution makes along one axis.
fn spread(image: usize, stride: usize, kernel: usize) -> usize {
    product(&[image.saturating_sub(1), stride]).saturating_add(kernel)
}

impl Operation for ConvTranspose1d {
    const INFO: OpInfo = OpInfo::new("CONV_TRANSPOSE_1D", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        kernel.one_of(&[DType::F32, DType::F16])?;
        image.f32()?;
        args.positive("stride", self.stride)?;
        kernel.contiguous_rows()?;
        image.contiguous_rows()?;
        image.flat_from(2)?;
        kernel.flat_from(3)?;
        kernel.extent(2, image.ne()[1], "channels of the image")?;
        image.shape(image.ne()[0] > 0, "must not be empty")?;
        args.fresh(DType::F32, [spread(image.ne()[0], self.stride, kernel.ne()[0]), kernel.ne()[1]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let [width, filters, ..] = sizes.ne(0);
        let products = times([sizes.source(1), width, filters]);
        sum([products, sizes.source(0), times([2, sizes.source(1)]), sizes.result()])
    }
}

impl Operation for ConvTranspose2d {
    const INFO: OpInfo = OpInfo::new("CONV_TRANSPOSE_2D", Category::Vision, &[need("kernel"), need("image")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [kernel, image] = args.sources();
        kernel.one_of(&[DType::F16, DType::F32])?;
        image.f32()?;
        args.positive("stride", self.stride)?;
        kernel.contiguous_rows()?;
        image.contiguous_rows()?;
        kernel.extent(3, image.ne()[2], "channels of the image")?;
        image.shape(image.ne()[0] > 0 && image.ne()[1] > 0, "must not be empty")?;
        let [k0, k1, filters, _] = kernel.extents();
        let width = spread(image.ne()[0], self.stride, k0);
        let height = spread(image.ne()[1], self.stride, k1);
        args.fresh(DType::F32, [width, height, filters, image.ne()[3]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([width, height, filters, _], [.., batch]) = (sizes.ne(0), sizes.ne(1));
        let products = times([sizes.source(1), width, height, filters]);
        sum([products, times([sizes.source(0), batch]), times([2, sizes.source(1)]), sizes.result()])
    }
}

impl Graph {
    /// The image values under each position of the kernel, as rows.
    pub fn im2col(&mut self, kernel: TensorId, image: TensorId, op: Im2col) -> Result<TensorId, Error> {
        self.apply(op, &[Some(kernel), Some(image)])
    }

    /// Gradient of [`im2col`](Graph::im2col).
    pub fn im2col_back(
        &mut self,
        gradient: TensorId,
        kernel: TensorId,
        op: Im2colBack,
    ) -> Result<TensorId, Error> {
        self.apply(op, &[Some(gradient), Some(kernel)])
    }

    /// The volume values under each position of the kernel, as rows.
    pub fn im2col_3d(&mut self, kernel: TensorId, image: TensorId, op: Im2col3d) -> Result<TensorId, Error> {
        self.apply(op, &[Some(kernel), Some(image)])
    }

    /// Rows summed at their positions.
    pub fn col2im_1d(&mut self, a: TensorId, op: Col2im1d) -> Result<TensorId, Error> {
        self.apply(op, &[Some(a)])
    }

    /// Direct 2-D convolution.
    pub fn conv_2d(
        &mut self,
        kernel: TensorId,
        image: TensorId,
        geometry: ConvGeometry<2>,
    ) -> Result<TensorId, Error> {
        self.apply(Conv2d { geometry }, &[Some(kernel), Some(image)])
    }

    /// Direct 3-D convolution.
    pub fn conv_3d(&mut self, kernel: TensorId, image: TensorId, op: Conv3d) -> Result<TensorId, Error> {
        self.apply(op, &[Some(kernel), Some(image)])
    }

    /// Depthwise 2-D convolution.
    pub fn conv_2d_dw(
        &mut self,
        kernel: TensorId,
        image: TensorId,
        geometry: ConvGeometry<2>,
    ) -> Result<TensorId, Error> {
        self.apply(Conv2dDw { geometry }, &[Some(kernel), Some(image)])
    }

    /// Transposed 1-D convolution.
    pub fn conv_transpose_1d(
        &mut self,
        kernel: TensorId,
        image: TensorId,
        stride: usize,
    ) -> Result<TensorId, Error> {
        self.apply(ConvTranspose1d { stride }, &[Some(kernel), Some(image)])
    }

    /// Transposed 2-D convolution.
    pub fn conv_transpose_2d(
        &mut self,
        kernel: TensorId,
        image: TensorId,
        stride: usize,
    ) -> Result<TensorId, Error> {
        self.apply(ConvTranspose2d { stride }, &[Some(kernel), Some(image)])
    }
}
