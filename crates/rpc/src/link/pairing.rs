//! How two machines meet, as two state machines: what happens goes in with the time, what to do comes out. No socket, no file and no
//! clock is in here.
//!
//! The [`Host`] has shown join lines. A [`Guest`] was given one. They are connected by TLS in which both have proved their keys, and
//! in which the guest has checked that the host's is the one in the line. The guest proves that it knows the line's secret, by a MAC
//! over what TLS makes of this very connection (its exporter) and over both keys and its name; the host answers with a proof of its
//! own. So what is said in one connection is worth nothing in another, and who is between two machines learns nothing from it.
//!
//! Invariants: a line is good once, and for ten minutes by a clock that no one can set. Wrong proofs change nothing, however many: a
//! secret cannot be guessed, and those who try must not keep others from being paired.

use std::time::Duration;

use super::join_line::Secret;
use super::key::Key;
use super::limits::{INVITATION, MAX_GUESSES, MAX_INVITATIONS};
use super::name::MachineName;
use crate::wire::{NotPaired, PairingMessage};

/// What TLS makes of a connection, and of no other.
pub type Exported = [u8; 32];

/// What [`Exported`] is asked for with.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-oxcart-join-1";

/// A connection in which two machines meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    /// The machine that has shown a line.
    pub host: Key,
    /// The machine that was given one.
    pub guest: Key,
    /// What TLS makes of the connection.
    pub exported: Exported,
}

/// Who proves something.
#[derive(Clone, Copy)]
enum Side {
    Guest,
    Host,
}

impl Meeting {
    /// What one side proves to have said here, knowing the secret.
    fn words(&self, side: Side, name: &str) -> Vec<u8> {
        let side: &[u8] = match side {
            Side::Guest => b"oxcart join guest 1",
            Side::Host => b"oxcart join host 1 ",
        };
        [side, &self.exported, self.host.as_bytes(), self.guest.as_bytes(), name.as_bytes()].concat()
    }
}

/// What happens to a host.
#[derive(Debug)]
pub enum HostEvent {
    /// A line with this secret is shown.
    Shown(Secret),
    /// A machine says something.
    Said(Meeting, PairingMessage),
    /// Time goes by.
    Tick,
}

/// What a host wants done, in this order. What cannot be done ends it.
#[derive(Debug, PartialEq, Eq)]
pub enum HostAction {
    /// Remember that this machine may use this one.
    Remember(Key, MachineName),
    /// Answer, and end the connection.
    Answer(PairingMessage),
    /// Show a new line to who asks, who is this machine itself.
    ShowNew,
    /// Tell people: so many lines are not good any more, because they were not used in time.
    Expired(usize),
    /// Tell people: someone guesses.
    Guessed,
}

/// A line that is open.
#[derive(Debug)]
struct Open {
    secret: Secret,
    until: Duration,
}

/// The side that has shown join lines.
#[derive(Debug)]
pub struct Host {
    name: MachineName,
    open: Vec<Open>,
    guesses: u32,
}

impl Host {
    /// A host without lines, called this.
    pub fn new(name: MachineName) -> Host {
        Host { name, open: Vec::new(), guesses: 0 }
    }

    /// Whether a line is open.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes in what happens at a time, counted from any moment that stays the same.
    pub fn handle(&mut self, event: HostEvent, now: Duration) -> Vec<HostAction> {
        let mut actions = Vec::new();
        let before = self.open.len();
        self.open.retain(|open| now < open.until);
        if self.open.len() < before {
            actions.push(HostAction::Expired(before - self.open.len()));
        }
        match event {
            HostEvent::Tick => {}
            HostEvent::Shown(secret) => {
                if self.open.len() >= MAX_INVITATIONS {
                    self.open.remove(0);
                }
                self.open.push(Open { secret, until: now.saturating_add(INVITATION) });
                self.guesses = 0;
            }
            HostEvent::Said(meeting, PairingMessage::Join { proof, name }) => {
                self.join(&meeting, &proof, &name, &mut actions);
            }
            HostEvent::Said(meeting, PairingMessage::Invite) if meeting.guest == meeting.host => {
                actions.push(HostAction::ShowNew);
            }
            HostEvent::Said(..) => {
                actions.push(HostAction::Answer(PairingMessage::Refused(NotPaired::NotYours)));
            }
        }
        actions
    }

    fn join(&mut self, meeting: &Meeting, proof: &[u8; 32], name: &str, actions: &mut Vec<HostAction>) {
        let refused = |why| HostAction::Answer(PairingMessage::Refused(why));
        if self.open.is_empty() {
            return actions.push(refused(NotPaired::Closed));
        }
        let words = meeting.words(Side::Guest, name);
        let Some(at) = self.open.iter().position(|open| open.secret.is_proved(&words, proof)) else {
            self.guesses = self.guesses.saturating_add(1);
            if self.guesses == MAX_GUESSES {
                actions.push(HostAction::Guessed);
            }
            return actions.push(refused(NotPaired::Proof));
        };
        // A name is no reason to waste the line.
        let Ok(name) = name.parse() else { return actions.push(refused(NotPaired::Name)) };
        let used = self.open.remove(at);
        let own = self.name.to_string();
        let proof = used.secret.prove(&meeting.words(Side::Host, &own));
        actions.push(HostAction::Remember(meeting.guest, name));
        actions.push(HostAction::Answer(PairingMessage::Welcome { proof, name: own }));
    }
}

/// What happens to a guest.
#[derive(Debug)]
pub enum GuestEvent {
    /// It is connected to the machine of its line.
    Connected(Meeting),
    /// The host says something.
    Said(PairingMessage),
}

/// What a guest wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum GuestAction {
    /// Say this.
    Say(PairingMessage),
    /// Remember that this machine may use the host, which is called this.
    Remember(Key, MachineName),
    /// It did not work.
    Fail(GuestFailure),
}

/// Why a guest is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestFailure {
    /// The host says why.
    #[error(transparent)]
    Refused(#[from] NotPaired),
    /// It answers something that is no answer.
    #[error("the worker's answer does not make sense")]
    Senseless,
}

/// The side that was given a join line.
#[derive(Debug)]
pub struct Guest {
    name: MachineName,
    secret: Secret,
    meeting: Option<Meeting>,
}

impl Guest {
    /// A guest that is called this and knows a line's secret.
    pub fn new(name: MachineName, secret: Secret) -> Guest {
        Guest { name, secret, meeting: None }
    }

    /// Takes in what happens. Time is not its concern: one answer is waited for.
    pub fn handle(&mut self, event: GuestEvent) -> GuestAction {
        match event {
            GuestEvent::Connected(meeting) => {
                let name = self.name.to_string();
                let proof = self.secret.prove(&meeting.words(Side::Guest, &name));
                self.meeting = Some(meeting);
                GuestAction::Say(PairingMessage::Join { proof, name })
            }
            GuestEvent::Said(PairingMessage::Refused(why)) => GuestAction::Fail(why.into()),
            GuestEvent::Said(PairingMessage::Welcome { proof, name }) => {
                let proved = self
                    .meeting
                    .filter(|meeting| self.secret.is_proved(&meeting.words(Side::Host, &name), &proof));
                match (proved, name.parse()) {
                    (Some(meeting), Ok(name)) => GuestAction::Remember(meeting.host, name),
                    _ => GuestAction::Fail(GuestFailure::Senseless),
                }
            }
            GuestEvent::Said(_) => GuestAction::Fail(GuestFailure::Senseless),
        }
    }
}

#[cfg(test)]
mod tests;
