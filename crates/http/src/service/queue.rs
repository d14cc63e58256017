//! Requests that wait, and whose turn it is.
//!
//! Invariants: the next request is that of the client that has had least, of one client's the oldest. What a client has had
//! is counted in tokens. One that was away does not get what it could have had meanwhile: it starts where the one is that
//! has had least of those who wait or run. A client that has had much more than one that waits, and has more requests running, makes
//! way with one of them; that is the client's next. A full queue takes no more, except from a client that has much less in it than
//! another: then the other's latest make way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use oxcart_llm::engine::Request;

use super::telling::Ticket;
use super::updates::Sink;
use crate::limits::TURN_TOKENS;

/// Whose request it is: an API key, by its place in the server's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(pub u64);

/// A request that waits.
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) client: Client,
    pub(super) request: Request,
    pub(super) sink: Sink,
    pub(super) since: Instant,
}

/// A request whose turn it is.
pub(super) enum Next {
    /// It begins.
    Begin(Box<Waiting>),
    /// It goes on after it had made way.
    GoOn(Ticket),
}

/// What a client has had, and what it waits for.
#[derive(Default)]
struct Line {
    tokens: u64,
    waiting: VecDeque<Waiting>,
    /// Requests that have begun and made way, in this order.
    aside: VecDeque<Ticket>,
    /// Requests that run.
    running: usize,
}

impl Line {
    fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.aside.is_empty()
    }

    fn is_idle(&self) -> bool {
        !self.waits() && self.running == 0
    }

    /// Whose turn it is goes by this: of those that have had the same, by who has less under way.
    fn had(&self) -> (u64, usize) {
        (self.tokens, self.running)
    }
}

#[derive(Default)]
pub(super) struct Queue {
    /// Only clients that wait or run.
    lines: BTreeMap<Client, Line>,
    /// Requests that wait, those that made way included.
    len: usize,
    /// What clients start with: it never falls.
    floor: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is room for so many more of a client, if need be because others' latest make way.
    pub(super) fn make_room(
        &mut self,
        client: Client,
        count: usize,
        most: usize,
        displaced: &mut Vec<Waiting>,
    ) -> bool {
        if count > most {
            return false;
        }
        let own = self.lines.get(&client).map_or(0, |line| line.waiting.len()) + count;
        // First whether it is possible: a client that is refused displaces none.
        let mut others: Vec<usize> =
            self.lines.iter().filter(|(of, _)| **of != client).map(|(_, line)| line.waiting.len()).collect();
        let mut excess = (self.len + count).saturating_sub(most);
        while excess > 0 {
            let Some(longest) = others.iter_mut().max().filter(|longest| **longest > 2 * own) else {
                return false;
            };
            *longest -= 1;
            excess -= 1;
        }
        while self.len + count > most {
            let longest = self.lines.iter_mut().filter(|(of, _)| **of != client);
            let Some((_, line)) = longest.max_by_key(|(_, line)| line.waiting.len()) else { return false };
            let Some(latest) = line.waiting.pop_back() else { return false };
            self.len -= 1;
            displaced.push(latest);
        }
        true
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        let least = self.lines.values().map(|line| line.tokens).min();
        self.floor = self.floor.max(least.unwrap_or(0));
        let floor = self.floor;
        let line =
            self.lines.entry(waiting.client).or_insert_with(|| Line { tokens: floor, ..Line::default() });
        line.waiting.push_back(waiting);
        self.len += 1;
    }

    /// The request whose turn it is; it runs from now on.
    pub(super) fn next(&mut self) -> Option<Next> {
        let line = self.lines.values_mut().filter(|line| line.waits()).min_by_key(|line| line.had())?;
        line.running += 1;
        self.len -= 1;
        match line.aside.pop_front() {
            Some(ticket) => Some(Next::GoOn(ticket)),
            None => line.waiting.pop_front().map(|first| Next::Begin(Box::new(first))),
        }
    }

