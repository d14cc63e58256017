//! How two workers that a client has introduced know that they are those: both prove, in a connection of their own, that they were told
//! the same secret. No socket and no clock is in here.
//!
//! The [`Caller`] comes, the [`Porter`] lets it in. Each makes a number for this one connection; where the connection is in TLS, its
//! exporter counts too. What is proved is a MAC over all of that, so it is worth nothing in any other connection. Invariants: the secret is
//! never sent; a caller that does not know it learns no more than that it is refused, whether such an introduction exists or not; a wrong
//! proof changes nothing.

use ring::rand::{SecureRandom, SystemRandom};

use super::join_line::Secret;
use super::pairing::Exported;
use crate::wire::WorkerMessage;

/// What [`Exported`] is asked for with.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-oxcart-introduced-1";

/// A number that is used in one connection.
pub type Nonce = [u8; 32];

/// What an introduction is found by: it follows from the secret, so a client cannot choose what a worker sends to a place that it is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntroductionId([u8; 16]);

impl IntroductionId {
    /// Of a secret.
    pub fn of(secret: &Secret) -> IntroductionId {
        let mut id = [0; 16];
        id.copy_from_slice(&secret.prove(b"oxcart introduction 1")[..16]);
        IntroductionId(id)
    }
}

/// A new random number; `None` where the system has none.
pub fn nonce() -> Option<Nonce> {
    let mut nonce = [0; 32];
    SystemRandom::new().fill(&mut nonce).ok()?;
    Some(nonce)
}

/// Who proves something.
#[derive(Clone, Copy)]
enum Side {
    Caller,
    Porter,
}

/// What a proof is about: one connection.
fn words(side: Side, exported: Option<&Exported>, caller: &Nonce, porter: &Nonce) -> Vec<u8> {
    let side: &[u8] = match (side, exported.is_some()) {
        (Side::Caller, true) => b"oxcart introduced caller 1 tls  ",
        (Side::Caller, false) => b"oxcart introduced caller 1 plain",
        (Side::Porter, true) => b"oxcart introduced porter 1 tls  ",
        (Side::Porter, false) => b"oxcart introduced porter 1 plain",
    };
    [side, exported.unwrap_or(&[0; 32]), caller, porter].concat()
}

/// The worker that comes.
#[derive(Debug)]
pub struct Caller {
    secret: Secret,
    exported: Option<Exported>,
    nonce: Nonce,
    challenge: Option<Nonce>,
}

/// What a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerAction {
    /// Say this.
    Say(WorkerMessage),
    /// The other worker has let it in, and is the right one.
    GoOn,
    /// It has not, or is another.
    Fail,
}

impl Caller {
    /// One that knows a secret, in a connection of which TLS makes this, if it is one in TLS; with a [`nonce`].
    pub fn new(secret: Secret, exported: Option<Exported>, nonce: Nonce) -> Caller {
        Caller { secret, exported, nonce, challenge: None }
    }

    /// What to say first.
    pub fn knock(&self) -> WorkerMessage {
        let IntroductionId(introduction) = IntroductionId::of(&self.secret);
        WorkerMessage::Knock { introduction, nonce: self.nonce }
    }

    /// Takes in what the other worker says.
    pub fn handle(&mut self, said: WorkerMessage) -> CallerAction {
        match (said, self.challenge) {
            (WorkerMessage::Challenge { nonce }, None) => {
                self.challenge = Some(nonce);
                let words = words(Side::Caller, self.exported.as_ref(), &self.nonce, &nonce);
                CallerAction::Say(WorkerMessage::Proof { proof: self.secret.prove(&words) })
            }
            (WorkerMessage::Admitted { proof }, Some(challenge)) => {
                let words = words(Side::Porter, self.exported.as_ref(), &self.nonce, &challenge);
                match self.secret.is_proved(&words, &proof) {
                    true => CallerAction::GoOn,
                    false => CallerAction::Fail,
                }
            }
            _ => CallerAction::Fail,
        }
    }
}

/// The worker that is come to.
#[derive(Debug)]
pub struct Porter {
    exported: Option<Exported>,
    nonce: Nonce,
    knocked: Option<(IntroductionId, Nonce)>,
}

/// What a porter does next.
#[derive(Debug)]
pub enum PorterAction {
    /// Say this.
    Say(WorkerMessage),
    /// Let it in by this introduction, if the introduction's secret makes [`Porter::admit`] say so.
    Judge(IntroductionId, [u8; 32]),
    /// Say that it is refused, and end the connection.
    Refuse,
}

