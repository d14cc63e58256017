//! Bytes as what is said on a pulse, and as what happens to a client that listens to one.

use std::time::Duration;

use oxcart_rpc::link::limits::{QUIET_PATIENCE, SLEEP, WAKING_PATIENCE};
use oxcart_rpc::link::pulse::{Pulse, PulseAction, PulseEvent};
use oxcart_rpc::wire::{FRAME_BYTES, FrameHead, PulseMessage};

use super::Choices;

/// Whatever the bytes: what is read is written the same way, nothing panics, and a worker is lost for a beat without an echo and for nothing
/// else.
pub fn check(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    match first % 2 {
        0 => messages(rest),
        _ => lives(rest),
    }
}

fn messages(bytes: &[u8]) {
    let mut rest = bytes.to_vec();
    while let Ok(Some(message)) = PulseMessage::take(&mut rest) {
        let taken = bytes.len() - rest.len();
        assert!(bytes[..taken].ends_with(&message.encode()));
    }
    if let Some((head, body)) = bytes.split_first_chunk::<FRAME_BYTES>() {
        let decoded = FrameHead::decode(head);
        if let Ok(length) = PulseMessage::body_bytes(&decoded) {
            assert!(length <= PulseMessage::MAX_BODY);
            if let Some(body) = body.get(..length) {
                let message = PulseMessage::decode(&decoded, body).unwrap();
                assert_eq!(message.encode(), [&head[..], body].concat());
            }
        }
    }
}

/// A client that ticks at any time and hears any echoes; `unanswered` is what it must know.
fn lives(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let limit = Duration::from_millis(200 + u64::from(choices.short()));
    let (mut now, mut ticked) = (Duration::ZERO, Duration::ZERO);
    let mut pulse = Pulse::new(limit, now);
    let mut unanswered: Vec<(u64, Duration)> = Vec::new();
    let (mut next, mut next_echo, mut waking) = (0, 0, None);
    let mut waited_since = None;
    while !choices.is_over() {
        match choices.byte() {
            choice @ 0..0x60 => {
                let number = next_echo + u64::from(choice % 4);
                let action = pulse.handle(PulseEvent::Echo(number), now);
                if number >= next {
                    return over(pulse, action, PulseAction::Lied, limit, now);
                }
                assert_eq!(action, None);
                next_echo = number + 1;
                unanswered.retain(|(beat, _)| *beat > number);
                waking = waking.filter(|first| *first > number);
            }
            choice @ 0x60..0xf8 => {
                now += Duration::from_millis(u64::from(choice - 0x60));
                let is_waited_for = choices.byte() % 8 > 0;
                let gap = now - ticked;
                ticked = now;
                if gap > limit / 2 {
                    unanswered.clear();
                    if gap >= SLEEP {
                        waking = Some(next);
                    }
                }
                let patience = if waking.is_some() { WAKING_PATIENCE.max(limit) } else { limit };
                waited_since = if is_waited_for { waited_since.or(Some(now)) } else { None };
                let oldest = unanswered.first().map(|(_, sent)| *sent);
                let is_late_for = |since: Duration, limit: Duration| {
                    oldest.is_some_and(|sent| now - sent.max(since) > limit)
                };
                let quiet = QUIET_PATIENCE.max(limit);
                let is_late_now = waited_since.is_some_and(|since| is_late_for(since, patience));
                let patience = if is_late_now { patience } else { quiet };
                let is_late = is_late_now || is_late_for(Duration::ZERO, quiet);
                match pulse.handle(PulseEvent::Tick { is_waited_for }, now) {
                    Some(PulseAction::Beat(number)) => {
                        assert!(!is_late && number == next);
                        unanswered.push((number, now));
                        next += 1;
                    }
                    action if is_late => {
                        return over(pulse, action, PulseAction::Lost(patience), limit, now);
                    }
                    action => assert_eq!(action, None),
                }
            }
            0xf8..0xfc => now += Duration::from_millis(choices.short().into()),
            _ => {
                assert_eq!(pulse.handle(PulseEvent::Sent, now), None);
                if let Some((_, sent)) = unanswered.last_mut().filter(|(beat, _)| *beat + 1 == next) {
                    *sent = now;
                }
            }
        }
    }
}

/// Once something is decided, nothing more is.
fn over(mut pulse: Pulse, action: Option<PulseAction>, wanted: PulseAction, limit: Duration, now: Duration) {
    assert_eq!(action, Some(wanted));
    assert_eq!(pulse.handle(PulseEvent::Tick { is_waited_for: true }, now + limit), None);
    assert_eq!(pulse.handle(PulseEvent::Echo(u64::MAX), now + limit), None);
}

/// Inputs to begin with: messages, and a client whose worker answers for a while.
pub fn seeds() -> Vec<Vec<u8>> {
    let messages = [
        PulseMessage::Begin { token: [7; 16] },
        PulseMessage::Beat { number: 1 },
        PulseMessage::Echo { number: 1 },
        PulseMessage::Lost { introduction: 9 },
    ];
    let said: Vec<u8> = messages.iter().flat_map(PulseMessage::encode).collect();
    let answered = [0x60 + 60, 1, 0].repeat(8);
    vec![
        [&[0][..], &said].concat(),
        [&[1, 0, 0][..], &answered, &[0x60 + 91; 16]].concat(),
        [&[1, 0, 8][..], &answered, &[0xf8, 0xff, 0x7f, 0x60, 1, 0, 1, 2, 3]].concat(),
    ]
}
