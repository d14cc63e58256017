//! A card that a kernel has ruined, lent by a worker beside the CPU: the real card of this machine, with an error that stays.
//!
//! The same with the driver's errors made up is in `emulated`, and with a device that breaks down in the tests of `rpc`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may print figures, and may panic")]

use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Error, Registry, StreamOptions, Work, place_all};
use oxcart_cpu::CpuRegistry;
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::worker::{Config, DialectChoice, Worker};
use oxcart_tensor::{DType, Graph};

use crate::device::CudaDevice;
use crate::driver::Shape;
use crate::images::Family;
use crate::registry::CudaRegistry;

/// A number squared on a device.
fn square(device: &Arc<dyn Device>) -> Result<f32, Error> {
    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [1]).unwrap();
    let y = graph.sqr(x).unwrap();
    graph.expand(y).unwrap();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[x, y], &device.buffer_type(), &mut buffers)?;
    buffers.set(graph.tensor(x).unwrap(), 0, &3_f32.to_le_bytes())?;
    let stream = Arc::clone(device).open(&StreamOptions::default())?;
    stream.compute_and_wait(Work { nodes: graph.range(0..1).unwrap(), buffers: &buffers })?;
    let bytes = buffers.bytes(graph.tensor(y).unwrap())?;
    Ok(f32::from_le_bytes(bytes.try_into().unwrap()))
}

/// Has a kernel write where there is no memory.
fn ruin(device: &CudaDevice) {
    let card = device.card();
    // `MoveParams` of `arrange.cu`: one packed piece of four bytes, from and to the address 16.
    let mut params = vec![0_u8; 176];
    for (at, value) in [(0, 16_u64), (80, 16), (160, 1), (168, 4 | 1 << 32)] {
        params[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let function = card.function(Family::Arrange, "move", 0).unwrap();
    let shape = Shape { grid: [1; 3], block: [256, 1, 1], shared: 0, early: false };
    let queue = card.driver.open_queue(card.number).unwrap();
    // SAFETY: it is not, for the card; what is wrong stays there, which is what is tested.
    unsafe { card.driver.launch(card.number, queue, function, shape, &params) }.unwrap();
    let failed = card.driver.drain(card.number, queue).unwrap_err();
    println!("the driver says: {failed}");
}

#[test]
#[ignore = "ruins the card for this process; tools/cuda/device.sh ruined runs it alone"]
fn a_ruined_card_is_lost_and_the_worker_that_lends_it_goes_on() {
    let Some(card) = CudaRegistry::new().ok().and_then(|found| found.cuda_devices().first().cloned()) else {
        return oxcart_fixtures::skip("there is no card");
    };
    let cpu = CpuRegistry::new().unwrap().devices().remove(0);
    let mut worker = Worker::new(Config::new([Arc::clone(&card) as _, Arc::clone(&cpu)])).unwrap();
    let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap().to_string();
    let connect = || RemoteRegistry::connect(&address, &Options::default()).unwrap().devices();
    let (user, bystander) = (connect(), connect());
    assert_eq!(square(&user[0]).unwrap(), 9.0);
    assert_eq!(square(&bystander[1]).unwrap(), 9.0);
    ruin(&card);
    let error = square(&user[0]).unwrap_err();
    println!("the card's user is told: {error}");
    let local = square(&(Arc::clone(&card) as _)).unwrap_err();
    assert!(matches!(local, Error::DeviceLost { .. }), "{local}");
    // Who did not use the card, and who comes later, computes on what is left.
    assert_eq!(square(&bystander[1]).unwrap(), 9.0);
    let late = connect();
    assert_eq!(square(&late[1]).unwrap(), 9.0);
    assert!(square(&late[0]).is_err());
    assert_eq!(worker.counters().degraded, 1);
    println!("1 worker went on without its card");
}
