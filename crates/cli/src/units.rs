//! Sizes and times as people write them: `8G`, `512MiB`, `90s`, `30m`.

use std::time::Duration;

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
