//! Several buffers that act as one.

use std::any::Any;
use std::sync::Arc;

use crate::buffer::{Buffer, BufferType, Usage};
use crate::error::Error;

/// Buffers that are freed, cleared and marked together; what a model gets when its weights exceed the largest
/// buffer a device can allocate. Tensors lie in the parts, not in the whole.
#[derive(Debug)]
pub struct MultiBuffer {
    parts: Vec<Arc<dyn Buffer>>,
}

impl MultiBuffer {
    /// The parts as one; `None` when there are none.
    pub fn new(parts: Vec<Arc<dyn Buffer>>) -> Option<Arc<MultiBuffer>> {
        (!parts.is_empty()).then(|| Arc::new(MultiBuffer { parts }))
    }

    fn not_addressable(&self, what: &str) -> Error {
        Error::Unsupported {
            device: self.buffer_type().name().to_owned(),
            what: format!("{what} a buffer of {} parts; use the part", self.parts.len()),
        }
    }
}

impl Buffer for MultiBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        self.parts[0].buffer_type()
    }

    /// The sum of the parts.
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn usage(&self) -> Usage {
        self.parts[0].usage()
    }

    fn set_usage(&self, usage: Usage) {
        self.parts.iter().for_each(|part| part.set_usage(usage));
    }

    fn write(&self, _offset: usize, _data: &[u8]) -> Result<(), Error> {
        Err(self.not_addressable("writing into"))
    }

    fn read(&self, _offset: usize, _out: &mut [u8]) -> Result<(), Error> {
        Err(self.not_addressable("reading from"))
    }

    fn fill(&self, _offset: usize, _len: usize, _value: u8) -> Result<(), Error> {
        Err(self.not_addressable("filling a range of"))
    }

    fn clear(&self, value: u8) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.clear(value))
    }

    fn reset(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.reset())
    }

    fn parts(&self) -> &[Arc<dyn Buffer>] {
        &self.parts
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::allocate;
    use crate::host::HostBufferType;

    #[test]
    fn parts_act_together() {
        let host: Arc<dyn BufferType> = HostBufferType::new("host");
        let parts = vec![allocate(&host, 4).unwrap(), allocate(&host, 8).unwrap()];
        let whole = MultiBuffer::new(parts.clone()).unwrap();
        assert_eq!((whole.len(), whole.parts().len()), (12, 2));
        whole.set_usage(Usage::Weights);
        whole.clear(5).unwrap();
        for part in &parts {
            assert_eq!(part.usage(), Usage::Weights);
            assert!(part.host().unwrap().read().iter().all(|&byte| byte == 5));
        }
        assert!(matches!(whole.write(0, &[1]), Err(Error::Unsupported { .. })));
        assert!(MultiBuffer::new(Vec::new()).is_none());
    }
}
