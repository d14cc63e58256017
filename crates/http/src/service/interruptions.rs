//! What interrupted a service's requests, devices that were lost or came back, and how they went on.
//!
//! Invariant: the last [`MAX_INTERRUPTIONS`] are kept, and of the one that is under way one reason for each device.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use oxcart_llm::engine::Recovery;
use oxcart_llm::model::Share;
use oxcart_llm::runner::Loss;

use crate::limits::MAX_INTERRUPTIONS;

/// An interruption that is over: all requests that it paused have gone on.
#[derive(Clone, Debug)]
pub struct Interruption {
    /// When they had gone on.
    pub ended: Instant,
    /// Devices that were lost, and what was said about each.
    pub lost: Vec<(String, String)>,
    /// Devices that came back.
    pub returned: Vec<String>,
    /// How requests went on.
    pub recovery: Recovery,
}

/// Those of a service.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// What was said in the one that is under way: by device, why, and whether the device itself is lost.
    told: BTreeMap<String, (String, bool)>,
    past: VecDeque<Interruption>,
}

impl Interruptions {
    pub(super) fn lost(&mut self, loss: &Loss) {
        let (_, is_gone) = self.told.remove(&loss.device).unwrap_or_default();
        self.told.insert(loss.device.clone(), (loss.reason.clone(), is_gone || loss.is_gone));
    }

    pub(super) fn ended(&mut self, recovery: &Recovery) {
        let told = std::mem::take(&mut self.told);
        let (before, after) = (names(&recovery.before), names(&recovery.after));
        let is_gone = |name: &str| told.get(name).is_some_and(|(_, is_gone)| *is_gone);
        // One that was lost may be back already, and one that is left out may have been lost without a word.
        let lost = before.iter().filter(|name| is_gone(name) || !after.contains(name));
        let reason = |name: &str| told.get(name).map(|(reason, _)| reason.clone()).unwrap_or_default();
        let lost = lost.map(|&name| (name.to_owned(), reason(name))).collect();
        let returned = after.iter().filter(|name| is_gone(name) || !before.contains(name));
        let returned = returned.map(|&name| name.to_owned()).collect();
        if self.past.len() == MAX_INTERRUPTIONS {
            self.past.pop_front();
        }
        self.past.push_back(Interruption {
            ended: Instant::now(),
            lost,
            returned,
            recovery: recovery.clone(),
        });
    }

    /// The last ones, the oldest first.
    pub(super) fn past(&self) -> impl Iterator<Item = &Interruption> {
        self.past.iter()
    }
}

fn names(shares: &[Share]) -> Vec<&str> {
    shares.iter().map(|share| share.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shares(names: &[&str]) -> Vec<Share> {
        let share = |name: &&str| Share {
            name: (*name).to_owned(),
            description: String::new(),
            free: 0,
            blocks: 0..1,
            weights: 0,
            state: 0,
            results: 0,
            mapped: false,
            arithmetic: None,
        };
        names.iter().map(share).collect()
    }

    fn recovery(before: &[&str], after: &[&str]) -> Recovery {
        Recovery {
            epoch: 1,
            requests: 1,
            tokens: 1,
            noticing: Duration::ZERO,
            planning: Duration::ZERO,
            loading: Duration::ZERO,
            numerics_changed: false,
            stall: Duration::ZERO,
            before: shares(before),
            after: shares(after),
        }
    }

    fn loss(device: &str, reason: &str, is_gone: bool) -> Loss {
        Loss { device: device.into(), reason: reason.into(), is_gone, in_vain: 0, epoch: 0 }
    }

    #[test]
    fn what_was_lost_and_what_came_back() {
        let mut all = Interruptions::default();
        // The first waited for the second, which is gone; the third went unnoticed.
        all.lost(&loss("a", "waited in vain", false));
        all.lost(&loss("b", "closed the connection", true));
        all.ended(&recovery(&["a", "b", "c", "CPU"], &["a", "CPU"]));
        all.ended(&recovery(&["a", "CPU"], &["a", "b", "CPU"]));
        // Lost, and back before the model was elsewhere.
        all.lost(&loss("a", "restarted", true));
        all.ended(&recovery(&["a", "b", "CPU"], &["a", "b", "CPU"]));
        let pair = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
        let found: Vec<_> = all.past().map(|one| (one.lost.clone(), one.returned.clone())).collect();
        let expected = [
            (vec![pair("b", "closed the connection"), pair("c", "")], vec![]),
            (vec![], vec!["b".to_owned()]),
            (vec![pair("a", "restarted")], vec!["a".to_owned()]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn few_are_kept() {
        let mut all = Interruptions::default();
        for requests in 0..3 * MAX_INTERRUPTIONS {
            all.ended(&Recovery { requests, ..recovery(&["CPU"], &["CPU"]) });
        }
        let kept: Vec<usize> = all.past().map(|one| one.recovery.requests).collect();
        assert_eq!(kept, (2 * MAX_INTERRUPTIONS..3 * MAX_INTERRUPTIONS).collect::<Vec<_>>());
    }
}
