//! Turns at something of which there is little: a device, or the processor beside it. The peer that has used least goes next,
//! and of its connections the one that has used least.
//!
//! Each turn counts for as long as it took. A clock goes on by what each of those who want something would have had of a turn if
//! all had equal parts: one that has used less than that is where the clock is, and saves up nothing. So a short request waits for the
//! turn under way and hardly for any other, and one that was refused its part comes next once the clock has reached it, however many
//! newcomers there are.
//!
//! Concurrency: any number of threads wait; each is woken alone, when it is its turn. One that gives up while it waits
//! leaves the queue. Invariant: never more [`Turn`]s exist at a time than were allowed, and none is lost when its holder
//! panics.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::peer::{Holder, Peer};

/// Entries that are kept of what was used, even if they say nothing any more.
const KEPT: usize = 256;

/// How much each has used, on a clock that goes on as all do who want something.
#[derive(Debug)]
struct Usage<K> {
    now: Duration,
    /// Only of those who are ahead of the clock.
    used: HashMap<K, Duration>,
}

impl<K> Default for Usage<K> {
    fn default() -> Usage<K> {
        Usage { now: Duration::ZERO, used: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Usage<K> {
    /// Whose is the least goes next.
    fn of(&self, key: K) -> Duration {
        self.used.get(&key).copied().unwrap_or_default().max(self.now)
    }

    /// One of those that want something begins, and none of them has used less.
    fn begin(&mut self, key: K) {
        self.now = self.of(key);
    }

    /// Forgets those that are where anyone begins; if they are few, also the half that has used least.
    fn forget(&mut self) {
        let now = self.now;
        self.used.retain(|_, used| *used > now);
        if self.used.len() > KEPT / 2 {
            let mut all: Vec<Duration> = self.used.values().copied().collect();
            let (_, &mut middle, _) = all.select_nth_unstable(self.used.len() / 2);
            let mut room = KEPT / 2;
            self.used.retain(|_, used| {
                let stays = *used >= middle && room > 0;
                room -= usize::from(stays);
                stays
            });
        }
    }

    /// One of so many that want something has used some time.
    fn add(&mut self, key: K, time: Duration, wanting: usize) {
        let used = self.of(key).saturating_add(time);
        self.used.insert(key, used);
        self.now = self.now.saturating_add(time / u32::try_from(wanting.max(1)).unwrap_or(u32::MAX));
        if self.used.len() > KEPT {
            self.forget();
        }
    }
}

#[derive(Debug)]
struct Waiter {
    holder: Holder,
    thread: Thread,
    has_turn: AtomicBool,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Who came first stands first.
    queue: Vec<Arc<Waiter>>,
    peers: Usage<Peer>,
    clients: HashMap<Peer, Usage<u64>>,
}

impl State {
    /// Takes one out of the queue: of the peer that has used least, the connection that has used least, and of equals the one that
    /// came first.
    fn next(&mut self) -> Option<Arc<Waiter>> {
        let holders = || self.queue.iter().map(|waiter| waiter.holder).enumerate();
        let (_, Holder { peer, .. }) = holders().min_by_key(|(_, holder)| self.peers.of(holder.peer))?;
        let clients = self.clients.get(&peer);
        let of_client = |client| clients.map_or(Duration::ZERO, |clients| clients.of(client));
        let (at, _) = holders()
            .filter(|(_, holder)| holder.peer == peer)
            .min_by_key(|(_, holder)| of_client(holder.client))?;
        Some(self.queue.remove(at))
    }

    fn begin(&mut self, Holder { peer, client }: Holder) {
        self.peers.begin(peer);
        if let Some(clients) = self.clients.get_mut(&peer) {
            clients.begin(client);
        }
    }

    fn add(&mut self, Holder { peer, client }: Holder, time: Duration) {
        let others = |holder: &Holder| holder.peer != peer;
        let waiting = self.queue.iter().map(|waiter| waiter.holder);
        let peers: HashSet<Peer> = waiting.clone().filter(others).map(|holder| holder.peer).collect();
        let same = waiting.filter(|holder| holder.peer == peer && holder.client != client).count();
        self.peers.add(peer, time, peers.len() + 1);
        self.clients.entry(peer).or_default().add(client, time, same + 1);
        if self.clients.len() > KEPT {
            let State { peers, clients, .. } = self;
            clients.retain(|peer, _| peers.used.contains_key(peer));
        }
    }
}

/// What turns are had at.
#[derive(Debug)]
pub(crate) struct Turnstile {
    state: Mutex<State>,
}

/// The right to go on; passed to the next in line when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turnstile: &'a Turnstile,
    holder: Holder,
    since: Instant,
}

impl Turnstile {
    /// Lets so many have a turn at the same time.
    pub(crate) fn new(turns: usize) -> Turnstile {
        let (peers, clients) = (Usage::default(), HashMap::new());
        Turnstile { state: Mutex::new(State { free: turns.max(1), queue: Vec::new(), peers, clients }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, holder: Holder) -> Turn<'_> {
        Turn { turnstile: self, holder, since: Instant::now() }
    }

    /// Waits for a turn; `None` if `gives_up`, which is asked every `patience`, says so first.
    pub(crate) fn enter(
        &self,
        holder: Holder,
        patience: Duration,
        gives_up: impl Fn() -> bool,
    ) -> Option<Turn<'_>> {
        let waiter = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                state.begin(holder);
                return Some(self.turn(holder));
            }
            let waiter =
                Arc::new(Waiter { holder, thread: thread::current(), has_turn: AtomicBool::new(false) });
            state.queue.push(Arc::clone(&waiter));
            waiter
        };
        loop {
            if waiter.has_turn.load(Ordering::Acquire) {
                return Some(self.turn(holder));
            }
            if gives_up() {
                let mut state = self.state();
                if !waiter.has_turn.load(Ordering::Acquire) {
                    state.queue.retain(|other| !Arc::ptr_eq(other, &waiter));
                    return None;
                }
                drop(state);
                // The turn came in the same moment; dropping it passes it on.
                drop(self.turn(holder));
                return None;
            }
            thread::park_timeout(patience);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turnstile.state();
        state.add(self.holder, self.since.elapsed());
        match state.next() {
            Some(next) => {
                state.begin(next.holder);
                next.has_turn.store(true, Ordering::Release);
                next.thread.unpark();
            }
            None => state.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    /// A connection of a peer.
    fn holder(peer: u8, client: u64) -> Holder {
        Holder { peer: Peer::of(([127, 0, 0, peer], 1).into()), client }
    }

    /// The order in which some get their turns who come one after the other.
    fn order(turnstile: &Turnstile, holders: &[Holder]) -> Vec<Holder> {
        let order = Mutex::new(Vec::new());
        let first = turnstile.enter(holder(9, 9), SOON, || false).unwrap();
        thread::scope(|scope| {
            for (number, &holder) in holders.iter().enumerate() {
                let order = &order;
                scope.spawn(move || {
                    let turn = turnstile.enter(holder, SOON, || false).unwrap();
                    order.lock().unwrap().push(holder);
                    drop(turn);
                });
                while turnstile.state().queue.len() <= number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        order.into_inner().unwrap()
    }

    #[test]
    fn of_equals_the_longest_waiting_goes_next() {
        let holders: Vec<Holder> = (0..8).map(|number| holder(number, 1)).collect();
        let turnstile = Turnstile::new(1);
        assert_eq!(order(&turnstile, &holders), holders);
        assert_eq!(turnstile.state().free, 1);
    }

    #[test]
    fn who_used_least_goes_next_whatever_the_number_of_connections() {
        let turnstile = Turnstile::new(1);
        let second = Duration::from_secs(1);
        {
            let mut state = turnstile.state();
            state.peers.used = [(holder(1, 0).peer, 64 * second), (holder(2, 0).peer, 3 * second)].into();
            let used = [(100, 2 * second), (101, second)].into();
            state.clients.insert(holder(2, 0).peer, Usage { now: Duration::ZERO, used });
        }
        let greedy: Vec<Holder> = (0..64).map(|client| holder(1, client)).collect();
        let others = [holder(2, 100), holder(2, 101), holder(3, 200)];
        let order = order(&turnstile, &[&greedy[..], &others].concat());
        assert_eq!(order[..3], [holder(3, 200), holder(2, 101), holder(2, 100)]);
    }

    #[test]
    fn nothing_is_saved_up() {
        let mut usage = Usage::default();
        usage.add('a', Duration::from_secs(100), 1);
        usage.begin('a');
        assert_eq!(usage.of('b'), Duration::from_secs(100));
        usage.add('b', SOON, 2);
        assert!(usage.of('b') > usage.of('a'));
    }

    /// There is always a newcomer that has used nothing, of another peer or of the same.
    #[test]
    fn newcomers_without_end_keep_no_one_waiting() {
        for same_peer in [false, true] {
            let turnstile = Turnstile::new(1);
            let mut state = turnstile.state();
            let waits = |holder| {
                Arc::new(Waiter { holder, thread: thread::current(), has_turn: AtomicBool::new(false) })
            };
            let newcomer = |number: u64| {
                let peer = if same_peer { 1 } else { 2 + (number % 200) as u8 };
                waits(holder(peer, 1000 + number))
            };
            let old = holder(1, 1);
            state.queue.extend((0..24).map(newcomer));
            state.begin(old);
            state.add(old, 3 * SOON);
            state.queue.insert(0, waits(old));
            let mut served = 0;
            loop {
                if state.queue.len() < 25 {
                    state.queue.push(newcomer(24 + served));
                }
                let next = state.next().unwrap().holder;
                state.begin(next);
                if next == old {
                    break;
                }
                state.add(next, SOON);
                served += 1;
                assert!(served < 200, "the same peer: {same_peer}");
            }
            // It has used as much as three turns, and has its part of what follows.
            assert!((24..120).contains(&served), "{served}, the same peer: {same_peer}");
        }
    }

    #[test]
    fn those_who_left_are_forgotten() {
        let turnstile = Turnstile::new(1);
        for number in 0..10_000_u64 {
            let mut state = turnstile.state();
            let holder = Holder { peer: Peer::of(((number as u32).to_be_bytes(), 1).into()), client: number };
            state.begin(holder);
            state.add(holder, SOON);
        }
        let state = turnstile.state();
        assert!(state.peers.used.len() <= KEPT + 1 && state.clients.len() <= KEPT + 1);
    }

    #[test]
    fn several_may_have_a_turn() {
        let turnstile = Turnstile::new(2);
        let turns = [holder(1, 1), holder(1, 2)].map(|holder| turnstile.enter(holder, SOON, || true));
        assert!(turns.iter().all(Option::is_some));
        assert!(turnstile.enter(holder(1, 3), SOON, || true).is_none());
        drop(turns);
        assert_eq!(turnstile.state().free, 2);
    }

    #[test]
    fn a_client_that_gives_up_leaves_the_queue() {
        let turnstile = Turnstile::new(1);
        let turn = turnstile.enter(holder(1, 1), SOON, || false).unwrap();
        assert!(turnstile.enter(holder(1, 2), SOON, || true).is_none());
        assert!(turnstile.state().queue.is_empty());
        drop(turn);
        assert!(turnstile.enter(holder(1, 2), SOON, || true).is_some());
    }

    #[test]
    fn turns_are_exclusive_and_never_lost() {
        let (turnstile, inside) = (Turnstile::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            for number in 0..6_u32 {
                let (turnstile, inside) = (&turnstile, &inside);
                scope.spawn(move || {
                    for round in 0..500 {
                        let impatient = (round + number) % 7 == 0;
                        let holder = holder(number as u8 % 3, number.into());
                        let Some(turn) = turnstile.enter(holder, SOON, || impatient) else { continue };
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        inside.store(false, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(turnstile.state().free, 1);
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let turnstile = Turnstile::new(1);
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = turnstile.enter(holder(1, 1), SOON, || false);
            panic!("inside");
        }));
        assert!(died.is_err());
        assert!(turnstile.enter(holder(1, 1), SOON, || true).is_some());
    }
}
