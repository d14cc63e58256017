//! A worker in memory that inputs are played to, on a device whose memory another uses too.
//!
//! Invariant: one input at a time has it, and finds it as the first one did: whatever clients took is back, and what is not theirs is as
//! it was. [`Rig::play`] verifies it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use oxcart_backend::{Buffer, Device, allocate};
use oxcart_rpc::worker::{Config, Limits, Worker};
use oxcart_testdev::{Config as DeviceConfig, TestDevice};

/// What no client may ever see or change.
const SECRET: [u8; 16] = *b"\x8anot yours \xe1\x02\xf0\x97\xc3";
const SECRET_BYTES: usize = 1 << 12;
const DEVICE_BYTES: usize = 16 << 20;

pub(super) struct Rig {
    pub(super) worker: Worker,
    device: Arc<TestDevice>,
    /// Memory of another on the same device.
    secret: Arc<dyn Buffer>,
    alone: Mutex<()>,
}

impl Rig {
    /// Bytes that clients can have.
    pub(super) const FREE_BYTES: usize = DEVICE_BYTES - SECRET_BYTES;
    /// All bytes there are, as clients are told.
    pub(super) const TOTAL_BYTES: usize = DEVICE_BYTES;
    /// Buffers that a client can have.
    pub(super) const BUFFERS: usize = 16;
    /// What its graphs in slots may count.
    pub(super) const KEPT_BYTES: usize = 1 << 14;

    fn new(device: DeviceConfig) -> Rig {
        let device = TestDevice::new(DeviceConfig { capacity: DEVICE_BYTES, ..device });
        let secret = allocate(&device.buffer_type(), SECRET_BYTES).unwrap();
        secret.write(0, &SECRET.repeat(SECRET_BYTES / SECRET.len())).unwrap();
        let mut config = Config::new([Arc::clone(&device) as _]);
        // What is lent of so small a device by default is nothing at all.
        config.max_memory = Some(DEVICE_BYTES);
        // Small limits are met more often, and keep the slow device from working for long. What an input does is not to depend on how
        // fast the machine is.
        let long = Duration::from_secs(3600);
        config.limits = Limits {
            hello: long,
            message: long,
            // What another worker is to send never comes.
            delivery: Duration::ZERO,
            buffers: Rig::BUFFERS,
            node_work: 1 << 14,
            graph_bytes: 1 << 16,
            client_bytes: 2 * Rig::KEPT_BYTES,
            message_bytes: 1 << 20,
            ..Limits::default()
        };
        Rig { worker: Worker::new(config).unwrap(), device, secret, alone: Mutex::default() }
    }

    /// One whose memory is the machine's.
    pub(super) fn host() -> &'static Rig {
        static RIG: OnceLock<Rig> = OnceLock::new();
        RIG.get_or_init(|| Rig::new(DeviceConfig::default()))
    }

    /// One whose memory is its own, so that all bytes pass through other memory.
    pub(super) fn accelerator() -> &'static Rig {
        static RIG: OnceLock<Rig> = OnceLock::new();
        RIG.get_or_init(|| Rig::new(DeviceConfig::accelerator("X")))
    }

    /// Plays an input, alone, and says how many graphs were computed for it.
    pub(super) fn play(&'static self, input: impl FnOnce(&'static Rig)) -> u64 {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let graphs = || {
            let counters = self.worker.counters();
            counters.graphs + counters.recomputes
        };
        let before = graphs();
        input(self);
        self.assert_as_before();
        graphs() - before
    }

    /// Nothing has panicked, no one is connected, nothing is held, and another's memory is as it was.
    fn assert_as_before(&self) {
        let counters = self.worker.counters();
        assert_eq!((counters.panics, counters.connected), (0, 0), "{counters}");
        assert_eq!(self.device.allocated_bytes(), SECRET_BYTES, "memory was left behind");
        let held = (counters.message_bytes, counters.stored_bytes, self.worker.held_bytes());
        assert_eq!(held, (0, 0, 0), "a budget was left short");
        self.device.take_log();
        let mut now = vec![0; SECRET_BYTES];
        self.secret.read(0, &mut now).unwrap();
        assert!(now.chunks(SECRET.len()).all(|part| part == SECRET), "another's memory was changed");
    }

    /// Nothing of another's memory is among what a client received.
    pub(super) fn assert_not_seen(received: &[u8]) {
        assert!(received.windows(SECRET.len()).all(|part| part != SECRET), "another's memory was seen");
    }
}