impl Porter {
    /// One in a connection of which TLS makes this, if it is one in TLS; with a [`nonce`].
    pub fn new(exported: Option<Exported>, nonce: Nonce) -> Porter {
        Porter { exported, nonce, knocked: None }
    }

    /// Takes in what the caller says.
    pub fn handle(&mut self, said: WorkerMessage) -> PorterAction {
        match (said, self.knocked) {
            (WorkerMessage::Knock { introduction, nonce }, None) => {
                self.knocked = Some((IntroductionId(introduction), nonce));
                PorterAction::Say(WorkerMessage::Challenge { nonce: self.nonce })
            }
            (WorkerMessage::Proof { proof }, Some((introduction, _))) => {
                PorterAction::Judge(introduction, proof)
            }
            _ => PorterAction::Refuse,
        }
    }

    /// What to say to a caller that has proved to know a secret; `None` if it has not.
    pub fn admit(&self, secret: &Secret, proof: &[u8; 32]) -> Option<WorkerMessage> {
        let (_, caller) = self.knocked?;
        let words = |side| words(side, self.exported.as_ref(), &caller, &self.nonce);
        let is_proved = secret.is_proved(&words(Side::Caller), proof);
        is_proved.then(|| WorkerMessage::Admitted { proof: secret.prove(&words(Side::Porter)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(number: u8) -> Secret {
        Secret::from_bytes([number; 16])
    }

    /// Whether each side believes the other.
    fn meet(caller: (u8, Option<Exported>), porter: (u8, Option<Exported>)) -> (bool, bool) {
        let mut calls = Caller::new(secret(caller.0), caller.1, [1; 32]);
        let mut opens = Porter::new(porter.1, [2; 32]);
        let PorterAction::Say(challenge) = opens.handle(calls.knock()) else { panic!() };
        let CallerAction::Say(proof) = calls.handle(challenge) else { panic!() };
        let PorterAction::Judge(id, proof) = opens.handle(proof) else { panic!() };
        assert_eq!(id, IntroductionId::of(&secret(caller.0)));
        match opens.admit(&secret(porter.0), &proof) {
            Some(admitted) => (calls.handle(admitted) == CallerAction::GoOn, true),
            None => (false, false),
        }
    }

    #[test]
    fn workers_with_the_same_secret_in_one_connection_believe_each_other() {
        for exported in [None, Some([7; 32])] {
            assert_eq!(meet((1, exported), (1, exported)), (true, true));
            assert_eq!(meet((1, exported), (2, exported)), (false, false));
        }
        // Who stands between two workers has two connections.
        assert_eq!(meet((1, Some([7; 32])), (1, Some([8; 32]))), (false, false));
        assert_eq!(meet((1, Some([0; 32])), (1, None)), (false, false));
    }

    #[test]
    fn proofs_hold_for_one_connection_and_one_side() {
        let mut caller = Caller::new(secret(1), None, [1; 32]);
        let CallerAction::Say(proof) = caller.handle(WorkerMessage::Challenge { nonce: [2; 32] }) else {
            panic!()
        };
        let WorkerMessage::Proof { proof } = proof else { panic!() };
        // Said again elsewhere.
        let mut porter = Porter::new(None, [3; 32]);
        porter.handle(caller.knock());
        assert!(porter.admit(&secret(1), &proof).is_none());
        // Said back to who said it.
        assert_eq!(caller.handle(WorkerMessage::Admitted { proof }), CallerAction::Fail);
    }

    #[test]
    fn whatever_is_said_out_of_turn_ends_it() {
        let mut porter = Porter::new(None, [0; 32]);
        assert!(matches!(porter.handle(WorkerMessage::Proof { proof: [0; 32] }), PorterAction::Refuse));
        assert!(porter.admit(&secret(1), &[0; 32]).is_none());
        let mut caller = Caller::new(secret(1), None, [1; 32]);
        assert_eq!(caller.handle(WorkerMessage::Admitted { proof: [0; 32] }), CallerAction::Fail);
        assert_eq!(caller.handle(WorkerMessage::Refused), CallerAction::Fail);
        caller.handle(WorkerMessage::Challenge { nonce: [0; 32] });
        assert_eq!(caller.handle(WorkerMessage::Challenge { nonce: [0; 32] }), CallerAction::Fail);
    }
}
