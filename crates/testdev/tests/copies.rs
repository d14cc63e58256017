//! Bytes from one buffer to another, by every route there is.

mod common;

use std::sync::Arc;

use common::{Plain, gpu, hidden, visible};
use oxcart_backend::{
    Buffer, BufferType, Buffers, Device, Error, HostBuffer, HostBufferType, HostMemory, Place, Route,
    copy_place, copy_tensor, place_all,
};
use oxcart_tensor::{DType, Graph};

fn whole(buffer: &Arc<dyn Buffer>) -> Place {
    Place { buffer: Arc::clone(buffer), offset: 0, len: buffer.len() }
}

/// Bytes that are different everywhere one looks.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

#[test]
fn each_pair_of_memories_has_its_route() {
    let (a, b) = (gpu("GPU0"), gpu("GPU1"));
    let plain: Arc<dyn Buffer> = Arc::new(Plain { shows_memory: true, ..Plain::new(visible(64)) });
    for (source, target, route) in [
        (hidden(&a, 64), hidden(&a, 64), Route::Direct),
        (visible(64), visible(64), Route::Direct),
        (visible(64), hidden(&a, 64), Route::HostSource),
        (visible(64), plain, Route::HostSource),
        (hidden(&a, 64), visible(64), Route::HostTarget),
        (hidden(&a, 64), hidden(&b, 64), Route::Staged),
    ] {
        source.write(0, &pattern(64)).unwrap();
        let from = whole(&source).part(8, 40).unwrap();
        let to = whole(&target).part(20, 44).unwrap();
        assert_eq!(copy_place(&from, &to).unwrap(), route);
        let mut expected = vec![0; 64];
        expected[20..60].copy_from_slice(&pattern(64)[8..48]);
        assert_eq!(whole(&target).bytes().unwrap(), expected, "{route:?}");
    }
}

#[test]
fn a_staged_copy_goes_piece_by_piece() {
    let (a, b) = (gpu("GPU0"), gpu("GPU1"));
    for len in [0, 1, 1 << 20, (1 << 20) + 1, (5 << 19) + 3] {
        let (source, target) = (hidden(&a, len + 1), hidden(&b, len + 1));
        source.write(0, &pattern(len + 1)).unwrap();
        let from = Place { len, ..whole(&source) };
        assert_eq!(copy_place(&from, &whole(&target)).unwrap(), Route::Staged);
        let copied = whole(&target).bytes().unwrap();
        assert_eq!(copied[..len], pattern(len + 1)[..len]);
        assert_eq!(copied[len], 0);
    }
}

#[test]
fn overlapping_places_of_one_buffer() {
    const LEN: usize = 3 << 20;
    let routes: [(Arc<dyn Buffer>, Route); 4] = [
        (visible(LEN), Route::Direct),
        (hidden(&gpu("GPU"), LEN), Route::Direct),
        (Arc::new(Plain { shows_memory: true, ..Plain::new(visible(LEN)) }), Route::HostSource),
        (Arc::new(Plain::new(visible(LEN))), Route::Staged),
    ];
    for (buffer, route) in routes {
        for (from, to) in [(0, 100), (100, 0)] {
            let len = LEN - 100;
            buffer.write(0, &pattern(LEN)).unwrap();
            let (source, target) = (whole(&buffer).part(from, len), whole(&buffer).part(to, len));
            assert_eq!(copy_place(&source.unwrap(), &target.unwrap()).unwrap(), route);
            let copied = whole(&buffer).bytes().unwrap();
            assert!(copied[to..to + len] == pattern(LEN)[from..from + len], "{route:?} from {from} to {to}");
        }
        assert_eq!(copy_place(&whole(&buffer), &whole(&buffer)).unwrap(), Route::Direct);
    }
}

#[test]
fn nothing_outside_a_place_is_touched() {
    let (source, target) = (visible(8), visible(8));
    let place = |buffer: &Arc<dyn Buffer>, offset, len| Place { buffer: Arc::clone(buffer), offset, len };
    for (from, to) in [
        (place(&source, 4, 5), place(&target, 0, 8)),
        (place(&source, 0, 4), place(&target, 6, 4)),
        (place(&source, 0, 4), place(&target, 0, 3)),
        (place(&source, usize::MAX, 2), place(&target, 0, 8)),
    ] {
        assert!(matches!(copy_place(&from, &to), Err(Error::OutOfBounds { .. })), "{from:?} {to:?}");
    }
    let place = place(&source, 2, 4);
    assert!(matches!(place.write(&[1; 5]), Err(Error::OutOfBounds { size: 4, .. })));
    assert!(matches!(place.read(&mut [1; 5]), Err(Error::OutOfBounds { size: 4, .. })));
    assert!(matches!(place.part(3, 2), Err(Error::OutOfBounds { size: 4, .. })));
    place.part(3, 1).unwrap().write(&[9]).unwrap();
    assert_eq!(whole(&source).bytes().unwrap(), [0, 0, 0, 0, 0, 9, 0, 0]);
}

#[test]
fn read_only_memory_is_a_source_but_no_target() {
    let host: Arc<dyn BufferType> = HostBufferType::new("mapped");
    let mapped: Arc<dyn Buffer> = HostBuffer::new(host, HostMemory::shared(Arc::new(vec![1_u8, 2, 3, 4])));
    let hidden_by: Arc<dyn Buffer> =
        Arc::new(Plain { shows_memory: true, ..Plain::new(Arc::clone(&mapped)) });
    for target in [visible(4), hidden(&gpu("GPU"), 4)] {
        copy_place(&whole(&mapped), &whole(&target)).unwrap();
        assert_eq!(whole(&target).bytes().unwrap(), [1, 2, 3, 4]);
        for read_only in [&mapped, &hidden_by] {
            let refused = copy_place(&whole(&target), &whole(read_only));
            assert!(matches!(refused, Err(Error::ReadOnly { .. })));
        }
    }
}

#[test]
fn tensors_are_copied_if_they_look_the_same() {
    let (a, b) = (gpu("GPU0"), gpu("GPU1"));
    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [3, 2]).unwrap();
    let y = graph.leaf(DType::F32, [3, 2]).unwrap();
    let z = graph.leaf(DType::F32, [2, 3]).unwrap();
    let (mut first, mut other) = (Buffers::new(), Buffers::new());
    place_all(&mut graph, &[x, z], &a.buffer_type(), &mut first).unwrap();
    let mut second = graph.clone();
    place_all(&mut second, &[y], &b.buffer_type(), &mut other).unwrap();
    let [x, y, z] = [graph.tensor(x), second.tensor(y), graph.tensor(z)].map(Result::unwrap);
    first.set(x, 0, &pattern(24)).unwrap();
    assert_eq!(copy_tensor((x, &first), (y, &other)).unwrap(), Route::Staged);
    assert_eq!(other.bytes(y).unwrap(), pattern(24));
    assert_eq!(copy_tensor((x, &first), (x, &first)).unwrap(), Route::Direct);
    let refused = copy_tensor((x, &first), (z, &first)).unwrap_err();
    assert_eq!(refused.to_string(), "cannot copy f32[3, 2] to f32[2, 3]: the layouts differ");
}
