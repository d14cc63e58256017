//! What an op sees of its sources while it decides, and the checks most ops share.
//!
//! Invariant: a check that fails names the op, the operand and the reason; a check that passes changes nothing.

use std::borrow::Cow;

use super::error::{OpError, Reason, WantedDType};
use super::{OpInfo, Outcome};
use crate::dtype::DType;
use crate::layout::{Layout, LayoutError};
use crate::limits::DIMS;
use crate::shape::Shape;

/// Whether two layouts of the same extents take the same steps, wherever there is something to step to.
pub(super) fn same_steps(a: &Layout, b: &Layout) -> bool {
    (0..DIMS).all(|dim| a.ne()[dim] <= 1 || a.nb()[dim] == b.nb()[dim])
}

/// What an op may know about one source.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its type, extents and strides.
    pub layout: Layout,
    /// Whether it is a trainable parameter.
    pub is_param: bool,
}

impl From<Layout> for Source {
    fn from(layout: Layout) -> Source {
        Source { layout, is_param: false }
    }
}

/// A request for a node: its sources, and what the caller wants of the result.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    info: &'static OpInfo,
    sources: &'a [Option<Source>],
    in_place: bool,
    dtype: Option<DType>,
}

impl<'a> Args<'a> {
    /// Checks the number of sources against the op's description.
    pub(crate) fn new(
        info: &'static OpInfo,
        sources: &'a [Option<Source>],
        in_place: bool,
        dtype: Option<DType>,
    ) -> Result<Args<'a>, OpError> {
        let args = Args { info, sources, in_place, dtype };
        let most = info.sources.len();
        if sources.len() > most {
            return Err(args.reject("sources", Reason::TooMany { found: sources.len(), most }));
        }
        for (slot, spec) in info.sources.iter().enumerate() {
            if !spec.optional && sources.get(slot).copied().flatten().is_none() {
                return Err(args.reject(spec.name, Reason::Missing));
            }
        }
        Ok(args)
    }

    /// Whether the caller wants the result to share the memory of source 0.
    pub(super) fn in_place(&self) -> bool {
        self.in_place
    }

    /// The source in `slot`, which the op's description says is required.
    pub(super) fn source(&self, slot: usize) -> Operand {
        self.optional(slot).unwrap_or_else(|| unreachable!("required sources were checked by Args::new"))
    }

    /// The source in `slot`, if there is one.
    pub(super) fn optional(&self, slot: usize) -> Option<Operand> {
        let Source { layout, is_param } = self.sources.get(slot).copied().flatten()?;
        Some(Operand { op: self.info.name, name: self.info.sources[slot].name, layout, is_param })
    }

    /// The required sources `0..N`.
    pub(super) fn sources<const N: usize>(&self) -> [Operand; N] {
        std::array::from_fn(|slot| self.source(slot))
    }

    /// The type the caller wants, else `default`. Whether an op can make it is for the op to say; a type it does
    /// not look at is refused by the door.
    pub(super) fn wanted_dtype(&self, default: DType) -> DType {
        self.dtype.unwrap_or(default)
    }

    pub(super) fn reject(&self, operand: &'static str, reason: Reason) -> OpError {
        OpError { op: self.info.name, operand, reason: Box::new(reason) }
    }

    /// Refuses a parameter unless `holds`.
    pub(super) fn param(
        &self,
        name: &'static str,
        value: impl std::fmt::Debug,
        holds: bool,
        rule: impl Into<Cow<'static, str>>,
    ) -> Result<(), OpError> {
        if holds {
            return Ok(());
        }
        Err(self.reject(name, Reason::Param { value: format!("{value:?}"), rule: rule.into() }))
    }

    /// Refuses an integer that does not fit the signed 32-bit words in which parameters travel.
    pub(super) fn word<T>(&self, name: &'static str, value: T) -> Result<(), OpError>
    where
        T: Copy + std::fmt::Debug + TryInto<i32>,
    {
        self.param(name, value, value.try_into().is_ok_and(|n| n >= 0), "must be below 2^31")
    }

    /// As [`word`](Args::word), zero being refused too.
    pub(super) fn positive<T>(&self, name: &'static str, value: T) -> Result<(), OpError>
    where
        T: Copy + std::fmt::Debug + TryInto<i32>,
    {
        self.param(name, value, value.try_into().is_ok_and(|n| n > 0), "must be positive, below 2^31")
    }

    /// Refuses an epsilon that is negative or NaN.
    pub(super) fn eps(&self, eps: f32) -> Result<(), OpError> {
        self.param("eps", eps, eps >= 0.0, "must not be negative")
    }

    /// Refuses a result type outside `allowed`.
    pub(super) fn result_dtype(&self, found: DType, wanted: WantedDType, holds: bool) -> Result<(), OpError> {
        if holds { Ok(()) } else { Err(self.reject("result", Reason::DType { found, wanted })) }
    }

    /// A new packed tensor.
    pub(super) fn fresh(&self, dtype: DType, ne: impl Into<Shape>) -> Result<Outcome, OpError> {
        Layout::packed(dtype, ne).map(Outcome::Fresh).map_err(|error| self.bad_layout(error))
    }

    pub(super) fn bad_layout(&self, error: LayoutError) -> OpError {
        self.reject("result", Reason::Layout(error))
    }
}

/// One source under inspection. Checks return `Ok` or an error that names it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    op: &'static str,
    name: &'static str,
    layout: Layout,
    is_param: bool,
}

