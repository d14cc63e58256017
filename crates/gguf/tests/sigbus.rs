//! The SIGBUS handler and its neighbours. A process of its own, because handlers belong to processes.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxcart_gguf::{Builder, Gguf, Mapping};
use oxcart_tensor::{DType, Layout};

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn foreign(_: libc::c_int) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

/// A mapped model whose file has been cut.
fn cut_model() -> Mapping {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut builder = Builder::new();
    builder.tensor("w", Layout::packed(DType::I8, [1 << 20]).unwrap(), vec![1; 1 << 20]);
    builder.write(File::create(&path).unwrap()).unwrap();
    let map = Gguf::open(&path).unwrap().map().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    map
}

fn install_foreign_handler() {
    let handler: extern "C" fn(libc::c_int) = foreign;
    // SAFETY: the handler does nothing but add to an atomic.
    unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
}

#[test]
fn others_keep_their_handler() {
    install_foreign_handler();
    let map = cut_model();
    assert_eq!(map.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>(), 0);
    assert!(map.check().is_err());
    assert_eq!(SEEN.load(Ordering::SeqCst), 0, "our own fault is ours alone");
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGBUS) };
    assert_eq!(SEEN.load(Ordering::SeqCst), 1, "a signal that is not ours is passed on");
}

/// Without a handler before ours, a fault outside our mappings ends the process as it always did.
#[test]
fn foreign_faults_still_end_the_process() {
    const CHILD: &str = "OXCART_TEST_SIGBUS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let map = cut_model();
        assert_eq!(map.bytes()[0], 0);
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[1; 8192]).unwrap();
        // SAFETY: the test is that reading from it faults.
        let theirs = unsafe { memmap2::Mmap::map(&file).unwrap() };
        file.set_len(0).unwrap();
        std::hint::black_box(theirs[4096]);
        unreachable!("the read above must not return");
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "foreign_faults_still_end_the_process"]).env(CHILD, "1");
    let status = child.output().unwrap().status;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