    /// The client that is to make way with one of its requests for that whose turn it is, if there is one.
    pub(super) fn makes_way(&self) -> Option<Client> {
        let next = self.lines.values().filter(|line| line.waits()).min_by_key(|line| line.had())?;
        let has_more = |line: &Line| {
            line.running > next.running && line.tokens >= next.tokens.saturating_add(TURN_TOKENS)
        };
        let most = self.lines.iter().filter(|(_, line)| has_more(line)).max_by_key(|(_, line)| line.had())?;
        Some(*most.0)
    }

    /// Notes that a request that ran has made way.
    pub(super) fn set_aside(&mut self, client: Client, ticket: Ticket) {
        if let Some(line) = self.lines.get_mut(&client) {
            line.running -= 1;
            line.aside.push_back(ticket);
            self.len += 1;
        }
    }

    /// Counts tokens that a client has had.
    pub(super) fn charge(&mut self, client: Client, tokens: usize) {
        if let Some(line) = self.lines.get_mut(&client) {
            line.tokens += tokens as u64;
        }
    }

    /// Notes that a request that had begun has ended.
    pub(super) fn ended(&mut self, client: Client, ticket: Ticket) {
        if let Some(line) = self.lines.get_mut(&client) {
            match line.aside.iter().position(|aside| *aside == ticket) {
                Some(at) => {
                    line.aside.remove(at);
                    self.len -= 1;
                }
                None => line.running -= 1,
            }
            if line.is_idle() {
                self.lines.remove(&client);
            }
        }
    }

    /// Takes out a request that still waits.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let (&client, line) =
            self.lines.iter_mut().find(|(_, line)| line.waiting.iter().any(|own| own.ticket == ticket))?;
        let at = line.waiting.iter().position(|own| own.ticket == ticket)?;
        let removed = line.waiting.remove(at);
        self.len -= 1;
        if line.is_idle() {
            self.lines.remove(&client);
        }
        removed
    }

    /// Takes out those that have waited for too long, or all.
    pub(super) fn drain(&mut self, is_over: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut drained = Vec::new();
        for line in self.lines.values_mut() {
            // Nearly always there is none, and this is asked before every step.
            if !line.waiting.iter().any(&is_over) {
                continue;
            }
            let (over, kept) = line.waiting.drain(..).partition(&is_over);
            line.waiting = kept;
            drained.extend::<VecDeque<_>>(over);
        }
        self.len -= drained.len();
        self.lines.retain(|_, line| !line.is_idle());
        drained
    }
}

#[cfg(test)]
mod tests {
    use super::super::updates;
    use super::*;

    fn waiting(ticket: u64, client: u64) -> Waiting {
        let (sink, _) = updates::detached(Ticket(ticket));
        let request = Request::new(vec![1]);
        Waiting { ticket: Ticket(ticket), client: Client(client), request, sink, since: Instant::now() }
    }

    /// What begins next.
    fn begun(queue: &mut Queue) -> Option<Waiting> {
        match queue.next()? {
            Next::Begin(waiting) => Some(*waiting),
            Next::GoOn(ticket) => panic!("{ticket:?} had not made way"),
        }
    }

    fn tickets(waiting: &[Waiting]) -> Vec<u64> {
        waiting.iter().map(|waiting| waiting.ticket.0).collect()
    }

