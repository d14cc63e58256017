use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![]
}
