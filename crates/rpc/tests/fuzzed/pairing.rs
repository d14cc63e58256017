//! Bytes as a join line, as messages of two machines that meet, and as what happens to both of them.

use std::time::Duration;

use oxcart_rpc::link::pairing::{Guest, GuestAction, GuestEvent, Host, HostAction, HostEvent, Meeting};
use oxcart_rpc::link::{JoinLine, Key, Secret};
use oxcart_rpc::wire::PairingMessage;

use super::Choices;

/// Whatever the bytes: what is read is written the same way, nothing panics, and no machine is remembered that does not know a secret
/// that was shown.
pub fn check(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    match first % 3 {
        0 => line(rest),
        1 => messages(rest),
        _ => meetings(rest),
    }
}

fn line(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(line) = text.parse::<JoinLine>() {
        assert_eq!(line.to_string().parse(), Ok(line.clone()));
        assert!(!line.endpoints.is_empty());
        assert!(
            line.endpoints.iter().all(|endpoint| !endpoint.to_string().contains(|c: char| c.is_control()))
        );
    }
}

fn messages(mut bytes: &[u8]) {
    while let Ok(Some((message, length))) = PairingMessage::take(bytes) {
        let written = message.encode();
        assert_eq!(written.len(), length);
        assert_eq!(PairingMessage::take(&written), Ok(Some((message, length))));
        bytes = &bytes[length..];
    }
}

fn meetings(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let (mut host, mut now) = (Host::new("den".parse().unwrap()), Duration::ZERO);
    let mut shown: Vec<(u8, Duration)> = Vec::new();
    let mut said = None;
    while !choices.is_over() {
        now += Duration::from_secs(choices.byte().into());
        let meeting = |number: u8| Meeting {
            host: Key::from_bytes([1; 32]),
            guest: Key::from_bytes([number % 4; 32]),
            exported: [number / 4; 32],
        };
        let secret = |number| Secret::from_bytes([number; 16]);
        let event = match choices.below(5) {
            0 => HostEvent::Tick,
            1 => {
                let number = choices.byte() % 8;
                shown.push((number, now + Duration::from_secs(600)));
                HostEvent::Shown(secret(number))
            }
            // An honest guest, which may know a secret that was shown or not.
            2 => {
                let (number, meeting) = (choices.byte(), meeting(choices.byte()));
                let mut guest = Guest::new("desk".parse().unwrap(), secret(number));
                let GuestAction::Say(message) = guest.handle(GuestEvent::Connected(meeting)) else {
                    panic!()
                };
                let good = shown.iter().any(|(known, until)| *known == number && now < *until);
                let actions = host.handle(HostEvent::Said(meeting, message.clone()), now);
                let remembered = actions.iter().any(|action| matches!(action, HostAction::Remember(..)));
                assert!(good || !remembered);
                if let Some(HostAction::Answer(answer)) = actions.into_iter().next_back() {
                    let done = guest.handle(GuestEvent::Said(answer));
                    assert_eq!(remembered, matches!(done, GuestAction::Remember(..)));
                }
                if remembered {
                    // It is good once.
                    let at = shown.iter().position(|(known, _)| *known == number).unwrap();
                    shown.remove(at);
                }
                said = Some((meeting, message));
                continue;
            }
            // What was said before, in this connection or in another.
            3 => match &said {
                Some((before, message)) => {
                    let meeting = meeting(choices.byte());
                    let is_same = meeting.guest == before.guest && meeting.exported == before.exported;
                    let actions = host.handle(HostEvent::Said(meeting, message.clone()), now);
                    assert!(
                        is_same || !actions.iter().any(|action| matches!(action, HostAction::Remember(..)))
                    );
                    if actions.iter().any(|action| matches!(action, HostAction::Remember(..))) {
                        return;
                    }
                    continue;
                }
                None => HostEvent::Tick,
            },
            _ => {
                let proof = [choices.byte(); 32];
                HostEvent::Said(meeting(choices.byte()), PairingMessage::Join { proof, name: "desk".into() })
            }
        };
        let actions = host.handle(event, now);
        assert!(!actions.iter().any(|action| matches!(action, HostAction::Remember(..))));
    }
}

/// Inputs to begin with: a line, messages, and two machines that meet.
pub fn seeds() -> Vec<Vec<u8>> {
    let line = JoinLine {
        worker: Key::from_bytes([3; 32]),
        secret: Secret::from_bytes([4; 16]),
        endpoints: vec!["192.168.1.5:50052".parse().unwrap(), "den.lan:1".parse().unwrap()],
    };
    let join = PairingMessage::Join { proof: [5; 32], name: "desk".into() }.encode();
    let invited = PairingMessage::Invited { line: line.to_string() }.encode();
    vec![
        [&[0][..], line.to_string().as_bytes()].concat(),
        [&[1][..], &join, &PairingMessage::Invite.encode(), &invited].concat(),
        vec![2, 1, 1, 7, 1, 2, 7, 9, 1, 3, 9, 1, 3, 10, 1, 4, 5, 6, 0, 0],
    ]
}
