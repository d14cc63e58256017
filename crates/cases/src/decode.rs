//! The op of a case, from the name and the words that the newest dialect of the protocol uses for it.

use oxcart_rpc::wire::{Dialect, OpCode, Params};
use oxcart_tensor::Op;

use crate::Case;
use crate::json::text;

impl Case {
    /// What it is called on the wire.
    pub fn op_code(&self) -> OpCode {
        OpCode::named(self.op_name()).unwrap_or_else(|| panic!("no op is called {}", self.op_name()))
    }

    /// The op with its parameters.
    pub fn op(&self) -> Op {
        let params = Params {
            dialect: Dialect::newest(),
            op: self.op_code(),
            words: self.words(),
            result: self.result.layout,
            first: self.sources.first().and_then(|source| Some(source.as_ref()?.layout)),
            names_itself: self.names_itself(),
        };
        let decoded = params.decode().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        if let (Op::Unary(_) | Op::Glu(_), Some(function)) = (decoded, self.index.get("desc")) {
            assert_eq!(decoded.label(), text(function));
        }
        decoded
    }
}
