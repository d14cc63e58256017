//! Random numbers by place, not by turn: Philox 4x32 with ten rounds (Salmon, Moraes, Dror and Shaw 2011).
//!
//! Invariant: the numbers of a token depend on the seed and on the token's index alone. What was drawn before, what sits
//! beside it in a batch, whether it was guessed ahead of time or computed after a restart changes nothing.

/// The numbers that one token may use, each from zero up to but not including one, out of 53 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draws {
    /// Which of the candidates.
    pub(super) choice: f64,
    /// Whether something happens that happens only sometimes.
    pub(super) chance: f64,
}

/// The numbers of the token with this index.
pub(super) fn draws(seed: u64, index: u64) -> Draws {
    let [a, b, c, d] = philox([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    Draws { choice: unit(a, b), chance: unit(c, d) }
}

fn unit(low: u32, high: u32) -> f64 {
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let first = u64::from(a) * 0xd251_1f53;
        let second = u64::from(c) * 0xcd9e_8d57;
        (a, b, c, d) =
            ((second >> 32) as u32 ^ b ^ k0, second as u32, (first >> 32) as u32 ^ d ^ k1, first as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish.
    #[test]
    fn known_values() {
        let all = u32::MAX;
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([all; 4], [all; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn numbers_are_spread_evenly() {
        for seed in [0, 1, u64::MAX] {
            let (mut choices, mut chances) = (0.0, 0.0);
            for index in 0..10_000 {
                let Draws { choice, chance } = draws(seed, index);
                assert!((0.0..1.0).contains(&choice) && (0.0..1.0).contains(&chance));
                choices += choice;
                chances += chance;
            }
            assert!((choices / 10_000.0 - 0.5).abs() < 0.01 && (chances / 10_000.0 - 0.5).abs() < 0.01);
        }
        assert_ne!(draws(0, 1 << 32), draws(0, 0));
        assert_ne!(draws(1 << 32, 0), draws(0, 0));
    }
}
