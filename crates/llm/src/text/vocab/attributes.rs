//! What kind of token a token is. A token can be several kinds.

use std::ops::BitOr;

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Attributes(u8);

impl Attributes {
    pub(crate) const NORMAL: Attributes = Attributes(1);
    pub(crate) const UNKNOWN: Attributes = Attributes(2);
    pub(crate) const CONTROL: Attributes = Attributes(4);
    pub(crate) const USER_DEFINED: Attributes = Attributes(8);
    pub(crate) const UNUSED: Attributes = Attributes(16);
    pub(crate) const BYTE: Attributes = Attributes(32);
    /// White space before it goes away when text is cut at special tokens.
    pub(crate) const STRIP_LEFT: Attributes = Attributes(64);
    /// White space behind it goes away.
    pub(crate) const STRIP_RIGHT: Attributes = Attributes(128);

    /// The kinds that are looked for in text as a whole.
    pub(crate) const SPECIAL: Attributes =
        Attributes(Attributes::UNKNOWN.0 | Attributes::CONTROL.0 | Attributes::USER_DEFINED.0);

    /// By the number in a file. Numbers without a meaning give a token of no kind.
    pub(crate) fn from_file(number: i128) -> Attributes {
        match number {
            1 => Attributes::NORMAL,
            2 => Attributes::UNKNOWN,
            3 => Attributes::CONTROL,
            4 => Attributes::USER_DEFINED,
            5 => Attributes::UNUSED,
            6 => Attributes::BYTE,
            _ => Attributes::default(),
        }
    }

    pub(crate) fn intersects(self, other: Attributes) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn insert(&mut self, other: Attributes) {
        self.0 |= other.0;
    }
}

impl BitOr for Attributes {
    type Output = Attributes;

    fn bitor(self, other: Attributes) -> Attributes {
        Attributes(self.0 | other.0)
    }
}
