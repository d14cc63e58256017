//! How codes of one to four bits share bytes.
//!
//! All formats interleave: neighbouring bytes hold neighbouring elements, and the fields of one byte are a fixed
//! stride of elements apart, so that unpacking is the same shift for a whole vector of bytes.
//!
//! Invariant: unpacking undoes packing for codes that fit their field; wider codes must not be passed.

/// Two codes per byte. In each run of `2 * STRIDE` elements, byte `i` holds element `i` in its low nibble and element
/// `i + STRIDE` in its high one.
pub(crate) fn pack_nibbles<const STRIDE: usize>(codes: &[u8], out: &mut [u8]) {
    debug_assert_eq!(codes.len(), 2 * out.len());
    for (codes, out) in codes.chunks_exact(2 * STRIDE).zip(out.chunks_exact_mut(STRIDE)) {
        let (low, high) = codes.split_at(STRIDE);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = low | high << 4;
        }
    }
}

/// The inverse of [`pack_nibbles`].
pub(crate) fn unpack_nibbles<const STRIDE: usize>(bytes: &[u8], codes: &mut [u8]) {
    debug_assert_eq!(codes.len(), 2 * bytes.len());
    for (bytes, codes) in bytes.chunks_exact(STRIDE).zip(codes.chunks_exact_mut(2 * STRIDE)) {
        let (low, high) = codes.split_at_mut(STRIDE);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// Four 2-bit codes per byte: in each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64`, `i + 96`.
pub(crate) fn pack_crumbs(codes: &[u8; 256]) -> [u8; 64] {
    let mut out = [0; 64];
    for (codes, out) in codes.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (lane, codes) in codes.chunks_exact(32).enumerate() {
            for (out, code) in out.iter_mut().zip(codes) {
                *out |= code << (2 * lane);
            }
        }
    }
    out
}

/// The inverse of [`pack_crumbs`].
pub(crate) fn unpack_crumbs(bytes: &[u8; 64]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (lane, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (byte, code) in bytes.iter().zip(codes) {
                *code = byte >> (2 * lane) & 3;
            }
        }
    }
    codes
}

/// Eight bits per byte: bit `k` of byte `i` is bit `BIT` of the code of element `32 * k + i`.
pub(crate) fn pack_bit<const BIT: u32>(codes: &[u8; 256]) -> [u8; 32] {
    let mut out = [0; 32];
    for (plane, codes) in codes.chunks_exact(32).enumerate() {
        for (out, code) in out.iter_mut().zip(codes) {
            *out |= (code >> BIT & 1) << plane;
        }
    }
    out
}

/// Puts the bits of [`pack_bit`] back into the codes, where bit `BIT` must still be 0.
pub(crate) fn unpack_bit<const BIT: u32>(bytes: &[u8; 32], codes: &mut [u8; 256]) {
    for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (byte, code) in bytes.iter().zip(codes) {
            *code |= (byte >> plane & 1) << BIT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(bits: u32) -> [u8; 256] {
        std::array::from_fn(|e| (e as u32 * 167 % 251 % (1 << bits)) as u8)
    }

    #[test]
    fn unpacking_undoes_packing() {
        let nibbles = codes(4);
        let (mut bytes, mut back) = ([0; 128], [0; 256]);
        pack_nibbles::<32>(&nibbles, &mut bytes);
        unpack_nibbles::<32>(&bytes, &mut back);
        assert_eq!(back, nibbles);
        assert_eq!(unpack_crumbs(&pack_crumbs(&codes(2))), codes(2));

        let mut back = codes(5).map(|code| code & 15);
        unpack_bit::<4>(&pack_bit::<4>(&codes(5)), &mut back);
        assert_eq!(back, codes(5));
    }

    #[test]
    fn elements_sit_where_the_formats_say() {
        let codes: [u8; 256] = std::array::from_fn(|e| u8::from(e == 40) * 3);
        assert_eq!(pack_crumbs(&codes)[8], 3 << 2);
        assert_eq!(pack_bit::<0>(&codes)[8], 1 << 1);
        let mut nibbles = [0; 128];
        pack_nibbles::<32>(&codes, &mut nibbles);
        assert_eq!(nibbles[8], 3 << 4);
        pack_nibbles::<16>(&codes, &mut nibbles);
        assert_eq!(nibbles[16 + 8], 3);
    }
}
