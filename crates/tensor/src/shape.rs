//! Extents of a tensor, fastest dimension first.
//!
//! Invariant: none of its own; any four numbers are a `Shape`. [`Layout`](crate::Layout) is where extents meet a
//! type and become checked.

use std::fmt;
use std::ops::Index;

use crate::limits::DIMS;

/// Extents `[ne0, ne1, ne2, ne3]`, fastest dimension first. Built from arrays of up to four numbers, the missing
/// trailing ones being 1:
///
/// ```
/// use oxcart_tensor::Shape;
///
/// let shape = Shape::from([64, 3]);
/// assert_eq!(shape.extents(), [64, 3, 1, 1]);
/// assert_eq!(shape.to_string(), "[64, 3]");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape([usize; DIMS]);

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Shape = Shape([1; DIMS]);

    /// All four extents.
    pub const fn extents(self) -> [usize; DIMS] {
        self.0
    }

    /// Number of dimensions up to the last extent that is not 1, at least one.
    pub fn dims(self) -> usize {
        (1..DIMS).rev().find(|&i| self.0[i] != 1).map_or(1, |i| i + 1)
    }

    /// Number of elements, or `None` when it exceeds [`MAX_ELEMENTS`](crate::limits::MAX_ELEMENTS). Extents that
    /// overflow are refused even when another extent is zero, as long as the product of the non-zero ones is too
    /// large: strides are made of it.
    pub fn elements(self) -> Option<usize> {
        let span = self.0.iter().filter(|&&ne| ne > 1).try_fold(1_u64, |product, &ne| {
            product.checked_mul(ne as u64).filter(|&n| n <= crate::limits::MAX_ELEMENTS)
        })?;
        if self.is_empty() { Some(0) } else { usize::try_from(span).ok() }
    }

    /// Whether some extent is zero.
    pub fn is_empty(self) -> bool {
        self.0.contains(&0)
    }

    /// Whether every extent is 1.
    pub fn is_scalar(self) -> bool {
        self == Shape::SCALAR
    }

    /// Whether only dimension 0 may differ from 1.
    pub fn is_vector(self) -> bool {
        self.0[1..] == [1, 1, 1]
    }

    /// Whether only dimensions 0 and 1 may differ from 1.
    pub fn is_matrix(self) -> bool {
        self.0[2..] == [1, 1]
    }

    /// Whether dimension 3 is 1.
    pub fn is_3d(self) -> bool {
        self.0[3] == 1
    }

    /// Number of rows; a row runs along dimension 0.
    pub fn rows(self) -> usize {
        self.0[1].saturating_mul(self.0[2]).saturating_mul(self.0[3])
    }

    /// Whether tiling `self` a whole number of times in every dimension gives `target`. An empty tensor repeats
    /// only into an empty one.
    pub fn repeats_into(self, target: Shape) -> bool {
        if self.is_empty() {
            return target.is_empty();
        }
        (0..DIMS).all(|i| target.0[i].is_multiple_of(self.0[i]))
    }

    /// The same extents with dimension `dim` replaced.
    ///
    /// # Panics
    ///
    /// If `dim` is not below 4.
    #[must_use]
    pub fn with(mut self, dim: usize, extent: usize) -> Shape {
        self.0[dim] = extent;
        self
    }
}

impl Index<usize> for Shape {
    type Output = usize;

    fn index(&self, dim: usize) -> &usize {
        &self.0[dim]
    }
}

macro_rules! from_array {
    ($($len:literal),*) => {$(
        impl From<[usize; $len]> for Shape {
            fn from(leading: [usize; $len]) -> Shape {
                let mut ne = [1; DIMS];
                ne[..$len].copy_from_slice(&leading);
                Shape(ne)
            }
        }
    )*};
}
from_array!(1, 2, 3, 4);

impl From<usize> for Shape {
    fn from(len: usize) -> Shape {
        Shape([len, 1, 1, 1])
    }
}

/// Prints the extents up to the last one that matters.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0[..self.dims()])
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_counts_are_checked() {
        assert_eq!(Shape::from([2, 3, 4, 5]).elements(), Some(120));
        assert_eq!(Shape::from([0, 3]).elements(), Some(0));
        assert_eq!(Shape::from([1 << 32, 1 << 31]).elements(), None);
        assert_eq!(Shape::from([1 << 31, 1 << 31]).elements(), Some(1 << 62));
        assert_eq!(Shape::from([1 << 40, 1 << 40, 0]).elements(), None);
        assert_eq!(Shape::from([usize::MAX]).elements(), None);
    }

    #[test]
    fn repeating() {
        let check = |s: [usize; 2], t: [usize; 2], want| {
            assert_eq!(Shape::from(s).repeats_into(Shape::from(t)), want, "{s:?} into {t:?}");
        };
        check([1, 1], [5, 7], true);
        check([5, 1], [5, 7], true);
        check([5, 7], [10, 7], true);
        check([5, 7], [7, 7], false);
        check([0, 7], [0, 7], true);
        check([0, 1], [5, 7], false);
        check([5, 7], [0, 7], true);
    }

    #[test]
    fn kinds() {
        assert!(Shape::from(1).is_scalar());
        assert!(Shape::from(7).is_vector());
        assert!(!Shape::from([7, 2]).is_vector());
        assert!(Shape::from([7, 2]).is_matrix());
        assert_eq!(Shape::from([7, 1, 3, 1]).dims(), 3);
        assert_eq!(Shape::from([7, 0]).dims(), 2);
        assert_eq!(Shape::from([7, 2, 3, 4]).rows(), 24);
    }
}
