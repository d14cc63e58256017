//! Codebook grids: expanding their packed codes, and finding the point nearest to given values.
//!
//! A search adds up one cost per element. The elements are cut into a lower and an upper half, so that the cost of a
//! point is the sum of two table entries; points are sorted by upper half, so that whole runs of them are skipped
//! when even the cheapest lower half could not make them win. This is exact and needs no table beyond one byte per
//! point and half.
//!
//! Invariant: `starts` cuts the points, in index order, into one run per upper half.

use super::grids;

/// Room for the half points of every grid: `3^4` with eight elements of three levels, `8^2` with four elements of
/// eight levels. A multiple of eight, because that many are looked at together.
const MAX_HALVES: usize = 88;

/// A fixed list of `N` points with `E` elements, each of which takes one of `R` levels.
#[derive(Debug)]
pub struct Grid<const E: usize, const R: usize, const N: usize> {
    levels: [i8; R],
    points: [[i8; E]; N],
    /// Elements `0..E/2` of each point, as a number with base `R`.
    low: [u8; N],
    /// Elements `E/2..E` of each point.
    high: [u8; N],
    starts: [u16; MAX_HALVES + 1],
}

/// The 2048 points of IQ1_S and IQ1_M.
pub static G1: Grid<8, 3, 2048> = Grid::new(&grids::G1, [-1, 0, 1]);
/// The 256 points of IQ2_XXS.
pub static G2_XXS: Grid<8, 3, 256> = Grid::new(&grids::G2_XXS, [8, 25, 43]);
/// The 512 points of IQ2_XS.
pub static G2_XS: Grid<8, 3, 512> = Grid::new(&grids::G2_XS, [8, 25, 43]);
/// The 1024 points of IQ2_S.
pub static G2_S: Grid<8, 3, 1024> = Grid::new(&grids::G2_S, [8, 25, 43]);
/// The 256 points of IQ3_XXS.
pub static G3_XXS: Grid<4, 8, 256> = Grid::new(&grids::G3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
/// The 512 points of IQ3_S.
pub static G3_S: Grid<4, 8, 512> = Grid::new(&grids::G3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

impl<const E: usize, const R: usize, const N: usize> Grid<E, R, N> {
    const fn new(codes: &[u16; N], levels: [i8; R]) -> Self {
        let bits = R.next_power_of_two().trailing_zeros();
        let halves = R.pow(E as u32 / 2);
        assert!(halves <= MAX_HALVES);

        let mut points = [[0; E]; N];
        let (mut low, mut high) = ([0; N], [0; N]);
        let mut starts = [0; MAX_HALVES + 1];
        let mut i = 0;
        while i < N {
            assert!(i == 0 || codes[i - 1] < codes[i], "runs need sorted points");
            let (mut whole, mut j) = (0, E);
            while j > 0 {
                j -= 1;
                let level = (codes[i] as usize >> (bits * j as u32)) % (1 << bits);
                points[i][j] = levels[level];
                whole = whole * R + level;
            }
            low[i] = (whole % halves) as u8;
            high[i] = (whole / halves) as u8;
            starts[whole / halves + 1] = i as u16 + 1;
            i += 1;
        }
        // A half that no point has starts and ends where the one before it ends.
        let mut h = 0;
        while h < MAX_HALVES {
            if starts[h + 1] < starts[h] {
                starts[h + 1] = starts[h];
            }
            h += 1;
        }
        Grid { levels, points, low, high, starts }
    }

    /// All points, by index.
    pub const fn points(&self) -> &[[i8; E]; N] {
        &self.points
    }

    /// The levels that elements take, ascending.
    pub const fn levels(&self) -> &[i8; R] {
        &self.levels
    }

    /// Index and cost of the point with the least sum of `costs[element][level]`. The search is fast when `hint` is
    /// the index of a good point.
    pub(super) fn nearest(&self, costs: &[[f32; R]; E], hint: u16) -> (u16, f32) {
        let (low_costs, high_costs) = costs.split_at(E / 2);
        let (low, high) = (half_costs(low_costs), half_costs(high_costs));
        let least_low: f32 = low_costs.iter().map(|cost| least(cost)).sum();

        let mut best = usize::from(hint);
        let mut best_cost = low[usize::from(self.low[best])] + high[usize::from(self.high[best])];
        for (eight, high_costs) in high.as_chunks::<8>().0.iter().enumerate() {
            // Most of the time none of the eight can win. To ask that without branches is what makes it cheap.
            let limit = best_cost - least_low;
            if !high_costs.iter().fold(false, |any, &cost| any | (cost < limit)) {
                continue;
            }
            for (run, &high_cost) in self.starts[8 * eight..].windows(2).zip(high_costs) {
                if high_cost + least_low >= best_cost {
                    continue;
                }
                let start = usize::from(run[0]);
                for (i, &half) in self.low[start..usize::from(run[1])].iter().enumerate() {
                    let cost = high_cost + low[usize::from(half)];
                    if cost < best_cost {
                        (best, best_cost) = (start + i, cost);
                    }
                }
            }
        }
        (best as u16, best_cost)
    }
}

/// The smallest of some costs.
pub(super) fn least(costs: &[f32]) -> f32 {
    costs.iter().copied().fold(f32::INFINITY, f32::min)
}

/// The cost of every half point; infinite for numbers that are none.
fn half_costs<const R: usize>(costs: &[[f32; R]]) -> [f32; MAX_HALVES] {
    let mut sums = [0.0; MAX_HALVES];
    let mut len = 1;
    for cost in costs {
        let (known, rest) = sums.split_at_mut(len);
        for (next, level_cost) in rest.chunks_exact_mut(len).zip(&cost[1..]) {
            for (sum, known) in next.iter_mut().zip(&*known) {
                *sum = known + level_cost;
            }
        }
        for sum in known {
            *sum += cost[0];
        }
        len *= R;
    }
    sums[len..].fill(f32::INFINITY);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32 as in zlib.
    fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
        !bytes.fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1)))
        })
    }

    fn check<const E: usize, const R: usize, const N: usize>(
        grid: &Grid<E, R, N>,
        codes: &[u16; N],
        crc: u32,
        last: u16,
    ) {
        assert_eq!(crc32(grid.points.as_flattened().iter().map(|&v| v as u8)), crc);
        assert!(codes.is_sorted_by(|a, b| a < b));
        assert_eq!(codes[N - 1], last);
        for (h, run) in grid.starts.windows(2).enumerate() {
            assert!(
                grid.high[usize::from(run[0])..usize::from(run[1])]
                    .iter()
                    .all(|&high| usize::from(high) == h)
            );
        }
        assert_eq!(usize::from(grid.starts[MAX_HALVES]), N);

        // Any point is the nearest to itself, and an arbitrary cost table has the same minimum point by point.
        let costs: [[f32; R]; E] =
            std::array::from_fn(|j| std::array::from_fn(|l| ((j * 37 + l * 11 + 5) % 29) as f32));
        let cost_of = |point: &[i8; E]| -> f32 {
            let level = |v: &i8| grid.levels.iter().position(|l| l == v).unwrap();
            point.iter().zip(&costs).map(|(v, cost)| cost[level(v)]).sum()
        };
        let (found, cost) = grid.nearest(&costs, 0);
        assert_eq!(cost_of(&grid.points[usize::from(found)]), cost);
        assert_eq!(cost, grid.points.iter().map(cost_of).fold(f32::INFINITY, f32::min));
        for (i, point) in grid.points.iter().enumerate() {
            let costs = std::array::from_fn(|j| {
                std::array::from_fn(|l| (point[j] as f32 - grid.levels[l] as f32).powi(2))
            });
            assert_eq!(grid.nearest(&costs, N as u16 - 1), (i as u16, 0.0));
        }
    }

    #[test]
    fn grids_hold_the_reference_points() {
        check(&G1, &grids::G1, 0xB85E_6CCF, 43690);
        check(&G2_XXS, &grids::G2_XXS, 0x9924_FF02, grids::G2_XXS[255]);
        check(&G2_XS, &grids::G2_XS, 0xFA1E_1BFD, 43690);
        check(&G2_S, &grids::G2_S, 0x25AE_5BF1, 43690);
        check(&G3_XXS, &grids::G3_XXS, 0x07BA_9ED0, 3992);
        check(&G3_S, &grids::G3_S, 0xF576_E4F3, 4032);
        assert_eq!(G2_XXS.points[..2], [[8; 8], [43, 8, 8, 8, 8, 8, 8, 8]]);
        assert_eq!(G2_XXS.points[255], [8, 25, 8, 8, 25, 43, 43, 43]);
        assert_eq!(grids::G2_XXS[..8], [0, 2, 5, 8, 10, 17, 20, 32]);
        assert_eq!(grids::G3_XXS[..6], [0, 2, 4, 9, 11, 15]);
        assert_eq!(grids::G3_S[..6], [0, 1, 2, 5, 7, 8]);
    }
}
