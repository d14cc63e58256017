//! What a template may spend: bytes that it looks at and bytes that it makes, counted in one budget.
//!
//! The engine counts steps, but a step may be one addition or the sorting of a million strings. So whatever works on values
//! passes them through here: [`Budget::read`] before something looks at all of a value, [`Budget::made`] when something new
//! was made.
//!
//! Invariants: the work of a rendering, and the memory of all values that it makes, is at most a small multiple of
//! [`MAX_TEMPLATE_WORK`]. No value that is computed when it is asked for gets past [`Budget::made`], so a value is as large
//! as it looks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::text::limits::{MAX_TEMPLATE_VALUE, MAX_TEMPLATE_WORK};

/// What an element of a list costs, and a value that is no text.
const ELEMENT: u64 = 16;
/// What an entry of a map costs.
const ENTRY: u64 = 64;
/// What a number with a fraction costs that is looked at: it may have three hundred digits.
const FRACTION: u64 = 320;

/// What is left to spend by one rendering.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    spent: AtomicU64,
    /// Everything with attributes that can be assigned to: such values can hold themselves.
    namespaces: Mutex<Vec<Value>>,
}

impl Budget {
    /// Spends something.
    pub(super) fn spend(&self, cost: u64) -> Result<(), Error> {
        let before = self.0.spent.fetch_add(cost.min(MAX_TEMPLATE_WORK), Ordering::Relaxed);
        if before.saturating_add(cost) > MAX_TEMPLATE_WORK {
            return Err(Error::new(ErrorKind::InvalidOperation, "too much work").with_source(OverBudget));
        }
        Ok(())
    }

    /// Spends what it costs to look at all of a value, however often it holds the same one.
    pub(super) fn read(&self, value: &Value) -> Result<u64, Error> {
        let (mut cost, mut pending) = (0_u64, vec![value.clone()]);
        while let Some(value) = pending.pop() {
            cost = cost.saturating_add(match value.kind() {
                ValueKind::String => value.as_str().map_or(0, str::len) as u64 + 1,
                ValueKind::Number if !value.is_integer() => FRACTION,
                _ => ELEMENT,
            });
            if cost > MAX_TEMPLATE_VALUE as u64 {
                return Err(too_large());
            }
            let Some(object) = value.as_object() else { continue };
            let known = (cost + pending.len() as u64 * ELEMENT) / ELEMENT;
            let room = (MAX_TEMPLATE_VALUE as u64 / ELEMENT).saturating_sub(known) as usize + 1;
            if value.kind() == ValueKind::Map {
                for (key, inner) in object.try_iter_pairs().into_iter().flatten().take(room) {
                    cost = cost.saturating_add(ENTRY);
                    pending.extend([key, inner]);
                }
            } else if let Some(elements) = object.try_iter() {
                pending.extend(elements.take(room));
            }
        }
        self.spend(cost)?;
        Ok(cost)
    }

    /// Spends what it costs to look at a value's elements, or at the characters of a text.
    pub(super) fn shape(&self, value: &Value) -> Result<(), Error> {
        self.spend(shape_of(value))
    }

    /// Spends what it costs to find one element: a list knows where it is, a text has to be counted through.
    pub(super) fn find(&self, value: &Value) -> Result<(), Error> {
        self.spend(if value.kind() == ValueKind::Seq { 1 } else { shape_of(value) })
    }

    /// Spends what a value that was just made has cost, and makes one of it that does not change.
    pub(super) fn made(&self, value: Value) -> Result<Value, Error> {
        if value.kind() != ValueKind::Iterable {
            let cost = shape_of(&value);
            check_size(cost)?;
            self.spend(cost)?;
            return Ok(value);
        }
        let most = MAX_TEMPLATE_VALUE / ELEMENT as usize;
        let elements: Vec<Value> = value.try_iter()?.take(most + 1).collect();
        self.spend(elements.len() as u64 * ELEMENT)?;
        if elements.len() > most {
            return Err(too_large());
        }
        Ok(Value::from(elements))
    }

    /// The product of two values: of numbers, or of a text or list and how often it is to be there.
    pub(super) fn product(&self, left: &Value, right: &Value) -> Result<Value, Error> {
        let is_many =
            |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
        let (many, count) = match (is_many(left), is_many(right)) {
            (true, false) => (left, right),
            (false, true) => (right, left),
            _ => return multiply(left, right),
        };
        let count =
            count.as_usize().ok_or_else(|| wrong("only whole numbers say how often something is there"))?;
        let cost = shape_of(many).saturating_mul(count as u64);
        check_size(cost)?;
        self.spend(cost)?;
        if let Some(text) = many.as_str() {
            return Ok(Value::from(text.repeat(count)));
        }
        let elements: Vec<Value> = many.try_iter()?.collect();
        let repeated = elements.iter().cycle().take(elements.len() * count).cloned();
        Ok(match many.is_tuple() {
            true => Value::from(Tuple::from(repeated.collect::<Vec<Value>>())),
            false => Value::from(repeated.collect::<Vec<Value>>()),
        })
    }

    /// Remembers a value that can hold itself.
    pub(super) fn note_namespace(&self, namespace: &Value) {
        self.0.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
    }

    /// All values that can hold themselves, once.
    pub(super) fn take_namespaces(&self) -> Vec<Value> {
        std::mem::take(&mut *self.0.namespaces.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a value's own bytes cost, without those of the values in it.
fn shape_of(value: &Value) -> u64 {
    let many = |len: Option<usize>, each: u64| (len.unwrap_or(0) as u64).saturating_mul(each).max(ELEMENT);
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len) as u64 + 1,
        ValueKind::Seq | ValueKind::Iterable => many(value.len(), ELEMENT),
        ValueKind::Map => many(value.len(), ENTRY),
        _ => 1,
    }
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let whole = |value: &Value| {
        i128::try_from(value.clone()).ok().filter(|_| !value.is_number() || value.is_integer())
    };
    let any = |value: &Value| f64::try_from(value.clone()).ok();
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        let product = left.checked_mul(right).ok_or_else(|| wrong("a product is too large"))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    match (any(left), any(right)) {
        (Some(left), Some(right)) => Ok(Value::from(left * right)),
        _ => Err(wrong(&format!("{} cannot be multiplied with {}", left.kind(), right.kind()))),
    }
}

fn check_size(cost: u64) -> Result<(), Error> {
    if cost > MAX_TEMPLATE_VALUE as u64 { Err(too_large()) } else { Ok(()) }
}

pub(super) fn too_large() -> Error {
    wrong("a value grows too large")
}

fn wrong(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

/// The cause of an error that says that all is spent.
#[derive(Debug)]
pub(super) struct OverBudget;

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the budget is spent")
    }
}

impl std::error::Error for OverBudget {}
