//! SHA-256, to compare long messages with published sums.

/// The first 32 bits of the fractional parts of roots of primes, which is where all constants come from.
fn fraction(prime: u32, root: f64) -> u32 {
    let power = f64::from(prime).powf(root);
    // 53 bits of a power below 8 leave more than 32 behind the point.
    ((power - power.floor()) * 4_294_967_296.0) as u32
}

fn primes() -> impl Iterator<Item = u32> {
    (2..).filter(|n| (2..*n).all(|d| n % d != 0))
}

/// The digest, in hexadecimal.
pub(crate) fn sha256(data: &[u8]) -> String {
    let k: Vec<u32> = primes().take(64).map(|prime| fraction(prime, 1.0 / 3.0)).collect();
    let mut h: Vec<u32> = primes().take(8).map(|prime| fraction(prime, 0.5)).collect();
    let mut padded = data.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend((data.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mut w: Vec<u32> =
            block.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        for i in 16..64 {
            let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
            let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let mut v: [u32; 8] = h.clone().try_into().unwrap();
        for i in 0..64 {
            let [a, b, c, d, e, f, g, last] = v;
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let t1 = last.wrapping_add(s1).wrapping_add(choice).wrapping_add(k[i]).wrapping_add(w[i]);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            v = [t1.wrapping_add(t2), a, b, c, d.wrapping_add(t1), e, f, g];
        }
        for (sum, value) in h.iter_mut().zip(v) {
            *sum = sum.wrapping_add(value);
        }
    }
    h.iter().map(|word| format!("{word:08x}")).collect()
}
