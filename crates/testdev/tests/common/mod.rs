//! What several test files need.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(dead_code, reason = "each test file uses some of it")]

use std::any::Any;
use std::sync::Arc;

use oxcart_backend::{
    Buffer, BufferType, Buffers, Device, Error, HostBufferType, HostMemory, Usage, allocate, place_all,
};
use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, Graph, TensorId};
use oxcart_testdev::{Config, TestDevice};

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// A device with memory that no other device can see.
pub(crate) fn gpu(name: &str) -> Arc<TestDevice> {
    TestDevice::new(Config::accelerator(name))
}

/// Memory of such a device.
pub(crate) fn hidden(device: &Arc<TestDevice>, size: usize) -> Arc<dyn Buffer> {
    allocate(&device.buffer_type(), size).unwrap()
}

/// Memory of the host.
pub(crate) fn visible(size: usize) -> Arc<dyn Buffer> {
    let buffer_type: Arc<dyn BufferType> = HostBufferType::new("host");
    allocate(&buffer_type, size).unwrap()
}

/// `out = relu((a + b) * a)[1..3]`, with a view in it, and its tensors placed on a device.
pub(crate) struct Example {
    pub(crate) graph: Graph,
    pub(crate) buffers: Buffers,
    pub(crate) a: TensorId,
    pub(crate) b: TensorId,
    pub(crate) sum: TensorId,
    pub(crate) product: TensorId,
    pub(crate) view: TensorId,
    pub(crate) out: TensorId,
}

impl Example {
    pub(crate) fn new(device: &Arc<TestDevice>) -> Example {
        let mut graph = Graph::new();
        let a = graph.leaf(DType::F32, [4]).unwrap();
        let b = graph.leaf(DType::F32, [4]).unwrap();
        let sum = graph.add(a, b).unwrap();
        let product = graph.mul(sum, a).unwrap();
        let view = graph.view(product, [2], &[], 4).unwrap();
        let out = graph.unary(view, Unary::Relu).unwrap();
        graph.expand(out).unwrap();
        let mut buffers = Buffers::new();
        let all: Vec<_> = graph.ids().collect();
        place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
        let example = Example { graph, buffers, a, b, sum, product, view, out };
        example.set(a, &[1.0, -2.0, 3.0, 4.0]);
        example.set(b, &[10.0, 20.0, 30.0, 40.0]);
        example
    }

    pub(crate) fn set(&self, id: TensorId, values: &[f32]) {
        self.buffers.set(self.graph.tensor(id).unwrap(), 0, &floats(values)).unwrap();
    }

    pub(crate) fn values(&self, id: TensorId) -> Vec<f32> {
        numbers(&self.buffers.bytes(self.graph.tensor(id).unwrap()).unwrap())
    }
}

/// What `Example::out` should be.
pub(crate) const EXPECTED: [f32; 2] = [0.0, 99.0];

/// A buffer that knows no direct way to copy, and does strange things on request.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) inner: Arc<dyn Buffer>,
    pub(crate) shows_memory: bool,
    pub(crate) panics: bool,
    pub(crate) refuses_tensors: bool,
}

impl Plain {
    pub(crate) fn new(inner: Arc<dyn Buffer>) -> Plain {
        Plain { inner, shows_memory: false, panics: false, refuses_tensors: false }
    }
}

impl Buffer for Plain {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        self.inner.buffer_type()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn set_usage(&self, usage: Usage) {
        self.inner.set_usage(usage);
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        assert!(!self.panics, "as asked");
        self.inner.write(offset, data)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.inner.read(offset, out)
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        self.inner.fill(offset, len, value)
    }

    fn init_tensor(&self, tensor: oxcart_tensor::TensorRef<'_>) -> Result<(), Error> {
        if self.refuses_tensors {
            return Err(Error::Unsupported { device: "plain".into(), what: tensor.label() });
        }
        Ok(())
    }

    fn host(&self) -> Option<&HostMemory> {
        self.inner.host().filter(|_| self.shows_memory)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
