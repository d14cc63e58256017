//! What must hold for any bytes whatsoever. Shared by the property tests, the replay of the fuzz corpus and, by path,
//! the fuzz target itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use oxcart_gguf::{Builder, Error, Header, Value};

/// Parses `bytes`; what parses is walked, written again, read again and compared. Panics when something does not
/// hold: that is the finding.
pub(crate) fn check(bytes: &[u8]) {
    let (parsed, peak) = peak_during(|| Header::parse(bytes));
    assert!(peak <= bytes.len() + (1 << 20), "{peak} bytes of memory for a file of {}", bytes.len());
    match parsed {
        Err(error) => check_message(&error),
        Ok(header) => check_round_trip(bytes, &header),
    }
}

/// One line, nothing invisible.
fn check_message(error: &Error) {
    let message = error.to_string();
    assert!(message.len() < 1000 && !message.contains(char::is_control), "{message:?}");
}

fn check_round_trip(bytes: &[u8], header: &Header<'_>) {
    let mut builder = Builder::like(header);
    builder.pad_end(false);
    for info in header.tensors().iter() {
        builder.tensor_like(&info, info.bytes_in(bytes).expect("checked by the parser"));
    }
    let mut written = Vec::new();
    builder.write(&mut written).expect("the writer accepts what the reader accepts");
    let again = Header::parse(&written).expect("the reader accepts what the writer writes");
    check_same(bytes, header, &written, &again);
}

/// Both files have the same format, records and tensors.
pub(crate) fn check_same(a_bytes: &[u8], a: &Header<'_>, b_bytes: &[u8], b: &Header<'_>) {
    assert_eq!(a.format(), b.format());
    assert_eq!(a.alignment(), b.alignment());
    assert_eq!(a.metadata().len(), b.metadata().len());
    assert_eq!(a.metadata().iter().count(), a.metadata().len());
    for (x, y) in a.metadata().iter().zip(b.metadata().iter()) {
        assert_eq!(x.key(), y.key());
        assert!(same(x.value(), y.value()), "{}: {:?} {:?}", x.key(), x.value(), y.value());
        assert!(b.metadata().get(x.key()).is_some_and(|found| same(found.value(), x.value())));
    }
    assert_eq!(a.tensors().len(), b.tensors().len());
    assert_eq!(a.tensors().iter().count(), a.tensors().len());
    for (x, y) in a.tensors().iter().zip(b.tensors().iter()) {
        assert_eq!((x.name(), x.layout(), x.dims()), (y.name(), y.layout(), y.dims()));
        assert_eq!(x.bytes_in(a_bytes).expect("in file"), y.bytes_in(b_bytes).expect("in file"));
        assert_eq!(b.tensor(x.name()), Some(y));
    }
}

/// Equal to the bit, NaN included. Arrays must yield as many elements as they say.
fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(a), Value::Array(b)) => {
            a.element_type() == b.element_type()
                && a.len() == b.len()
                && a.values().zip(b.values()).filter(|&(a, b)| same(a, b)).count() == a.len()
        }
        (a, b) => a == b,
    }
}

/// Counts what this thread has allocated.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let live = LIVE.get() + change;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: everything is done by the system's allocator; counting touches only thread-locals without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most memory that lived at a time during `work`, beyond what lived before.
fn peak_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
