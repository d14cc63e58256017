//! Any bytes as a client's script, played to a worker in memory.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use oxcart_backend::{Buffer, Device, allocate};
use oxcart_rpc::wire::Dialect;
use oxcart_rpc::worker::{Config, DialectChoice, Limits, Snapshot, Worker};
use oxcart_testdev::{Config as DeviceConfig, TestDevice};

use super::script::{End, Script};

/// What no client may ever see or change.
const SECRET: [u8; 16] = *b"\x8anot yours \xe1\x02\xf0\x97\xc3";
const SECRET_BYTES: usize = 1 << 12;

struct Rig {
    worker: Worker,
    device: Arc<TestDevice>,
    /// Memory of another client on the same device.
    secret: Arc<dyn Buffer>,
}

fn rig() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| {
        let device = TestDevice::new(DeviceConfig { capacity: 16 << 20, ..DeviceConfig::default() });
        let secret = allocate(&device.buffer_type(), SECRET_BYTES).unwrap();
        secret.write(0, &SECRET.repeat(SECRET_BYTES / SECRET.len())).unwrap();
        let mut config = Config::new([Arc::clone(&device) as _]);
        // Small limits are met more often, and keep the slow device from working for long.
        config.limits = Limits {
            buffers: 16,
            node_work: 1 << 14,
            graph_bytes: 1 << 16,
            client_bytes: 1 << 14,
            ..Limits::default()
        };
        Rig { worker: Worker::new(config).unwrap(), device, secret }
    })
}

/// Nothing panics, answers have the right length, no other client's bytes are seen or changed, and nothing stays.
pub fn check(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let dialect = Dialect::all()[usize::from(choice) % Dialect::all().len()];
    // Tests of one program share the worker, whose counters are looked at.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    let script = RefCell::new(Script::new(dialect, rest));
    rig.worker.serve_client(End(&script), End(&script), DialectChoice::Fixed(dialect));
    let counters = rig.worker.counters();
    assert_eq!((counters.panics, counters.connected), (0, 0), "{counters}");
    assert_eq!(rig.device.allocated_bytes(), SECRET_BYTES, "something was left behind");
    rig.device.take_log();
    let mut now = vec![0; SECRET_BYTES];
    rig.secret.read(0, &mut now).unwrap();
    assert!(now.chunks(SECRET.len()).all(|part| part == SECRET), "another's memory was changed");
    let received = script.into_inner().received;
    assert!(received.windows(SECRET.len()).all(|part| part != SECRET), "another's memory was seen");
}

/// What the worker has done for scripts so far.
pub fn counters() -> Snapshot {
    rig().worker.counters()
}
