//! Small letters for capital ones, as tokenizers expect them: those of Unicode 15, whichever version Rust's own tables have, so that a
//! text becomes the same tokens in every build.
//!
//! Invariant: one character becomes one character.

/// The small letter for a capital one; any other character stays as it is.
pub(crate) fn lowercase(c: char) -> char {
    if is_newer(c) { c } else { c.to_lowercase().next().unwrap_or(c) }
}

/// Capital letters of Unicode 16 and 17.
fn is_newer(c: char) -> bool {
    matches!(
        c,
        '\u{1c89}'
            | '\u{a7cb}'..='\u{a7cc}'
            | '\u{a7ce}'
            | '\u{a7d2}'
            | '\u{a7d4}'
            | '\u{a7da}'
            | '\u{a7dc}'
            | '\u{10d50}'..='\u{10d65}'
            | '\u{16ea0}'..='\u{16eb8}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_those_of_one_version_of_unicode() {
        let known = ('\0'..=char::MAX).filter(|&c| lowercase(c) != c).count();
        assert_eq!(known, 1433, "Rust's tables have capital letters that are not listed here");
        assert_eq!(
            ['A', 'É', 'Ж', 'ß', '1', '\u{130}', '\u{1c89}'].map(lowercase),
            ['a', 'é', 'ж', 'ß', '1', 'i', '\u{1c89}']
        );
    }
}
