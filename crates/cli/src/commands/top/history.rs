//! The pictures of the last minute, and what happened per second between them.

use std::collections::VecDeque;

use oxcart_http::Cluster;

/// Seconds that are kept.
const SPAN: f64 = 60.0;

/// Seconds that a rate is over.
const OVER: f64 = 2.5;

/// Pictures, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Cluster>);

impl History {
    pub(super) fn push(&mut self, picture: Cluster) {
        // A server that was started anew counts from the beginning.
        if self.0.back().is_some_and(|last| last.uptime_seconds > picture.uptime_seconds) {
            self.0.clear();
        }
        while self.0.len() > 2 && self.0[0].uptime_seconds < picture.uptime_seconds - SPAN {
            self.0.pop_front();
        }
        self.0.push_back(picture);
    }

    /// How things are.
    pub(super) fn now(&self) -> Option<&Cluster> {
        self.0.back()
    }

    /// By how much a counter grows per second.
    pub(super) fn rate(&self, counter: impl Fn(&Cluster) -> Option<u64>) -> f64 {
        let Some(last) = self.now() else { return 0.0 };
        let recent = |picture: &Cluster| picture.uptime_seconds >= last.uptime_seconds - OVER;
        // Where pictures are further apart, between the last two.
        let from = self.0.iter().position(recent).unwrap_or(0).min(self.0.len().saturating_sub(2));
        self.0.get(from).map_or(0.0, |first| between(first, last, &counter))
    }

    /// The same from picture to picture, the oldest first.
    pub(super) fn rates(&self, counter: impl Fn(&Cluster) -> Option<u64>) -> Vec<f64> {
        self.0.iter().zip(self.0.iter().skip(1)).map(|(first, next)| between(first, next, &counter)).collect()
    }
}

fn between(first: &Cluster, last: &Cluster, counter: &impl Fn(&Cluster) -> Option<u64>) -> f64 {
    let seconds = last.uptime_seconds - first.uptime_seconds;
    match (counter(first), counter(last)) {
        (Some(before), Some(now)) if seconds > 0.0 => now.saturating_sub(before) as f64 / seconds,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_http::{Link, Machine};

    fn picture(at: f64, sent_bytes: u64) -> Cluster {
        let link = Some(Link { sent_bytes, ..Link::default() });
        let machines = vec![Machine { name: "a".into(), link, ..Machine::default() }];
        Cluster { version: String::new(), uptime_seconds: at, machines, models: Vec::new() }
    }

    fn sent(picture: &Cluster) -> Option<u64> {
        picture.machines.first()?.link.map(|link| link.sent_bytes)
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let mut history = History::default();
        assert_eq!(history.rate(sent), 0.0);
        for at in 0..100_u32 {
            history.push(picture(f64::from(at), if at < 90 { 0 } else { u64::from(at - 89) * 10 }));
        }
        assert_eq!(history.rate(sent), 10.0);
        assert!(history.rates(sent).len() <= 62, "a minute is kept");
        assert_eq!(history.rates(sent).last(), Some(&10.0));
        history.push(picture(1.0, 5));
        assert_eq!(history.rate(sent), 0.0, "another server");
    }

    #[test]
    fn rates_of_pictures_far_apart_are_between_the_last_two() {
        let mut history = History::default();
        for (at, bytes) in [(0.0, 0), (5.0, 100), (10.0, 150)] {
            history.push(picture(at, bytes));
        }
        assert_eq!(history.rate(sent), 10.0);
    }
}
