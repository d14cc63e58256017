//! Measurements of the way to a worker.
//!
//! Invariant: a measurement ends. Between two of its parts it looks at the clock, and how long one part may take is limited by the time-outs
//! of the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart::backend::{BufferType, Error, allocate};

/// Round trips that are measured at most.
const TRIPS: usize = 64;

/// How long they may take together.
const TRIPS_TIME: Duration = Duration::from_secs(2);

/// Bytes of the first transfer.
const FIRST_BYTES: usize = 256 << 10;

/// Bytes of the largest one.
const MOST_BYTES: usize = 64 << 20;

/// How long a transfer must take for its rate to mean something.
const LONG_ENOUGH: Duration = Duration::from_millis(100);

/// How long a transfer may take for a longer one to follow, because the other direction is faster.
const LONGEST: Duration = Duration::from_secs(1);

/// How long small questions took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latency {
    pub(super) median: Duration,
    pub(super) worst: Duration,
    pub(super) trips: usize,
}

/// Measures small round trips.
pub(super) fn latency<E>(mut trip: impl FnMut() -> Result<(), E>) -> Result<Latency, E> {
    // The first one may have to wait for what the worker still does for the connection.
    trip()?;
    let (start, mut times) = (Instant::now(), Vec::with_capacity(TRIPS));
    while times.is_empty() || (times.len() < TRIPS && start.elapsed() < TRIPS_TIME) {
        let begun = Instant::now();
        trip()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let worst = times.last().copied().unwrap_or_default();
    Ok(Latency { median: times[times.len() / 2], worst, trips: times.len() })
}

/// How fast bytes went in both directions, in bytes per second, and how many at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bandwidth {
    pub(super) there: f64,
    pub(super) back: f64,
    pub(super) bytes: usize,
}

/// Measures transfers to memory of a device and back, larger ones until they take long enough.
pub(super) fn bandwidth(memory: &Arc<dyn BufferType>) -> Result<Bandwidth, Error> {
    let most = MOST_BYTES.min(memory.max_size());
    let mut bytes = FIRST_BYTES.min(most);
    let mut measured = transfer(memory, bytes)?;
    while bytes < most && measured.shorter() < LONG_ENOUGH && measured.longer() < LONGEST {
        bytes = (bytes * 4).min(most);
        measured = match transfer(memory, bytes) {
            // What a smaller one says has to do.
            Err(Error::OutOfMemory { .. }) => break,
            measured => measured?,
        };
    }
    Ok(measured.rates())
}

/// How long one transfer took.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    bytes: usize,
    there: Duration,
    back: Duration,
}

impl Transfer {
    fn shorter(&self) -> Duration {
        self.there.min(self.back)
    }

    fn longer(&self) -> Duration {
        self.there.max(self.back)
    }

    fn rates(&self) -> Bandwidth {
        let rate = |time: Duration| self.bytes as f64 / time.as_secs_f64().max(1e-9);
        Bandwidth { there: rate(self.there), back: rate(self.back), bytes: self.bytes }
    }
}

fn transfer(memory: &Arc<dyn BufferType>, bytes: usize) -> Result<Transfer, Error> {
    let buffer = allocate(memory, bytes)?;
    let mut data = noise(bytes);
    let begun = Instant::now();
    buffer.write(0, &data)?;
    // The answer to this comes after what was written.
    buffer.read(0, &mut data[..1])?;
    let there = begun.elapsed();
    let begun = Instant::now();
    buffer.read(0, &mut data)?;
    Ok(Transfer { bytes, there, back: begun.elapsed() })
}

/// Bytes that nothing on the way can make fewer.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut data = Vec::with_capacity(bytes);
    while data.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = state.to_le_bytes();
        data.extend_from_slice(&word[..word.len().min(bytes - data.len())]);
    }
    data
}

#[cfg(test)]
mod tests {
    use oxcart::backend::Registry;

    use super::*;

    #[test]
    fn latency_is_of_many_trips() {
        let mut count = 0;
        let measured = latency(|| {
            count += 1;
            Ok::<_, ()>(())
        });
        let measured = measured.unwrap();
        assert_eq!((measured.trips, count), (TRIPS, TRIPS + 1));
        assert!(measured.median <= measured.worst);
        assert_eq!(latency(|| Err(7)), Err(7));
    }

    #[test]
    fn bandwidth_is_measured_with_no_more_than_is_allowed() {
        let devices = oxcart::cpu::CpuRegistry::new().unwrap().devices();
        let measured = bandwidth(&devices[0].buffer_type()).unwrap();
        assert!(measured.bytes <= MOST_BYTES && measured.there > 0.0 && measured.back > 0.0, "{measured:?}");
    }

    #[test]
    fn noise_has_the_length_that_was_asked_for() {
        for bytes in [0, 1, 7, 8, 9, 4096] {
            assert_eq!(noise(bytes).len(), bytes);
        }
        let zeros = noise(4096).iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 64, "{zeros}");
    }
}
