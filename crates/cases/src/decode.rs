//! The op of a case, from the name and the sixteen words that the newest dialect of the protocol uses for it.

use oxcart_rpc::wire::{Dialect, OpCode, Params};
use oxcart_tensor::{Layout, Op};
use serde_json::Value;

use crate::json::text;

/// The op of a case.
pub(crate) fn decode(case: &Value, result: Layout, first: Option<Layout>) -> Op {
    let name = text(&case["op"]);
    let op = OpCode::ALL.iter().copied().find(|op| op.name() == name);
    let word = |i: usize| case["op_params"][i].as_i64().and_then(|n| i32::try_from(n).ok());
    let params = Params {
        dialect: Dialect::newest(),
        op: op.unwrap_or_else(|| panic!("no op is called {name}")),
        words: std::array::from_fn(|i| word(i).unwrap_or_else(|| panic!("bad word {i}: {case}"))),
        result,
        first,
        names_itself: case["src"][1].get("same_as").is_some(),
    };
    let decoded = params.decode().unwrap_or_else(|error| panic!("{error}: {case}"));
    if let (Op::Unary(_) | Op::Glu(_), Some(function)) = (decoded, case.get("desc")) {
        assert_eq!(decoded.label(), text(function));
    }
    decoded
}
