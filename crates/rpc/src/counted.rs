//! How many there are of something, in words. Invariant: one of them is never several.

/// `1 graph`, `2 graphs`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
