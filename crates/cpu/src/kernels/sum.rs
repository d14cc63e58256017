//! Sums of rows in `f64`, in a fixed pattern of partial sums: exact enough for every op, and as fast as vectors are.

/// Partial sums: enough to keep the adders of every instruction set busy.
const LANES: usize = 16;

/// A sum in parts, which come together in a fixed order. The pattern is the same on every instruction set.
pub(super) struct Sum([f64; LANES]);

impl Sum {
    #[inline(always)]
    pub(super) const fn new() -> Sum {
        Sum([0.0; LANES])
    }

    /// Adds `len` terms.
    #[inline(always)]
    pub(super) fn add(&mut self, len: usize, term: impl Fn(usize) -> f32) {
        let whole = len - len % LANES;
        for start in (0..whole).step_by(LANES) {
            for lane in 0..LANES {
                self.0[lane] += f64::from(term(start + lane));
            }
        }
        for i in whole..len {
            self.0[i - whole] += f64::from(term(i));
        }
    }

    #[inline(always)]
    pub(super) fn total(mut self) -> f64 {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                self.0[lane] += self.0[lane + half];
            }
            half /= 2;
        }
        self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_counts_once() {
        for len in [0, 1, 15, 16, 17, 100] {
            let mut sum = Sum::new();
            sum.add(len, |i| i as f32);
            sum.add(1, |_| 0.5);
            assert_eq!(sum.total(), (0..len).sum::<usize>() as f64 + 0.5);
        }
    }
}
