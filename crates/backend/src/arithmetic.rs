//! Which results of devices are equal to the last bit.

use std::num::NonZeroU32;

/// The order in which a device adds up, rounding included, where that is fixed: devices with the same arithmetic get the same bits for the same
/// work.
///
/// The number has a meaning only for those who define it, and goes to peers as it is. It is never the same for two orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arithmetic(NonZeroU32);

impl Arithmetic {
    /// The arithmetic of a number; none has 0.
    pub const fn new(number: u32) -> Option<Arithmetic> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Arithmetic(number)),
            None => None,
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}
