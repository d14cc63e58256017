//! Bytes as what a client says of two workers, as what these say to each other, and as what happens when one comes to the other.

use std::cell::Cell;

use oxcart_rpc::link::Secret;
use oxcart_rpc::link::introduction::{Caller, CallerAction, IntroductionId, Porter, PorterAction};
use oxcart_rpc::wire::{
    DeliveryHead, Expect, FRAME_BYTES, FrameHead, Interruption, MAX_DELIVERY_BYTES, Meet, Transfer,
    WorkerMessage,
};

use super::Choices;

/// Whatever the bytes: what is read is written the same way, nothing panics, and a worker is let in, or believed, only if it knows the
/// secret and speaks in the connection that it proves it for.
pub fn check(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    match first % 3 {
        0 => bodies(rest),
        1 => messages(rest),
        _ => meetings(rest),
    }
}

fn bodies(bytes: &[u8]) {
    if let Some(expect) = Expect::decode(bytes) {
        assert_eq!(expect.encode(), bytes);
    }
    if let Some(meet) = Meet::decode(bytes) {
        assert_eq!(meet.encode(), bytes);
        let _ = meet.address.socket_address();
    }
    if let Some(transfer) = Transfer::decode(bytes) {
        assert_eq!(transfer.encode(), bytes);
    }
    if let Some(said) = bytes.first_chunk().and_then(Interruption::decode) {
        assert_eq!(said.encode()[8..], bytes[..Interruption::BYTES]);
    }
}

fn messages(mut bytes: &[u8]) {
    while let Some((head, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() {
        if let Ok(delivery) = DeliveryHead::decode(head) {
            assert!((1..=MAX_DELIVERY_BYTES).contains(&delivery.bytes));
            assert_eq!(delivery.encode(), *head);
        }
        let decoded = FrameHead::decode(head);
        let Ok(length) = WorkerMessage::body_bytes(&decoded) else { return };
        let Some(body) = rest.get(..length) else { return };
        let message = WorkerMessage::decode(&decoded, body).unwrap();
        assert_eq!(message.encode(), [&head[..], body].concat());
        bytes = &rest[length..];
    }
}

fn meetings(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let secret = |number: u8| Secret::from_bytes([number % 4; 16]);
    let connection = |number: u8| (!number.is_multiple_of(3)).then_some([number % 3; 32]);
    while !choices.is_over() {
        let (knows, expected) = (choices.byte(), choices.byte());
        let (here, there) = (choices.byte(), choices.byte());
        let is_same = knows % 4 == expected % 4 && here % 3 == there % 3;
        let mut caller = Caller::new(secret(knows), connection(here), [choices.byte(); 32]);
        let mut porter = Porter::new(connection(there), [choices.byte(); 32]);
        let mut to_porter = caller.knock();
        let honest = Cell::new(true);
        for _ in 0..4 {
            // Now and then something else arrives than was sent.
            let between = |message: WorkerMessage, choices: &mut Choices<'_>| match choices.byte() {
                0..=0xdf => message,
                choice => {
                    honest.set(false);
                    match choice % 5 {
                        0 => WorkerMessage::Knock {
                            introduction: [choices.byte(); 16],
                            nonce: [choices.byte(); 32],
                        },
                        1 => WorkerMessage::Challenge { nonce: [choices.byte(); 32] },
                        2 => WorkerMessage::Proof { proof: [choices.byte(); 32] },
                        3 => WorkerMessage::Admitted { proof: [choices.byte(); 32] },
                        _ => WorkerMessage::Refused,
                    }
                }
            };
            let said = between(to_porter, &mut choices);
            let answer = match porter.handle(said) {
                PorterAction::Say(message) => message,
                PorterAction::Judge(id, proof) => {
                    assert!(!honest.get() || id == IntroductionId::of(&secret(knows)));
                    let admitted = porter.admit(&secret(expected), &proof);
                    // A proof that was made up, or for another connection, is worth nothing.
                    assert!(admitted.is_none() || is_same);
                    assert!(!honest.get() || admitted.is_some() == is_same);
                    admitted.unwrap_or(WorkerMessage::Refused)
                }
                PorterAction::Refuse => WorkerMessage::Refused,
            };
            match caller.handle(between(answer, &mut choices)) {
                CallerAction::Say(message) => to_porter = message,
                CallerAction::GoOn => {
                    assert!(is_same);
                    break;
                }
                CallerAction::Fail => break,
            }
        }
    }
}

/// Inputs to begin with: bodies, messages, and workers that meet.
pub fn seeds() -> Vec<Vec<u8>> {
    let expect = Expect { number: 3, secret: [4; 16], key: Some([5; 32]) }.encode();
    let knock = WorkerMessage::Knock { introduction: [1; 16], nonce: [2; 32] }.encode();
    let proof = WorkerMessage::Proof { proof: [3; 32] }.encode();
    let delivery = DeliveryHead { ticket: 7, bytes: 4096 }.encode();
    let interruption = &Interruption { number: 9, why: oxcart_rpc::wire::NotDelivered::Late }.encode()[8..];
    vec![
        [&[0][..], &expect].concat(),
        [&[0][..], interruption].concat(),
        [&[1][..], &knock, &proof, &WorkerMessage::Refused.encode(), &delivery].concat(),
        vec![2, 1, 1, 2, 2, 9, 8, 0, 0, 0, 0, 0, 0, 1, 2, 1, 1, 7, 6, 0, 0, 0, 0xe5],
    ]
}
