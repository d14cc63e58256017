//! Kernels compiled for this processor, once per change of their sources.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The compiled kernels.
pub(crate) struct Kernels {
    find: unsafe extern "C" fn(*const std::ffi::c_char, *mut i32) -> usize,
    run: unsafe extern "C" fn(*const std::ffi::c_char, *const u32, *const u32, usize, *const u8) -> i32,
    backwards: unsafe extern "C" fn(i32),
    _library: libloading::Library,
}

impl Kernels {
    fn load(path: &Path) -> Kernels {
        // SAFETY: the library is ours, and its initializers only register kernels.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        // SAFETY: these are the functions of `emulate.cpp`, with these parameters.
        unsafe {
            let find = *library.get(b"oxcart_emulate_find\0").unwrap();
            let run = *library.get(b"oxcart_emulate\0").unwrap();
            let backwards = *library.get(b"oxcart_emulate_backwards\0").unwrap();
            Kernels { find, run, backwards, _library: library }
        }
    }

    /// Size of a kernel's parameters, if there is such a kernel.
    pub(crate) fn params(&self, name: &str) -> Option<usize> {
        let name = std::ffi::CString::new(name).unwrap();
        let mut threads = 0;
        // SAFETY: the name ends with a zero, the number lives through the call.
        let size = unsafe { (self.find)(name.as_ptr(), &mut threads) };
        (size > 0).then_some(size)
    }

    /// Turns the order of threads around.
    pub(crate) fn run_backwards(&self, backwards: bool) {
        // SAFETY: it sets a variable.
        unsafe { (self.backwards)(backwards.into()) };
    }

    /// Runs a kernel.
    ///
    /// # Safety
    ///
    /// Nothing else runs at the same time, and the parameters are what the kernel takes.
    pub(crate) unsafe fn run(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &[u8],
    ) -> i32 {
        assert_eq!(self.params(name), Some(params.len()), "{name}: the structures of Rust and C++ differ");
        // Structures want to be aligned.
        let mut aligned = vec![0_u128; params.len().div_ceil(16)];
        zerocopy::IntoBytes::as_mut_bytes(aligned.as_mut_slice())[..params.len()].copy_from_slice(params);
        let text = std::ffi::CString::new(name).unwrap();
        // Tests run at the same time, each with a card of its own; kernels have variables that are all threads'.
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: as the caller says.
        unsafe {
            (self.run)(text.as_ptr(), grid.as_ptr(), block.as_ptr(), shared as usize, aligned.as_ptr().cast())
        }
    }
}

/// The kernels of this crate; `None`, and a word about it, where they cannot be compiled.
pub(crate) fn kernels() -> Option<&'static Kernels> {
    static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| compile().map(|path| Kernels::load(&path)));
    if kernels.is_none() {
        oxcart_fixtures::skip("there is no C++ compiler");
    }
    kernels.as_ref()
}

fn compile() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    Command::new(&compiler).arg("--version").output().ok().filter(|output| output.status.success())?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    let out = std::env::temp_dir().join(format!("oxcart-kernels-{:016x}.so", hasher.finish()));
    if out.exists() {
        return Some(out);
    }
    let work = tempfile::tempdir().unwrap();
    let sources = files.iter().filter(|file| {
        file.extension().is_some_and(|e| e == "cpp" || e == "cu")
            && file.file_stem().is_some_and(|s| s != "gemm")
    });
    let jobs: Vec<_> = sources
        .map(|source| {
            let object = work.path().join(source.file_name().unwrap()).with_extension("o");
            let mut command = Command::new(&compiler);
            command
                .args([
                    "-std=c++17",
                    "-O1",
                    "-fPIC",
                    "-w",
                    "-ffp-contract=off",
                    "-DOXCART_EMULATE",
                    "-x",
                    "c++",
                    "-c",
                ])
                .arg(source)
                .arg("-o")
                .arg(&object);
            (command, object)
        })
        .collect();
    let objects: Vec<_> = jobs.iter().map(|(_, object)| object.clone()).collect();
    let queue = std::sync::Mutex::new(jobs);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let Some((mut command, _)) = queue.lock().unwrap().pop() else { break };
                    let status = command.status().unwrap();
                    assert!(status.success(), "{command:?}");
                }
            });
        }
    });
    let made = work.path().join("kernels.so");
    let status = Command::new(&compiler).arg("-shared").arg("-o").arg(&made).args(&objects).status().unwrap();
    assert!(status.success(), "the kernels do not link");
    // Other test programs may do the same at the same time.
    std::fs::copy(&made, out.with_extension("new")).unwrap();
    std::fs::rename(out.with_extension("new"), &out).unwrap();
    Some(out)
}
