//! Any bytes as the lives of several connections to one worker: what each does in which order, and at which byte it ends.
//!
//! Honest clients know at every moment what a worker must answer ([`honest`](super::honest)), also after others have left in the
//! middle of a command, were refused or have played a hostile script. At the end nothing is left of any of them.

use oxcart_rpc::wire::Dialect;
use oxcart_rpc::worker::DialectChoice;

use super::honest::{Honest, Request};
use super::pipe::{Ending, Line};
use super::rig::Rig;
use super::{Choices, session};

/// Connections at a time.
const MOST: usize = 4;
/// Steps after which all leave.
const STEPS: usize = 64;

/// A client and its connection.
struct Life {
    client: Honest,
    line: Line,
}

/// No answer is wrong, whichever others come and go; a connection that ends is over; and everything is given back.
pub fn check(bytes: &[u8]) {
    graphs(bytes);
}

/// The same; says how many graphs were computed.
pub fn graphs(bytes: &[u8]) -> u64 {
    let mut choices = Choices(bytes);
    let rig = if choices.byte() & 1 == 0 { Rig::host() } else { Rig::accelerator() };
    rig.play(|rig| {
        let mut lives = Lives { rig, all: Vec::new() };
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            lives.step(&mut choices);
            let (connected, held) = (rig.worker.counters().connected, rig.worker.held_bytes());
            assert_eq!((connected as usize, held), (lives.all.len(), Rig::FREE_BYTES - lives.left()));
        }
        lives.end(&mut choices);
    })
}

struct Lives {
    rig: &'static Rig,
    all: Vec<Life>,
}

impl Lives {
    /// Bytes of the device that no one has.
    fn left(&self) -> usize {
        Rig::FREE_BYTES - self.all.iter().map(|life| life.client.held()).sum::<usize>()
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let choice = choices.byte();
        if self.all.is_empty() || choice >= 240 && self.all.len() < MOST {
            return self.connect(choices);
        }
        let who = choices.below(self.all.len());
        let left = self.left();
        match choice {
            // A step of an honest client.
            ..192 => {
                let request = self.all[who].client.next(choices, left);
                self.carry_out(who, request);
            }
            // One ends in the middle of a message: behind so many of its bytes, or of those of its answer.
            192..216 => {
                let Life { client, line } = self.all.swap_remove(who);
                let request = client.next(choices, left);
                let at = usize::from(choices.short());
                if choice < 208 {
                    line.send(&request.bytes[..at % (request.bytes.len() + 1)]);
                } else {
                    line.take_no_more_than(at % 32);
                    line.send(&request.bytes);
                }
                line.end(ending(choices));
            }
            // A hostile one comes and goes.
            216..228 => {
                let (dialect, len) = (choices.byte(), usize::from(choices.byte()).min(choices.0.len()));
                let (script, rest) = choices.0.split_at(len);
                choices.0 = rest;
                session::play(self.rig, dialect, script);
            }
            // One tries what belongs to another, which ends it.
            _ => {
                let other = (who + 1) % self.all.len();
                let Some(handle) = self.all[other].client.handle().filter(|_| other != who) else { return };
                if let Some(request) = self.all[who].client.trespass(choices, handle) {
                    self.carry_out(who, request);
                }
            }
        }
    }

    fn connect(&mut self, choices: &mut Choices<'_>) {
        let dialect = Dialect::all()[choices.below(Dialect::all().len())];
        // Mostly all at once.
        let piece = match choices.byte() {
            192.. => 1 + choices.below(64),
            _ => usize::MAX,
        };
        let line = Line::open(&self.rig.worker, DialectChoice::Fixed(dialect), piece);
        // It is counted once the worker waits for it.
        line.send(&[]);
        self.all.push(Life { client: Honest::new(dialect), line });
    }

    fn carry_out(&mut self, who: usize, request: Request) {
        let Life { client, line } = &mut self.all[who];
        let is_there = line.send(&request.bytes);
        if !client.learn(request, &line.answers(), is_there) {
            self.all.swap_remove(who);
        }
    }

    /// Everyone has what it should have, and leaves; those who are still there have it then, too.
    fn end(mut self, choices: &mut Choices<'_>) {
        while !self.all.is_empty() {
            for who in 0..self.all.len() {
                for request in self.all[who].client.read_all() {
                    self.carry_out(who, request);
                }
            }
            let Life { line, .. } = self.all.swap_remove(choices.below(self.all.len()));
            line.end(ending(choices));
        }
    }
}

fn ending(choices: &mut Choices<'_>) -> Ending {
    [Ending::Silent, Ending::Closed, Ending::Reset][choices.below(3)]
}
