//! A device for tests: small, slow, readable, and as able or unable as a test wants it to be.
//!
//! It computes a handful of ops in the plainest way there is, so that it can serve as the definition of truth. What it
//! can do is set by [`Config`]: which ops, which memory, host or not, how large a buffer may be, synchronous or with a
//! thread of its own. It refuses to read memory it could not see if it were real, so a scheduler that forgets a copy
//! is found out. [`FrailDevice`] makes any other device one that is lost at a call of the test's choice.
#![forbid(unsafe_code)]

mod buffer;
mod device;
mod frail;
mod interpret;
mod stream;

pub use buffer::{TestBuffer, TestBufferType};
pub use device::{Config, InjectedFault, TestDevice, TestRegistry};
pub use frail::FrailDevice;
pub use interpret::{Interpreted, computes};
pub use stream::TestStream;
