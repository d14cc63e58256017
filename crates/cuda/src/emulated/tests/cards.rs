//! Two cards: bytes go from one to the other without this program in between.

use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Place, Stream, StreamOptions, place_all};
use oxcart_tensor::{DType, Graph};

use super::super::Emulated;
use crate::device::CudaDevice;
use crate::registry::CudaRegistry;

/// A stream of a card, and 64 bytes of its memory.
fn stream_and_place(device: &Arc<CudaDevice>) -> (Box<dyn Stream>, Place) {
    let stream = Arc::clone(device).open(&StreamOptions::default()).unwrap();
    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [16]).unwrap();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[x], &stream.device().buffer_type(), &mut buffers).unwrap();
    let place = buffers.place_of(graph.tensor(x).unwrap()).unwrap();
    (stream, place)
}

#[test]
fn bytes_go_from_one_card_to_another() {
    let driver = Arc::new(Emulated::paper((9, 0), 132, 227 << 10).with_cards(2));
    let cards = CudaRegistry::with_driver(Arc::clone(&driver) as _).unwrap();
    let [first, second] = cards.cuda_devices() else { panic!("two cards are listed") };
    assert_eq!((first.name(), second.name()), ("CUDA0", "CUDA1"));
    let ((here, source), (there, target)) = (stream_and_place(first), stream_and_place(second));
    // More often than a stream keeps marks.
    for round in 0..100_u8 {
        let bytes = [round; 64].to_vec();
        here.set_async(&source, bytes.clone()).unwrap();
        assert!(there.copy_in(&*here, &source, &target).unwrap(), "the cards do it by themselves");
        assert_eq!(there.get_async(&target).unwrap().wait().unwrap(), bytes);
    }
    // And from buffer to buffer, without streams.
    source.write(&[7; 64]).unwrap();
    assert!(target.buffer.copy_from(target.offset, &*source.buffer, source.offset, 64).unwrap());
    assert_eq!(target.bytes().unwrap(), [7; 64]);
    // Each takes only its own memory for its own.
    assert!(!here.copy_in(&*there, &source, &target).unwrap());
    drop((here, there, source, target, cards));
    assert_eq!(driver.held(), [0; 5]);
}
