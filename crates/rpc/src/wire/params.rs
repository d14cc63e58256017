//! The sixteen words in which an operation's parameters travel: to a typed [`Op`] (`decode`) and back (`encode`), by the same numbers.
//!
//! What ggml keeps only in the shape of a result (how often to repeat, how many rows) is taken from there. A word that has
//! no meaning for its operation is refused, so that a peer with another numbering shows at once.

mod decode;
mod encode;

use oxcart_tensor::DType;
use oxcart_tensor::ops::*;

pub use self::decode::Params;
pub use self::encode::encode_params;
use super::dialect::Dialect;
use super::op_code::OpCode;

/// Why words do not make an operation, or an operation no words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// A word outside what its operation knows.
    #[error("{}: parameter {word} is {value}", op.name())]
    Word {
        /// The operation.
        op: OpCode,
        /// Which word.
        word: usize,
        /// What it holds.
        value: i32,
    },
    /// An operation that carries addresses of its sender.
    #[error("{} holds addresses of the sender's functions", op.name())]
    Callback {
        /// The operation.
        op: OpCode,
    },
    /// An operation, or a kind of it, that a dialect has no number for.
    #[error("{name} does not exist in dialect {dialect}")]
    Unknown {
        /// Its name.
        name: &'static str,
        /// The dialect.
        dialect: &'static str,
    },
    /// A number that does not fit its word.
    #[error("{name}: a parameter does not fit into 32 bits")]
    TooLarge {
        /// The operation.
        name: &'static str,
    },
}

const PRECISIONS: [(i32, Precision); 6] = [
    (0, Precision::Any),
    (10, Precision::F32),
    (15, Precision::Bf16),
    (20, Precision::F16),
    (30, Precision::Q8),
    (40, Precision::Q4),
];
const HINTS: [(i32, Hint); 2] = [(0, Hint::None), (1, Hint::Hadamard)];
const POOLS: [(i32, PoolKind); 2] = [(0, PoolKind::Max), (1, PoolKind::Avg)];
const ORDERS: [(i32, SortOrder); 2] = [(0, SortOrder::Ascending), (1, SortOrder::Descending)];
const TRIANGLES: [(i32, Triangle); 4] = [
    (0, Triangle::UpperWithDiagonal),
    (1, Triangle::Upper),
    (2, Triangle::LowerWithDiagonal),
    (3, Triangle::Lower),
];
const ROPE_MODES: [(i32, RopeMode); 5] = [
    (0, RopeMode::Normal),
    (2, RopeMode::Neox),
    (8, RopeMode::Mrope),
    (24, RopeMode::Vision),
    (40, RopeMode::Imrope),
];
#[rustfmt::skip]
const PLAIN_UNARY: [Unary; 21] = {
    use Unary::*;
    [
        Abs, Sgn, Neg, Step, Tanh, Elu, Relu, Sigmoid, Gelu, GeluQuick, Silu, Hardswish, Hardsigmoid, Exp, Expm1,
        Softplus, GeluErf, Floor, Ceil, Round, Trunc,
    ]
};
const PLAIN_GLU: [GluKind; 5] =
    [GluKind::Reglu, GluKind::Geglu, GluKind::Swiglu, GluKind::GegluErf, GluKind::GegluQuick];

/// Types that a dialect has.
impl Dialect {
    /// The type with this number, if the dialect has it.
    pub fn dtype(&self, number: u32) -> Option<DType> {
        oxcart_tensor::dtype_from_id(number).filter(|_| number < self.type_count)
    }

    /// The number of a type, if the dialect has it.
    pub fn dtype_number(&self, dtype: DType) -> Option<u32> {
        Some(oxcart_tensor::dtype_id(dtype)).filter(|&number| number < self.type_count)
    }
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::{Layout, Op};

    use super::*;
    use crate::wire::limits::MAX_ITERATIONS;

    #[test]
    fn every_op_has_a_code_and_every_code_an_op() {
        let names: Vec<_> = Op::ALL.iter().map(|info| info.name).collect();
        for name in &names {
            assert!(OpCode::named(name).is_some() || *name == Cast::INFO.name, "{name}");
        }
        for code in OpCode::GGML.iter().chain(OpCode::OWN) {
            let callback = code.name().contains("CUSTOM");
            assert!(callback || code == &OpCode::None || names.contains(&code.name()), "{}", code.name());
        }
    }

    fn params(op: OpCode, words: [i32; 16], dialect: &'static Dialect) -> Params<'static> {
        let result = Layout::packed(DType::F32, [8, 4, 2, 1]).unwrap();
        Params { dialect, op, words, result, first: Some(result), names_itself: false }
    }

    #[test]
    fn words_out_of_range_are_refused() {
        let refused = |op, word: usize, value| {
            let mut words = [0; 16];
            words[word] = value;
            assert_eq!(
                params(op, words, Dialect::newest()).decode(),
                Err(ParamError::Word { op, word, value }),
                "{} {word} {value}",
                op.name()
            );
        };
        for value in [-1, 22, i32::MAX, i32::MIN] {
            refused(OpCode::Unary, 0, value);
        }
        refused(OpCode::Glu, 0, 7);
        refused(OpCode::Glu, 1, 2);
        refused(OpCode::MulMat, 0, 11);
        refused(OpCode::MulMat, 1, 2);
        refused(OpCode::Rope, 2, 1);
        refused(OpCode::Rope, 1, -2);
        refused(OpCode::Argsort, 0, 2);
        refused(OpCode::Tri, 0, 4);
        refused(OpCode::Pool2d, 0, 2);
        refused(OpCode::Upscale, 0, 3);
        refused(OpCode::Upscale, 0, 1024);
        refused(OpCode::Acc, 3, -4);
    }

    #[test]
    fn callbacks_are_refused_in_every_numbering() {
        for dialect in Dialect::all() {
            for (number, &op) in (0..).zip(dialect.ops).filter(|(_, op)| op.name().contains("CUSTOM")) {
                assert_eq!(dialect.op(number), Some(op));
                let decoded = params(op, [0; 16], dialect).decode();
                assert_eq!(decoded, Err(ParamError::Callback { op }));
            }
        }
    }

    #[test]
    fn what_a_dialect_lacks_is_refused_when_written() {
        let classic = Dialect::classic();
        let unknown =
            |op: Op| matches!(encode_params(&op, false, None, classic), Err(ParamError::Unknown { .. }));
        assert!(unknown(Unary::Floor.into()));
        assert!(unknown(TopK { k: 3 }.into()));
        let scan = SsmScan { snapshots: 1, grouping: Grouping::InTurn };
        assert!(unknown(SsmScan { snapshots: 2, ..scan }.into()));
        assert!(!unknown(scan.into()));
        assert_eq!(params(OpCode::SsmScan, [0; 16], classic).decode(), Ok(scan.into()));
        assert!(encode_params(&scan.into(), false, None, Dialect::newest()).is_err());
        let rounds = |iterations| {
            let op = Dsv4HcComb { eps: 1e-6, iterations };
            encode_params(&op.into(), false, None, Dialect::newest()).is_ok()
        };
        assert!(rounds(MAX_ITERATIONS) && !rounds(MAX_ITERATIONS + 1));
        assert!(unknown(Pad { left: [1, 0, 0, 0], right: [0; 4], circular: false }.into()));
        let erf = |dialect| encode_params(&Unary::GeluErf.into(), false, None, dialect).unwrap().1[0];
        assert_eq!(erf(classic), 14);
        assert_eq!(erf(Dialect::newest()), 16);
    }
}
