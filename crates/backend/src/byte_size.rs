//! Sizes in bytes as people read them.

use std::fmt;

/// Shows a number of bytes with one decimal, in the largest unit in which that is at least one: `17 B`, `89.7 MiB`.
///
/// ```
/// assert_eq!(oxcart_backend::ByteSize(94 << 20).to_string(), "94.0 MiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(
    /// How many.
    pub u64,
);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const STEP: f64 = 1024.0;
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let (mut value, mut unit) = (self.0 as f64 / STEP, 0);
        // As it is shown: what would be rounded to 1024.0 is 1.0 of the next unit.
        while (value * 10.0).round() / 10.0 >= STEP && unit + 1 < UNITS.len() {
            value /= STEP;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_the_shown_number_would_reach_1024() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (94 << 20, "94.0 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
    }
}
