//! What must hold for any bytes whatsoever. Shared by the property tests, the replay of the fuzz corpus and, by path,
//! the fuzz target itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use oxcart_gguf::{Builder, Error, Gguf, Header, Value, limits};

/// Parses `bytes`, in memory and as a file; what parses is walked, written again, read again and compared. Panics when
/// something does not hold: that is the finding.
pub(crate) fn check(bytes: &[u8]) {
    let (parsed, peak) = peak_during(|| Header::parse(bytes));
    assert!(peak <= bytes.len() + (1 << 20), "{peak} bytes of memory for a file of {}", bytes.len());
    let opened = FILE.with(|file| {
        file.write(bytes).expect("temporary files can be written");
        check_open(&file.path)
    });
    match (parsed, opened) {
        (Ok(header), Ok(file)) => {
            check_same_header(&header, file.header());
            check_round_trip(bytes, &header);
        }
        (Err(error), Err(from_file)) => {
            check_message(&error);
            assert_eq!(error.to_string(), from_file.what().to_string());
        }
        (parsed, opened) => panic!("in memory {parsed:?}, as a file {opened:?}"),
    }
}

/// Opens a file. Memory is bounded by its header; for a file that is refused, by the file.
pub(crate) fn check_open(path: &Path) -> Result<Gguf, Error> {
    let before = LIVE.get();
    let (opened, peak) = peak_during(|| Gguf::open(path));
    let header_len = match &opened {
        Ok(file) => file.header().header_len(),
        Err(_) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
    };
    let most = limits::max_open_bytes(header_len);
    assert!(peak as u64 <= most, "{peak} bytes of memory for {header_len} of header, at most {most}");
    if let Ok(file) = &opened {
        // What stays: one copy of the header, four bytes for each record and each tensor, and the path.
        let index = 4 * (file.metadata().len() + file.tensors().len()) as u64;
        let stays = u64::try_from(LIVE.get() - before).unwrap_or(0);
        assert!(stays <= header_len + index + 4096, "{stays} bytes stay of {header_len} bytes of header");
    }
    opened
}

/// A file of this thread that is written again and again. It is never empty in between: file systems take the cutting
/// of a file to nothing for the moment to save it.
struct RewrittenFile {
    path: PathBuf,
    file: File,
}

impl RewrittenFile {
    fn new() -> io::Result<RewrittenFile> {
        let name = format!("oxcart-{}-{:?}.gguf", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        Ok(RewrittenFile { file: File::create(&path)?, path })
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.rewind()?;
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)
    }
}

impl Drop for RewrittenFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

thread_local! {
    static FILE: RewrittenFile = RewrittenFile::new().expect("temporary files can be made");
}

fn check_same_header(a: &Header<'_>, b: &Header<'_>) {
    assert_eq!((a.format(), a.header_len(), a.file_len()), (b.format(), b.header_len(), b.file_len()));
    assert!(a.metadata().iter().map(|entry| entry.key()).eq(b.metadata().iter().map(|entry| entry.key())));
    assert!(a.tensors().iter().eq(b.tensors().iter()));
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
pub(crate) fn peak_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
