//! What several clients wait for, and get in turns.
//!
//! Invariants: a client has a place in the order exactly while something of it waits. After its turn it is behind all others that wait, so how
//! much a client has waiting delays no other by more than a turn. A line that is full takes more only from a client that has much less
//! in it than another: then the other's latest makes way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::limits::MAX_CONNECTIONS;
use crate::service::Client;

/// What waits, by client.
pub(crate) struct Lines<T> {
    lines: BTreeMap<Client, VecDeque<T>>,
    /// Whose turn it is.
    order: VecDeque<Client>,
    len: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines { lines: BTreeMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<T> Lines<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, client: Client, item: T) {
        self.line(client).push_back(item);
    }

    /// Puts back what had its turn and is not done; it is the client's next.
    pub(crate) fn put_back(&mut self, client: Client, item: T) {
        self.line(client).push_front(item);
    }

    /// A client's line, for one more.
    fn line(&mut self, client: Client) -> &mut VecDeque<T> {
        self.len += 1;
        let line = self.lines.entry(client).or_default();
        if line.is_empty() {
            self.order.push_back(client);
        }
        line
    }

    /// That whose turn it is.
    pub(crate) fn next(&mut self) -> Option<(Client, T)> {
        let client = self.order.pop_front()?;
        let line = self.lines.get_mut(&client)?;
        let item = line.pop_front()?;
        self.len -= 1;
        match line.is_empty() {
            true => drop(self.lines.remove(&client)),
            false => self.order.push_back(client),
        }
        Some((client, item))
    }

    /// Whether there is room for one more of a client among so many; if need be, what is given makes way.
    pub(crate) fn make_room(&mut self, client: Client, most: usize) -> Result<Option<T>, Full> {
        if self.len < most {
            return Ok(None);
        }
        let own = self.lines.get(&client).map_or(0, VecDeque::len) + 1;
        let others = self.lines.iter_mut().filter(|(of, line)| **of != client && line.len() > 2 * own);
        let (_, line) = others.max_by_key(|(_, line)| line.len()).ok_or(Full)?;
        self.len -= 1;
        // It has more than two.
        Ok(line.pop_back())
    }

    /// Forgets what is not wanted any more.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(&T) -> bool) {
        for line in self.lines.values_mut() {
            line.retain(&mut is_wanted);
        }
        self.lines.retain(|_, line| !line.is_empty());
        self.order.retain(|client| self.lines.contains_key(client));
        self.len = self.lines.values().map(VecDeque::len).sum();
    }

    /// Takes out all of it.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        std::mem::take(self).lines.into_values().flatten().collect()
    }
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Places of which there are few, for work that takes long.
pub(crate) struct Places(Mutex<State>);

struct State {
    free: usize,
    waiting: Lines<oneshot::Sender<Place>>,
}

/// A place that is taken. When it is dropped, it is the next client's.
pub(crate) struct Place(Option<Arc<Places>>);

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Places> {
        Arc::new(Places(Mutex::new(State { free: count, waiting: Lines::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by code that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a client's turn.
    pub(crate) async fn take(self: &Arc<Places>, client: Client) -> Place {
        let given = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Place(Some(Arc::clone(self)));
            }
            // Those who are gone are passed over in their turn; should they become many, at once.
            if state.waiting.len() >= MAX_CONNECTIONS {
                state.waiting.retain(|waiting| !waiting.is_closed());
            }
            let (sender, given) = oneshot::channel();
            state.waiting.push(client, sender);
            given
        };
        // It is only lost together with all places.
        given.await.unwrap_or(Place(None))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(places) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = places.lock();
                let next = state.waiting.next();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some((_, next)) = next else { return };
            match next.send(Place(Some(Arc::clone(&places)))) {
                Ok(()) => return,
                // Its client is gone; the next one gets it.
                Err(mut place) => place.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn order<T>(lines: &mut Lines<T>) -> Vec<T> {
        std::iter::from_fn(|| lines.next()).map(|(_, item)| item).collect()
    }

    #[test]
    fn clients_have_turns() {
        let mut lines = Lines::default();
        (0..4).for_each(|item| lines.push(Client(1), item));
        (10..12).for_each(|item| lines.push(Client(2), item));
        let (client, item) = lines.next().unwrap();
        assert_eq!((client, item), (Client(1), 0));
        lines.put_back(client, item);
        lines.push(Client(3), 20);
        assert_eq!(lines.len(), 7);
        assert_eq!(order(&mut lines), [10, 0, 20, 11, 1, 2, 3]);
        assert_eq!(lines.len(), 0);
        (0..4).for_each(|item| lines.push(Client(item % 2), item));
        lines.retain(|item| item % 2 == 1);
        assert_eq!((lines.len(), order(&mut lines)), (2, vec![1, 3]));
        assert!(lines.lines.is_empty() && lines.order.is_empty());
    }

    #[test]
    fn a_full_line_is_shared() {
        let mut lines = Lines::default();
        (0..6).for_each(|item| lines.push(Client(1), item));
        assert_eq!(lines.make_room(Client(1), 6), Err(Full), "its own are no reason");
        assert_eq!(lines.make_room(Client(2), 7), Ok(None));
        assert_eq!(lines.make_room(Client(2), 6), Ok(Some(5)), "the latest of the one that has most");
        lines.push(Client(2), 10);
        assert_eq!(lines.make_room(Client(2), 6), Ok(Some(4)));
        lines.push(Client(2), 11);
        assert_eq!(lines.make_room(Client(2), 6), Err(Full));
        assert_eq!(lines.len(), 6);
        assert_eq!(order(&mut lines), [0, 10, 1, 11, 2, 3]);
    }

    fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// One client has any number of requests that wait; another's only request is the next but one.
    #[test]
    fn places_go_from_client_to_client() {
        let places = Places::new(1);
        let first = now(pin!(places.take(Client(1)))).unwrap();
        let mut same = [(); 3].map(|()| Box::pin(places.take(Client(1))));
        same.iter_mut().for_each(|waiting| assert!(now(waiting.as_mut()).is_none()));
        let mut other = Box::pin(places.take(Client(2)));
        assert!(now(other.as_mut()).is_none());
        drop(first);
        let [mut second, third, mut fourth] = same;
        let second = now(second.as_mut()).unwrap();
        assert!(now(other.as_mut()).is_none() && now(fourth.as_mut()).is_none());
        // A client that leaves keeps no other from its turn.
        drop(third);
        drop(second);
        let other = now(other.as_mut()).unwrap();
        assert!(now(fourth.as_mut()).is_none());
        drop(other);
        drop(now(fourth.as_mut()).unwrap());
        assert!(now(pin!(places.take(Client(3)))).is_some(), "all are free again");
    }
}
