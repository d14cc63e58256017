//! Eight small codes at a time in the bytes of a 64-bit number, lowest first.

/// A one in each byte.
pub(super) const ONES: u64 = 0x0101_0101_0101_0101;

/// Eight 2-bit fields, each in a byte of its own.
#[inline(always)]
pub(super) fn spread_crumbs(crumbs: u16) -> u64 {
    let fours = u64::from(crumbs & 0xFF) | u64::from(crumbs >> 8) << 32;
    let twos = (fours | fours << 12) & (15 * 0x0001_0001_0001_0001);
    (twos | twos << 6) & (3 * ONES)
}

/// All bits of each byte whose bit is set.
#[inline(always)]
pub(super) fn spread_bits(bits: u8) -> u64 {
    // Each byte keeps its own bit of eight copies; adding 127 carries it to the top, whichever it was.
    let own = (u64::from(bits) * ONES) & 0x8040_2010_0804_0201;
    let top = ((own + 0x7F * ONES) | own) >> 7 & ONES;
    top * 0xFF
}

/// Seven signs each, and an eighth that makes their number even.
#[inline(always)]
pub(super) fn even_signs(fields: u64) -> u64 {
    let four = fields ^ fields >> 4 & (7 * ONES);
    let two = four ^ four >> 2 & (3 * ONES);
    let parity = (two ^ two >> 1) & ONES;
    fields | parity << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_get_bytes_of_their_own() {
        assert_eq!(spread_crumbs(0b11_10_01_00_00_01_10_11), 0x0302_0100_0001_0203);
        for bits in 0..=u8::MAX {
            let expected = std::array::from_fn(|i| if bits >> i & 1 == 1 { 0xFF } else { 0 });
            assert_eq!(spread_bits(bits).to_le_bytes(), expected);
        }
    }

    #[test]
    fn signs_are_those_of_the_format() {
        for field in 0..128u8 {
            let signs = even_signs(u64::from(field) << 16 | u64::from(127 - field) << 56).to_le_bytes();
            assert_eq!(signs[2], oxcart_tensor::quant::iq::even_signs(field));
            assert_eq!(signs[7], oxcart_tensor::quant::iq::even_signs(127 - field));
        }
    }
}
