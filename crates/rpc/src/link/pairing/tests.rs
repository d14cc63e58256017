//! Hosts and guests on a clock that tests move, with connections that they invent.

use super::*;

const HOST: Key = Key::from_bytes([1; 32]);
const GUEST: Key = Key::from_bytes([2; 32]);

fn name(text: &str) -> MachineName {
    text.parse().unwrap()
}

fn secret(number: u8) -> Secret {
    Secret::from_bytes([number; 16])
}

fn meeting(connection: u8) -> Meeting {
    Meeting { host: HOST, guest: GUEST, exported: [connection; 32] }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A host that has shown a line at second zero.
fn host() -> Host {
    let mut host = Host::new(name("den"));
    assert_eq!(host.handle(HostEvent::Shown(secret(7)), seconds(0)), []);
    host
}

/// What a guest says in a connection.
fn join(secret: Secret, meeting: Meeting) -> PairingMessage {
    match Guest::new(name("desk"), secret).handle(GuestEvent::Connected(meeting)) {
        GuestAction::Say(message) => message,
        other => panic!("{other:?}"),
    }
}

fn said(host: &mut Host, meeting: Meeting, message: PairingMessage, at: Duration) -> Vec<HostAction> {
    host.handle(HostEvent::Said(meeting, message), at)
}

fn refused(why: NotPaired) -> HostAction {
    HostAction::Answer(PairingMessage::Refused(why))
}

#[test]
fn two_machines_meet() {
    let mut host = host();
    let mut guest = Guest::new(name("desk"), secret(7));
    let GuestAction::Say(asked) = guest.handle(GuestEvent::Connected(meeting(3))) else { panic!() };
    let mut actions = said(&mut host, meeting(3), asked, seconds(599));
    let Some(HostAction::Answer(welcome)) = actions.pop() else { panic!() };
    assert_eq!(actions, [HostAction::Remember(GUEST, name("desk"))]);
    assert!(!host.is_open());
    assert_eq!(guest.handle(GuestEvent::Said(welcome)), GuestAction::Remember(HOST, name("den")));
}

#[test]
fn a_line_is_good_once() {
    let mut host = host();
    assert!(matches!(
        said(&mut host, meeting(3), join(secret(7), meeting(3)), seconds(1))[..],
        [HostAction::Remember(..), _]
    ));
    let again = said(&mut host, meeting(4), join(secret(7), meeting(4)), seconds(2));
    assert_eq!(again, [refused(NotPaired::Closed)]);
}

/// Also while others are open: the one that was used is not good any more, and the others still are.
#[test]
fn each_of_several_lines_is_good_once() {
    for (used, other) in [(7, 8), (8, 7)] {
        let mut host = host();
        host.handle(HostEvent::Shown(secret(8)), seconds(1));
        let joins = |host: &mut Host, number, connection| {
            let meeting = meeting(connection);
            said(host, meeting, join(secret(number), meeting), seconds(2))
        };
        assert!(matches!(joins(&mut host, used, 3)[..], [HostAction::Remember(..), _]));
        assert_eq!(joins(&mut host, used, 4), [refused(NotPaired::Proof)], "{used} again");
        assert!(matches!(joins(&mut host, other, 5)[..], [HostAction::Remember(..), _]), "{other}");
        assert!(!host.is_open());
    }
}

#[test]
fn a_line_is_good_for_ten_minutes() {
    let mut host = host();
    let late = said(&mut host, meeting(3), join(secret(7), meeting(3)), seconds(600));
    assert_eq!(late, [HostAction::Expired(1), refused(NotPaired::Closed)]);
    // It is also noticed by itself, and said once.
    host.handle(HostEvent::Shown(secret(8)), seconds(700));
    assert_eq!(host.handle(HostEvent::Tick, seconds(1299)), []);
    assert_eq!(host.handle(HostEvent::Tick, seconds(1300)), [HostAction::Expired(1)]);
    assert_eq!(host.handle(HostEvent::Tick, seconds(1400)), []);
}

#[test]
fn wrong_secrets_are_refused_and_counted() {
    let mut host = host();
    for guess in 1..=3 * MAX_GUESSES {
        let answer = said(&mut host, meeting(3), join(secret(99), meeting(3)), seconds(1));
        match guess == MAX_GUESSES {
            false => assert_eq!(answer, [refused(NotPaired::Proof)], "{guess}"),
            true => assert_eq!(answer, [HostAction::Guessed, refused(NotPaired::Proof)]),
        }
    }
    // The machine that has the line is paired all the same.
    assert!(matches!(
        said(&mut host, meeting(3), join(secret(7), meeting(3)), seconds(2))[..],
        [HostAction::Remember(..), _]
    ));
}

/// What was said in one connection, or by another machine, or under another name, proves nothing.
#[test]
fn a_proof_holds_for_one_connection_one_key_and_one_name() {
    let asked = join(secret(7), meeting(3));
    for other in [
        meeting(4),
        Meeting { guest: Key::from_bytes([9; 32]), ..meeting(3) },
        Meeting { host: Key::from_bytes([9; 32]), ..meeting(3) },
    ] {
        assert_eq!(said(&mut host(), other, asked.clone(), seconds(1)), [refused(NotPaired::Proof)]);
    }
    let PairingMessage::Join { proof, .. } = asked else { panic!() };
    let renamed = PairingMessage::Join { proof, name: "attic".into() };
    assert_eq!(said(&mut host(), meeting(3), renamed, seconds(1)), [refused(NotPaired::Proof)]);
}

/// A guest believes only who knows the secret too: its own proof, sent back, is none.
#[test]
fn a_host_has_to_prove_itself() {
    let mut guest = Guest::new(name("desk"), secret(7));
    let GuestAction::Say(PairingMessage::Join { proof, name: own }) =
        guest.handle(GuestEvent::Connected(meeting(3)))
    else {
        panic!()
    };
    for answer in [
        PairingMessage::Welcome { proof, name: own.clone() },
        PairingMessage::Welcome { proof: [0; 32], name: "den".into() },
        PairingMessage::Welcome {
            proof: secret(7).prove(&meeting(4).words(Side::Host, "den")),
            name: "den".into(),
        },
        PairingMessage::Welcome {
            proof: secret(7).prove(&meeting(3).words(Side::Host, "\u{1b}")),
            name: "\u{1b}".into(),
        },
        PairingMessage::Join { proof, name: own },
        PairingMessage::Invite,
    ] {
        assert_eq!(guest.handle(GuestEvent::Said(answer)), GuestAction::Fail(GuestFailure::Senseless));
    }
    let closed = GuestEvent::Said(PairingMessage::Refused(NotPaired::Closed));
    assert_eq!(guest.handle(closed), GuestAction::Fail(GuestFailure::Refused(NotPaired::Closed)));
    let unasked = PairingMessage::Welcome { proof: [0; 32], name: "den".into() };
    let mut fresh = Guest::new(name("desk"), secret(7));
    assert_eq!(fresh.handle(GuestEvent::Said(unasked)), GuestAction::Fail(GuestFailure::Senseless));
}

#[test]
fn names_that_are_none_cost_no_line() {
    let mut host = host();
    let proof = secret(7).prove(&meeting(3).words(Side::Guest, "\u{1b}[2J"));
    let asked = PairingMessage::Join { proof, name: "\u{1b}[2J".into() };
    assert_eq!(said(&mut host, meeting(3), asked, seconds(1)), [refused(NotPaired::Name)]);
    assert!(host.is_open());
}

/// New lines can be had from the machine itself, and from no other.
#[test]
fn only_the_machine_itself_gets_new_lines() {
    let mut host = Host::new(name("den"));
    let own = Meeting { guest: HOST, ..meeting(3) };
    assert_eq!(said(&mut host, own, PairingMessage::Invite, seconds(1)), [HostAction::ShowNew]);
    let other = said(&mut host, meeting(3), PairingMessage::Invite, seconds(1));
    assert_eq!(other, [refused(NotPaired::NotYours)]);
    let senseless = said(&mut host, own, PairingMessage::Invited { line: "oxj".into() }, seconds(1));
    assert_eq!(senseless, [refused(NotPaired::NotYours)]);
}

#[test]
fn few_lines_are_open_at_a_time() {
    let mut host = Host::new(name("den"));
    for number in 0..10 {
        host.handle(HostEvent::Shown(secret(number)), seconds(number.into()));
    }
    for number in 0..10 {
        let answer = said(&mut host, meeting(number), join(secret(number), meeting(number)), seconds(11));
        let is_good = matches!(answer[..], [HostAction::Remember(..), _]);
        assert_eq!(is_good, usize::from(number) >= 10 - MAX_INVITATIONS, "{number}");
    }
}
