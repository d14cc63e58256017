//! Why a node was refused: the op, the operand and the reason, as data.

use std::borrow::Cow;
use std::fmt;

use crate::dtype::DType;
use crate::layout::{Layout, LayoutError};
use crate::shape::Shape;

/// A node that cannot exist.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{op}: {operand}: {reason}")]
pub struct OpError {
    /// ggml's name of the operation.
    pub op: &'static str,
    /// The source, parameter or `result` that is wrong.
    pub operand: &'static str,
    /// What is wrong with it. Boxed, because errors are rare and results are everywhere.
    pub reason: Box<Reason>,
}

/// What is wrong with an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// A source that the op needs is absent.
    Missing,
    /// More sources than the op has.
    TooMany {
        /// How many were given.
        found: usize,
        /// How many the op has.
        most: usize,
    },
    /// A type the op does not work on.
    DType {
        /// The type given.
        found: DType,
        /// What would do.
        wanted: WantedDType,
    },
    /// Extents that break a rule.
    Shape {
        /// The extents given.
        found: Shape,
        /// The rule.
        rule: Cow<'static, str>,
    },
    /// Strides that break a rule.
    Strides {
        /// The layout given.
        found: Layout,
        /// The rule.
        rule: &'static str,
    },
    /// A parameter that breaks a rule.
    Param {
        /// The value given.
        value: String,
        /// The rule.
        rule: Cow<'static, str>,
    },
    /// The result, or a view of it, is not a possible layout.
    Layout(LayoutError),
    /// A view that would reach outside the tensor it looks into.
    OutOfBounds {
        /// First byte of the view, counted from the first byte of its root.
        offset: usize,
        /// Bytes of the view.
        len: usize,
        /// Bytes of the root.
        root_len: usize,
    },
    /// The op would write through a layout in which elements share bytes.
    Overlap {
        /// The layout.
        found: Layout,
    },
    /// The op would write to the same memory twice.
    SharedMemory,
    /// The op cannot be computed over its first source.
    NotInPlace,
    /// A leaf is not made by an op; the graph has a call of its own for it.
    NotAnOp,
    /// Only a trainable parameter can stand here.
    NotAParameter,
}

/// Types that would have been accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedDType {
    /// One of these.
    OneOf(&'static [DType]),
    /// The same as that of another operand.
    SameAs(&'static str, DType),
    /// This one, the only one the op makes.
    Only(DType),
    /// Any type with this property.
    With(&'static str),
}

impl fmt::Display for WantedDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WantedDType::OneOf([only]) => write!(f, "{only}"),
            WantedDType::OneOf(list) => {
                let names: Vec<_> = list.iter().map(|dtype| dtype.name()).collect();
                write!(f, "one of {}", names.join(", "))
            }
            WantedDType::SameAs(operand, dtype) => write!(f, "{dtype}, the type of {operand}"),
            WantedDType::Only(dtype) => write!(f, "{dtype}, the only type this op makes of these sources"),
            WantedDType::With(property) => write!(f, "{property}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Missing => write!(f, "is missing"),
            Reason::TooMany { found, most } => write!(f, "{found} given, at most {most} possible"),
            Reason::DType { found, wanted } => write!(f, "type is {found}, must be {wanted}"),
            Reason::Shape { found, rule } => write!(f, "shape is {found}, {rule}"),
            Reason::Strides { found, rule } => {
                write!(f, "strides of {} are {:?}, {rule}", found.ne(), found.nb())
            }
            Reason::Param { value, rule } => write!(f, "is {value}, {rule}"),
            Reason::Layout(error) => write!(f, "{error}"),
            Reason::OutOfBounds { offset, len, root_len } => {
                write!(f, "bytes {offset}..+{len} reach outside the {root_len} bytes of the viewed tensor")
            }
            Reason::Overlap { found } => {
                write!(
                    f,
                    "cannot be written: elements of {} at strides {:?} share bytes",
                    found.ne(),
                    found.nb()
                )
            }
            Reason::SharedMemory => write!(f, "shares memory with something else that the op writes"),
            Reason::NotInPlace => write!(f, "cannot be computed in place"),
            Reason::NotAnOp => write!(f, "makes no node; leaves are added as leaves"),
            Reason::NotAParameter => write!(f, "must be a trainable parameter"),
        }
    }
}
