//! Sizes, times and numbers as people write them: `8G`, `512MiB`, `90s`, `30m`.
//!
//! Invariant: a value that cannot be used is refused with those that can.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;
use std::time::Duration;

/// Reads a whole number in a range.
pub(crate) fn whole<T: FromStr + PartialOrd + Display>(
    range: impl RangeBounds<T> + Clone,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("must be a whole number{}", within(&range))),
    }
}

/// Reads a finite number in a range.
pub(crate) fn number<T: FromStr + PartialOrd + Display + Into<f64> + Copy>(
    range: impl RangeBounds<T> + Clone,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| match text.parse::<T>() {
        Ok(number) if range.contains(&number) && number.into().is_finite() => Ok(number),
        _ => Err(format!("must be a number{}", within(&range))),
    }
}

/// ` from 0 to 1`: a range after the word that says what is in it.
fn within<T: Display>(range: &impl RangeBounds<T>) -> String {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => format!(" from {least} to {most}"),
        (Bound::Included(least), _) => format!(", {least} or more"),
        (Bound::Excluded(least), _) => format!(" above {least}"),
        (Bound::Unbounded, _) => String::new(),
    }
}

/// The number in front, and what stands behind it.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

/// Bytes. Units are powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "must be a size like 8G, 512M or 1073741824".to_owned();
    let (number, unit) = split(text.trim()).ok_or_else(wrong)?;
    let unit = unit.to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match letter {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A span of time; a number alone is seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a time like 90s, 30m or 12h".to_owned();
    let (number, unit) = split(text.trim()).ok_or_else(wrong)?;
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.checked_mul(seconds).filter(|&seconds| seconds > 0).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_refused_with_their_range() {
        let wrong = |words: &str| format!("must be a {words}");
        assert_eq!(whole(1..=512)("512"), Ok(512_u16));
        for text in ["0", "513", "70000", "-1", "1.5", "x", ""] {
            assert_eq!(whole(1..=512_u16)(text).unwrap_err(), wrong("whole number from 1 to 512"), "{text}");
        }
        assert_eq!(whole(4_usize..)("3").unwrap_err(), wrong("whole number, 4 or more"));
        assert_eq!(number(0.0..=1.0)("0.95"), Ok(0.95_f32));
        for text in ["1.01", "-0.1", "nan", "inf", "warm"] {
            assert_eq!(number(0.0..=1.0_f32)(text).unwrap_err(), wrong("number from 0 to 1"), "{text}");
        }
        assert_eq!(number(0.0_f64..)("inf").unwrap_err(), wrong("number, 0 or more"));
        assert_eq!(
            number((Bound::Excluded(0.0_f32), Bound::Unbounded))("0").unwrap_err(),
            wrong("number above 0")
        );
        assert_eq!(number::<f32>(..)("-2"), Ok(-2.0));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("17B", 17), ("2k", 2048), ("8G", 8 << 30), ("1MiB", 1 << 20)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times() {
        for (text, seconds) in [("5", 5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "0", "m", "-5s", "3w", "99999999999999999999d"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
