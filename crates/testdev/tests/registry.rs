//! Which devices there are, and what they say of themselves.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::any::{Any, TypeId};
use std::sync::Arc;

use oxcart_backend::{
    Device, DeviceKind, Error, HostMemory, Registries, Registry, StreamOptions, allocate, global,
    same_buffer_type,
};
use oxcart_testdev::{Config, TestDevice, TestRegistry};

fn two_families() -> Registries {
    let registries = Registries::new();
    let integrated = Config { kind: DeviceKind::IntegratedGpu, ..Config::accelerator("iGPU") };
    registries.register(TestRegistry::new("Host", vec![Config::default()])).unwrap();
    registries.register(TestRegistry::new("Fast", vec![integrated, Config::accelerator("GPU0")])).unwrap();
    registries
}

#[test]
fn families_and_devices_are_found_whatever_the_case() {
    let registries = two_families();
    let names: Vec<_> = registries.devices().iter().map(|device| device.name().to_owned()).collect();
    assert_eq!(names, ["CPU", "iGPU", "GPU0"]);
    assert_eq!(registries.by_name("fast").unwrap().name(), "Fast");
    assert_eq!(registries.device_by_name("gpu0").unwrap().name(), "GPU0");
    assert!(registries.by_name("none").is_none());
    assert!(registries.device_by_name("none").is_none());
    assert!(registries.device_by_kind(DeviceKind::Accelerator).is_none());
}

#[test]
fn a_name_is_taken_once() {
    let registries = two_families();
    for name in ["Host", "HOST"] {
        let refused = registries.register(TestRegistry::new(name, Vec::new())).unwrap_err();
        assert!(matches!(refused, Error::NameTaken { name: taken } if taken == name));
    }
    assert_eq!(registries.all().len(), 2);
}

#[test]
fn unregistering_leaves_devices_to_those_who_have_them() {
    let registries = two_families();
    let device = registries.device_by_name("GPU0").unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    assert!(registries.unregister("fast"));
    assert!(!registries.unregister("fast"));
    assert!(registries.family_of(&device).is_none());
    assert_eq!(stream.allocate(8).unwrap().len(), 8);
    registries.register(TestRegistry::new("fast", Vec::new())).unwrap();
}

#[test]
fn the_best_device_is_a_gpu_then_an_integrated_one_then_the_cpu() {
    let registries = two_families();
    assert_eq!(registries.best_device().unwrap().name(), "GPU0");
    let registries = Registries::new();
    assert!(registries.best_device().is_none());
    registries.register(TestRegistry::new("Host", vec![Config::default()])).unwrap();
    assert_eq!(registries.best_device().unwrap().name(), "CPU");
    let integrated = Config { kind: DeviceKind::IntegratedGpu, ..Config::accelerator("iGPU") };
    registries.register(TestRegistry::new("Fast", vec![integrated])).unwrap();
    assert_eq!(registries.best_device().unwrap().name(), "iGPU");
}

#[test]
fn a_device_knows_no_family_but_the_registry_does() {
    let registries = two_families();
    let device = registries.device_by_name("iGPU").unwrap();
    assert_eq!(registries.family_of(&device).unwrap().name(), "Fast");
    let stranger: Arc<dyn Device> = TestDevice::new(Config::default());
    assert!(registries.family_of(&stranger).is_none());
}

/// Something only one family has.
#[derive(Debug, PartialEq)]
struct Tuning {
    threads: usize,
}

#[derive(Debug)]
struct Tunable;

impl Registry for Tunable {
    fn name(&self) -> &str {
        "Tunable"
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        Vec::new()
    }

    fn extension(&self, wanted: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        (wanted == TypeId::of::<Tuning>()).then(|| Arc::new(Tuning { threads: 4 }) as _)
    }
}

#[test]
fn extensions_are_found_by_type() {
    let registries = two_families();
    registries.register(Arc::new(Tunable)).unwrap();
    assert_eq!(*registries.extension::<Tuning>("tunable").unwrap(), Tuning { threads: 4 });
    assert!(registries.extension::<String>("tunable").is_none());
    assert!(registries.extension::<Tuning>("Host").is_none());
    assert!(registries.extension::<Tuning>("none").is_none());
}

#[test]
fn the_global_registry_is_one() {
    let name = "only in this test";
    global().register(TestRegistry::new(name, vec![Config::default()])).unwrap();
    std::thread::spawn(move || assert!(global().by_name(name).is_some())).join().unwrap();
    assert!(global().unregister(name));
}

#[test]
fn memory_is_counted() {
    let device = TestDevice::new(Config { capacity: 1000, ..Config::accelerator("GPU") });
    let stream = device.stream();
    assert_eq!(device.memory().unwrap().free, 1000);
    let buffer = stream.allocate(600).unwrap();
    assert_eq!((device.memory().unwrap().free, device.memory().unwrap().total), (400, 1000));
    assert!(matches!(stream.allocate(500), Err(Error::OutOfMemory { size: 500, .. })));
    drop(buffer);
    assert_eq!(device.memory().unwrap().free, 1000);
    stream.allocate(1000).unwrap();
}

#[test]
fn a_device_does_what_its_caps_say() {
    for asynchronous in [false, true] {
        for host in [false, true] {
            let device = TestDevice::new(Config { asynchronous, host, ..Config::default() });
            let caps = device.caps();
            assert_eq!(caps.asynchronous, asynchronous);
            assert!(device.host_buffer_type().is_some_and(|kind| kind.is_host()));
            let lent = device.buffer_from_host(HostMemory::zeroed(64).unwrap());
            assert_eq!(lent.is_ok(), caps.buffer_from_host);
            assert_eq!(device.buffer_type().is_host(), host);
        }
    }
}

#[test]
fn lent_memory_is_used_where_it_is() {
    let device = TestDevice::new(Config::default());
    let memory = HostMemory::zeroed(256).unwrap();
    let address = memory.read().as_ptr();
    let buffer = device.buffer_from_host(memory).unwrap();
    assert_eq!(buffer.host().unwrap().read().as_ptr(), address);
    assert!(device.supports_buffer_type(buffer.buffer_type()));
    assert_eq!(device.allocated_bytes(), 0);

    let shifted = TestDevice::new(Config { alignment: 1 << 20, ..Config::default() });
    let refused = shifted.buffer_from_host(HostMemory::zeroed(64).unwrap());
    assert!(matches!(refused, Err(Error::Misaligned { alignment: 0x10_0000, .. })));
}

#[test]
fn kinds_of_memory_are_told_apart() {
    let (a, b) = (common::gpu("GPU0"), common::gpu("GPU0"));
    assert!(same_buffer_type(&a.buffer_type(), &a.buffer_type()));
    assert!(!same_buffer_type(&a.buffer_type(), &b.buffer_type()));
    let buffer = allocate(&a.buffer_type(), 4).unwrap();
    assert!(same_buffer_type(buffer.buffer_type(), &a.buffer_type()));
    assert!(a.supports_buffer_type(buffer.buffer_type()));
    assert!(!b.supports_buffer_type(buffer.buffer_type()));
}

#[test]
fn streams_of_one_implementation_share_a_guid() {
    let (cpu, gpu) = (TestDevice::new(Config::default()).stream(), common::gpu("GPU0").stream());
    assert_eq!(cpu.guid(), gpu.guid());
    assert_eq!(cpu.guid().to_string().len(), 36);
    assert_eq!((cpu.name(), gpu.name()), ("CPU", "GPU0"));
    assert_eq!(gpu.device().kind(), DeviceKind::Gpu);
}