impl Operand {
    /// The same place in the error, under another name and layout: for checks on what a source turns into.
    pub(super) fn with(&self, name: &'static str, layout: Layout) -> Operand {
        Operand { name, layout, ..*self }
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    pub(super) fn ne(&self) -> Shape {
        self.layout.ne()
    }

    /// The four extents, for destructuring.
    pub(super) fn extents(&self) -> [usize; 4] {
        self.layout.ne().extents()
    }

    pub(super) fn reject(&self, reason: Reason) -> OpError {
        OpError { op: self.op, operand: self.name, reason: Box::new(reason) }
    }

    pub(super) fn bad_dtype(&self, wanted: WantedDType) -> OpError {
        self.reject(Reason::DType { found: self.dtype(), wanted })
    }

    /// One of these types.
    pub(super) fn one_of(&self, allowed: &'static [DType]) -> Result<(), OpError> {
        if allowed.contains(&self.dtype()) {
            Ok(())
        } else {
            Err(self.bad_dtype(WantedDType::OneOf(allowed)))
        }
    }

    pub(super) fn f32(&self) -> Result<(), OpError> {
        self.one_of(&[DType::F32])
    }

    pub(super) fn i32(&self) -> Result<(), OpError> {
        self.one_of(&[DType::I32])
    }

    /// The type of `other`.
    pub(super) fn same_dtype(&self, other: &Operand) -> Result<(), OpError> {
        if self.dtype() == other.dtype() {
            Ok(())
        } else {
            Err(self.bad_dtype(WantedDType::SameAs(other.name, other.dtype())))
        }
    }

    /// A type whose values expand to `f32`.
    pub(super) fn decodes(&self) -> Result<(), OpError> {
        if self.dtype().decodes() {
            Ok(())
        } else {
            Err(self.bad_dtype(WantedDType::With("a type that expands to f32")))
        }
    }

    fn strides(&self, holds: bool, rule: &'static str) -> Result<(), OpError> {
        if holds { Ok(()) } else { Err(self.reject(Reason::Strides { found: self.layout, rule })) }
    }

    /// Packed in logical order.
    pub(super) fn contiguous(&self) -> Result<(), OpError> {
        self.strides(self.layout.is_contiguous(), "must be contiguous")
    }

    /// Packed, apart from the distance of rows.
    pub(super) fn contiguous_apart_from_rows(&self) -> Result<(), OpError> {
        self.strides(
            self.layout.is_contiguous_above(1),
            "rows must be contiguous and lie at one common distance",
        )
    }

    /// Elements of each row adjacent (a single element always is).
    pub(super) fn contiguous_rows(&self) -> Result<(), OpError> {
        self.strides(self.layout.has_contiguous_rows(), "rows must be contiguous")
    }

    /// Each plane of dimensions 0 and 1 packed.
    pub(super) fn contiguous_planes(&self) -> Result<(), OpError> {
        self.strides(self.layout.is_contiguous_to(2), "planes of dimensions 0 and 1 must be contiguous")
    }

    /// A step of exactly one element along dimension 0, even where there is nothing to step to.
    pub(super) fn unit_stride(&self) -> Result<(), OpError> {
        let holds = self.layout.nb()[0] == self.dtype().block_bytes();
        self.strides(holds, "the stride of dimension 0 must be one element")
    }

    /// The stride rule of an op that is the only one to have it.
    pub(super) fn stride_rule(&self, holds: bool, rule: &'static str) -> Result<(), OpError> {
        self.strides(holds, rule)
    }

    pub(super) fn not_transposed(&self) -> Result<(), OpError> {
        self.strides(!self.layout.is_transposed(), "must not be transposed")
    }

    /// Refuses the extents unless `holds`.
    pub(super) fn shape(&self, holds: bool, rule: impl Into<Cow<'static, str>>) -> Result<(), OpError> {
        if holds {
            return Ok(());
        }
        Err(self.reject(Reason::Shape { found: self.ne(), rule: rule.into() }))
    }

    /// Exactly these extents.
    pub(super) fn shape_is(&self, wanted: impl Into<Shape>, meaning: &'static str) -> Result<(), OpError> {
        let wanted = wanted.into();
        if self.ne() == wanted {
            return Ok(());
        }
        self.shape(false, format!("must be {wanted} ({meaning})"))
    }

    /// The extents of `other`.
    pub(super) fn same_shape(&self, other: &Operand) -> Result<(), OpError> {
        if self.ne() == other.ne() {
            return Ok(());
        }
        self.shape(false, format!("must be {} like {}", other.ne(), other.name))
    }

    /// Extent `dim` equal to `wanted`, which `meaning` explains.
    pub(super) fn extent(&self, dim: usize, wanted: usize, meaning: &str) -> Result<(), OpError> {
        if self.ne()[dim] == wanted {
            return Ok(());
        }
        self.shape(false, format!("dimension {dim} must be {wanted} ({meaning})"))
    }

    /// Extent 1 from dimension `from` on.
    pub(super) fn flat_from(&self, from: usize) -> Result<(), OpError> {
        let holds = self.extents()[from..].iter().all(|&ne| ne == 1);
        if holds { Ok(()) } else { self.shape(false, format!("must have at most {from} dimensions")) }
    }

    /// Extent `dim` not zero and tiling `whole`, which `meaning` explains, when repeated.
    pub(super) fn divides(&self, dim: usize, whole: usize, meaning: &str) -> Result<(), OpError> {
        let part = self.ne()[dim];
        if part != 0 && whole.is_multiple_of(part) {
            return Ok(());
        }
        self.shape(false, format!("dimension {dim} must divide {whole} ({meaning})"))
    }

    pub(super) fn is_param(&self) -> Result<(), OpError> {
        if self.is_param { Ok(()) } else { Err(self.reject(Reason::NotAParameter)) }
    }
}
