//! The device.

use std::sync::Arc;

use oxcart_backend::{
    BufferType, Caps, Device, DeviceKind, Error, Memory, Pace, Stream, StreamOptions, same_buffer_type,
};
use oxcart_tensor::TensorRef;

use crate::card::Card;
use crate::kernels;
use crate::memory::{CudaBufferType, PinnedBufferType};
use crate::stream::CudaStream;

/// A card.
#[derive(Debug)]
pub struct CudaDevice {
    card: Arc<Card>,
    description: String,
    buffer_type: Arc<dyn BufferType>,
    host_buffer_type: Arc<dyn BufferType>,
}

impl CudaDevice {
    pub(crate) fn new(card: Card) -> Arc<CudaDevice> {
        let card = Arc::new(card);
        let (major, minor) = card.info.capability;
        let version = card.driver.version();
        let description = format!(
            "{}, capability {major}.{minor}, {} multiprocessors, driver for CUDA {}.{}",
            card.info.name,
            card.info.multiprocessors,
            version / 1000,
            version % 1000 / 10,
        );
        Arc::new(CudaDevice {
            description,
            buffer_type: CudaBufferType::new(&card),
            host_buffer_type: PinnedBufferType::new(&card),
            card,
        })
    }

    pub(crate) fn card(&self) -> &Arc<Card> {
        &self.card
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.card.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn hardware_id(&self) -> Option<&str> {
        Some(&self.card.info.bus_id)
    }

    fn kind(&self) -> DeviceKind {
        if self.card.info.integrated { DeviceKind::IntegratedGpu } else { DeviceKind::Gpu }
    }

    fn memory(&self) -> Result<Memory, Error> {
        let (free, total) = self.card.with(|driver, card| driver.memory(card))?;
        Ok(Memory { free, total })
    }

    fn caps(&self) -> Caps {
        Caps { asynchronous: true, buffer_from_host: false }
    }

    fn open(self: Arc<Self>, options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(CudaStream::new(self, options)?))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.buffer_type)
    }

    fn host_buffer_type(&self) -> Option<Arc<dyn BufferType>> {
        Some(Arc::clone(&self.host_buffer_type))
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        !node.computes() || kernels::supports(node, &self.card.info)
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        same_buffer_type(buffer_type, &self.buffer_type)
    }

    fn pace(&self) -> Pace {
        Pace { multiplications: 1 << 42, elements: 1 << 34 }
    }

    /// Products of many columns are worth bringing the weights over.
    fn wants_offload(&self, node: TensorRef<'_>) -> bool {
        /// Columns from which on it pays.
        const COLUMNS: usize = 32;
        use oxcart_tensor::Op;
        let columns = match node.op() {
            Op::MulMat(_) => node.ne()[1],
            Op::MulMatId(_) => node.ne()[2],
            _ => 0,
        };
        columns >= COLUMNS
    }
}
