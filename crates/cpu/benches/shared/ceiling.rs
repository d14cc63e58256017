//! What a processor and its memory can do at most: loops that do nothing but multiply, or read.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use oxcart_cpu::Level;

/// A clock. On a machine that others use too, only the time that this process computed for says something; with more than
/// one thread it counts waiting as well.
pub(crate) fn seconds_of(cpu_time: bool, work: impl FnOnce()) -> f64 {
    #[cfg(unix)]
    if cpu_time {
        let now = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the pointer is to a place for the time.
            assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
            time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
        };
        let start = now();
        work();
        return now() - start;
    }
    let _ = cpu_time;
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The time that some threads need for the same work, all starting together.
pub(crate) fn together(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        barrier.wait();
        let start = Instant::now();
        work(thread);
        (start, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let first = one(0);
        others.into_iter().map(|other| other.join().unwrap()).chain([first]).collect()
    });
    let start = times.iter().map(|(start, _)| *start).min().unwrap();
    let end = times.iter().map(|(_, end)| *end).max().unwrap();
    (end - start).as_secs_f64()
}

/// Memory to read.
pub(crate) struct Sweep(Vec<u64>);

impl Sweep {
    pub(crate) fn new(bytes: usize) -> Sweep {
        Sweep((0..bytes as u64 / 8).collect())
    }

    /// Bytes per second, all threads together, each its part.
    pub(crate) fn speed(&self, threads: usize) -> f64 {
        let part = self.0.len().div_ceil(threads);
        let seconds = together(threads, |thread| {
            let part = &self.0[(thread * part).min(self.0.len())..((thread + 1) * part).min(self.0.len())];
            black_box(sum(part));
        });
        (self.0.len() * 8) as f64 / seconds
    }
}

fn sum(numbers: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for numbers in numbers.chunks_exact(32) {
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}

/// Rounds of a peak loop: about a millisecond.
const ROUNDS: usize = 200_000;

/// Operations per second of a loop that only multiplies and adds, on all threads.
pub(crate) fn operations(level: Level, integers: bool, threads: usize) -> f64 {
    let peak = peak::of(level, integers);
    let seconds = together(threads, |_| (peak.run)(ROUNDS));
    (peak.operations * ROUNDS * threads) as f64 / seconds
}

mod peak {
    use super::*;

    pub(crate) struct Peak {
        pub(crate) run: fn(usize),
        /// Of one round.
        pub(crate) operations: usize,
    }

    pub(crate) fn of(level: Level, integers: bool) -> Peak {
        match (level, integers) {
            // SAFETY: a level exists only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512(_), false) => Peak { run: |n| unsafe { x86::fma512(n) }, operations: 12 * 16 * 2 },
            // SAFETY: a level exists only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512(_), true) => Peak { run: |n| unsafe { x86::dot512(n) }, operations: 12 * 64 * 2 },
            // SAFETY: a level exists only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2(_), false) => Peak { run: |n| unsafe { x86::fma256(n) }, operations: 12 * 8 * 2 },
            // SAFETY: a level exists only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2(_), true) => Peak { run: |n| unsafe { x86::dot256(n) }, operations: 12 * 32 * 2 },
            (_, false) => Peak { run: floats, operations: 32 * 2 },
            (_, true) => Peak { run: integers_16, operations: 32 * 2 },
        }
    }

    fn floats(rounds: usize) {
        let mut sums = [0f32; 32];
        let (x, y) = (black_box(1.0f32), black_box(0.5f32));
        for _ in 0..rounds {
            sums.iter_mut().for_each(|sum| *sum = *sum * y + x);
        }
        black_box(sums);
    }

    fn integers_16(rounds: usize) {
        let mut sums = [0i32; 32];
        let x = black_box([3i16; 32]);
        for round in 0..rounds {
            let y = i32::from(round as i16);
            sums.iter_mut().zip(&x).for_each(|(sum, x)| *sum = sum.wrapping_add(i32::from(*x) * y));
        }
        black_box(sums);
    }

    #[cfg(target_arch = "x86_64")]
    mod x86 {
        use std::arch::x86_64::*;
        use std::hint::black_box;

        #[target_feature(enable = "avx512f")]
        pub(super) fn fma512(rounds: usize) {
            let (x, y) = (_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(0.5)));
            let mut sums = [_mm512_set1_ps(black_box(0.0)); 12];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, y, x);
                }
            }
            black_box(sums.map(|sum| _mm512_reduce_add_ps(sum)));
        }

        #[target_feature(enable = "avx512f,avx512vnni")]
        pub(super) fn dot512(rounds: usize) {
            let (x, y) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
            let mut sums = [_mm512_set1_epi32(black_box(0)); 12];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, x, y);
                }
            }
            black_box(sums.map(|sum| _mm512_reduce_add_epi32(sum)));
        }

        #[target_feature(enable = "avx2,fma")]
        pub(super) fn fma256(rounds: usize) {
            let (x, y) = (_mm256_set1_ps(black_box(1.0)), _mm256_set1_ps(black_box(0.5)));
            let mut sums = [_mm256_set1_ps(black_box(0.0)); 12];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, y, x);
                }
            }
            black_box(sums.map(|sum| _mm256_cvtss_f32(sum)));
        }

        #[target_feature(enable = "avx2")]
        pub(super) fn dot256(rounds: usize) {
            let (x, ones) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi16(black_box(1)));
            let mut sums = [_mm256_set1_epi32(black_box(0)); 12];
            for _ in 0..rounds {
                for sum in &mut sums {
                    // Depends on the sum, or the product would be computed once.
                    let pairs = _mm256_maddubs_epi16(x, *sum);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
            black_box(sums.map(|sum| _mm256_extract_epi32::<0>(sum)));
        }
    }
}
