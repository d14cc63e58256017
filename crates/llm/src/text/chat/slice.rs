//! `value[start:stop:step]`, by the rules of Python, which templates are written for.
//!
//! Invariant: no bounds and no step, however large, reach past what is there or take longer than looking at all of it.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// A part of a text, list or tuple. Nothing has no parts, and that is an empty list.
pub(super) fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound =
        |bound: &Value| if bound.is_none() { Ok(None) } else { i64::try_from(bound.clone()).map(Some) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "cannot slice by step size of 0"));
    }
    match value.kind() {
        ValueKind::String => {
            let text: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            Ok(Value::from(indices(text.len(), start, stop, step).map(|at| text[at]).collect::<String>()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let elements: Vec<Value> = value.try_iter()?.collect();
            let part: Vec<Value> =
                indices(elements.len(), start, stop, step).map(|at| elements[at].clone()).collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(part)) } else { Value::from(part) })
        }
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        kind => {
            let reason = format!("value of type {kind} cannot be sliced");
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
    }
}

/// Where the elements of a slice stand, in its order; all of them below `len`.
fn indices(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = len as i64;
    // The places at which a slice may begin and end, in the direction in which it goes.
    let (first, last) = if step > 0 { (0, len) } else { (len - 1, -1) };
    let place = |bound: i64| {
        let from_start = if bound < 0 { bound + len } else { bound };
        from_start.clamp(first.min(last), first.max(last))
    };
    let (start, stop) = (start.map_or(first, place), stop.map_or(last, place));
    let gap = if step > 0 { stop - start } else { start - stop };
    let count = if gap > 0 { (gap as u64 - 1) / step.unsigned_abs() + 1 } else { 0 };
    (0..count as i64).map(move |nth| (start + nth * step) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python's own definition says, written out: from the start, step by step, while the stop is not reached.
    fn walked(len: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
        let from_start = |bound: i64| if bound < 0 { bound + len } else { bound };
        let mut at = match start.map(from_start) {
            Some(start) if step > 0 => start.max(0),
            Some(start) => start.min(len - 1),
            None => {
                if step > 0 {
                    0
                } else {
                    len - 1
                }
            }
        };
        let stop = stop.map(from_start);
        let mut seen = Vec::new();
        while (0..len).contains(&at) && stop.is_none_or(|stop| if step > 0 { at < stop } else { at > stop }) {
            seen.push(at as usize);
            at += step;
        }
        seen
    }

    #[test]
    fn slices_are_those_of_python() {
        let bounds: Vec<Option<i64>> = (-7..=7).map(Some).chain([None]).collect();
        for len in 0..6 {
            for &start in &bounds {
                for &stop in &bounds {
                    for step in [-7, -3, -2, -1, 1, 2, 3, 7] {
                        let found: Vec<usize> = indices(len, start, stop, step).collect();
                        assert_eq!(
                            found,
                            walked(len as i64, start, stop, step),
                            "{len}[{start:?}:{stop:?}:{step}]"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn no_bound_is_too_large() {
        let extremes = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX];
        for len in [0, 1, 5] {
            for start in extremes {
                for stop in extremes {
                    for step in extremes.into_iter().filter(|&step| step != 0) {
                        assert!(indices(len, Some(start), Some(stop), step).all(|at| at < len));
                    }
                }
            }
        }
        assert_eq!(indices(5, None, None, i64::MIN).collect::<Vec<_>>(), [4]);
        assert_eq!(indices(5, None, None, i64::MAX).collect::<Vec<_>>(), [0]);
    }
}
