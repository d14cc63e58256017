//! Numbers for people.

use oxcart::backend::ByteSize;

/// `89.7 MiB`: a size in a column. Units have three letters, so that columns align.
pub(crate) fn bytes(bytes: u64) -> String {
    format!("{}{}", ByteSize(bytes), if bytes < 1024 { "  " } else { "" })
}

/// `134.5 M`: a number of things with at most one decimal.
pub(crate) fn count(count: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "B", "T", "P", "E"];
    if count < 1000 {
        return format!("{count}  ");
    }
    let (mut value, mut unit) = (count as f64 / 1000.0, 0);
    // As it is shown: what would be rounded to 1000.0 is 1.0 of the next unit.
    while (value * 10.0).round() >= 10_000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `1,785,664`: all digits, in groups.
pub(crate) fn grouped(number: impl Into<i128>) -> String {
    let number = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if number < 0 {
        grouped.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 window`, `3 windows`: how many there are of something.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_several() {
        assert_eq!((0..3).map(|n| counted(n, "word")).collect::<Vec<_>>(), ["0 words", "1 word", "2 words"]);
    }

    #[test]
    fn sizes() {
        for (n, want) in [(0, "0 B  "), (1023, "1023 B  "), (1024, "1.0 KiB"), (94 << 20, "94.0 MiB")] {
            assert_eq!(bytes(n), want);
        }
    }

    #[test]
    fn counts() {
        for (n, want) in [
            (0, "0  "),
            (999, "999  "),
            (1000, "1.0 K"),
            (134_515_008, "134.5 M"),
            (999_999, "1.0 M"),
            (8_030_261_248, "8.0 B"),
        ] {
            assert_eq!(count(n), want);
        }
    }

    #[test]
    fn groups() {
        for (n, want) in [(0_i64, "0"), (999, "999"), (1000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(grouped(n), want);
        }
    }
}