    #[test]
    fn the_client_that_has_had_least_is_next() {
        let mut queue = Queue::default();
        for ticket in 0..4 {
            queue.push(waiting(ticket, 1));
        }
        queue.push(waiting(10, 2));
        queue.push(waiting(11, 2));
        let mut order = Vec::new();
        while let Some(next) = begun(&mut queue) {
            order.push(next.ticket.0);
            // The second client's answers are three times as long.
            queue.charge(next.client, if next.client == Client(2) { 300 } else { 100 });
        }
        // Of two that have had the same, the one that has less under way.
        assert_eq!(order, [0, 10, 1, 2, 11, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn who_was_away_has_no_claim_to_what_was_missed() {
        let mut queue = Queue::default();
        queue.push(waiting(0, 1));
        for ticket in 1..5 {
            queue.push(waiting(ticket, 1));
            let next = begun(&mut queue).unwrap();
            queue.charge(next.client, 1000);
        }
        // Two come together now: the newcomer is not served alone until it has had as much.
        for ticket in 10..14 {
            queue.push(waiting(ticket, 2));
            queue.push(waiting(ticket + 10, 1));
        }
        let mut order = Vec::new();
        while let Some(next) = begun(&mut queue) {
            order.push(next.client.0);
            queue.charge(next.client, 1000);
        }
        assert_eq!(order[..6], [2, 1, 2, 1, 2, 1], "{order:?}");
    }

    #[test]
    fn who_has_had_much_more_makes_way() {
        let mut queue = Queue::default();
        let had = [Client(1), Client(1), Client(1), Client(2)];
        for (ticket, client) in (0..).zip(had) {
            queue.push(waiting(ticket, client.0));
            begun(&mut queue).unwrap();
        }
        queue.push(waiting(10, 1));
        queue.charge(Client(1), 10_000);
        assert_eq!(queue.makes_way(), None, "not for its own requests");
        queue.charge(Client(2), 10_000);
        queue.push(waiting(20, 3));
        queue.charge(Client(1), TURN_TOKENS as usize - 1);
        assert_eq!(queue.makes_way(), None, "who comes starts where the others are");
        queue.charge(Client(1), 1);
        assert_eq!(queue.makes_way(), Some(Client(1)));
        queue.set_aside(Client(1), Ticket(2));
        assert_eq!(begun(&mut queue).map(|next| next.ticket), Some(Ticket(20)));
        assert_eq!(queue.len(), 2, "one that had begun, and one that had not");
        queue.charge(Client(3), 100_000);
        assert_eq!(queue.makes_way(), None, "who waits has more under way");
        queue.ended(Client(1), Ticket(0));
        queue.ended(Client(1), Ticket(1));
        assert_eq!(queue.makes_way(), Some(Client(3)));
        // What made way goes on before what has not begun.
        assert!(matches!(queue.next(), Some(Next::GoOn(Ticket(2)))));
        queue.set_aside(Client(1), Ticket(2));
        queue.ended(Client(1), Ticket(2));
        assert_eq!(queue.len(), 1, "it ended while it was aside");
        assert!(matches!(queue.next(), Some(Next::Begin(next)) if next.ticket == Ticket(10)));
    }

    #[test]
    fn a_full_queue_is_shared_fairly() {
        let mut queue = Queue::default();
        let mut displaced = Vec::new();
        for ticket in 0..8 {
            assert!(queue.make_room(Client(1), 1, 8, &mut displaced));
            queue.push(waiting(ticket, 1));
        }
        assert!(!queue.make_room(Client(1), 1, 8, &mut displaced), "its own are no reason");
        assert!(!queue.make_room(Client(2), 9, 8, &mut displaced));
        assert!(displaced.is_empty());
        for ticket in 10.. {
            if !queue.make_room(Client(2), 1, 8, &mut displaced) {
                break;
            }
            queue.push(waiting(ticket, 2));
        }
        assert_eq!(tickets(&displaced), [7, 6], "the latest of the client that has most");
        assert_eq!(queue.len(), 8);
    }

    #[test]
    fn what_is_withdrawn_leaves_nothing_behind() {
        let mut queue = Queue::default();
        queue.push(waiting(0, 1));
        queue.push(waiting(1, 2));
        assert!(queue.remove(Ticket(0)).is_some() && queue.remove(Ticket(0)).is_none());
        assert_eq!(tickets(&queue.drain(|_| true)), [1]);
        assert!(queue.lines.is_empty() && queue.len() == 0);
        queue.push(waiting(2, 1));
        let next = begun(&mut queue).unwrap();
        queue.ended(next.client, next.ticket);
        assert!(queue.lines.is_empty());
    }
}
