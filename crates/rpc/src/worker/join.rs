//! Meeting a machine that was given a join line: the pairing's state machine on a connection.

use std::io::{self, IoSlice, Read, Write};

use super::client::Client;
use super::event::{Event, PairingNews};
use super::refusal::Refusal;
use super::server::WorkerState;
use super::trust::Trust;
use crate::link::pairing::{EXPORTER_LABEL, HostAction, HostEvent, Meeting};
use crate::link::secured::Secured;
use crate::link::{Key, MachineName, MachinesError};
use crate::wire::{NotPaired, PairingError, PairingMessage};

/// One question and its answer.
pub(crate) fn serve(
    shared: &WorkerState,
    client: &Client,
    trust: &Trust,
    secured: &mut Secured,
    (mut input, mut output): (impl Read, impl Write),
) {
    let refused = |refusal: &Refusal| shared.refused(client, "join", refusal);
    let heard =
        hear(secured, &mut input).and_then(|message| Ok((message, secured.exported(EXPORTER_LABEL)?)));
    let (message, exported) = match heard {
        Ok(heard) => heard,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return refused(&Refusal::Tls { reason: error.to_string() });
        }
        // It went.
        Err(_) => return,
    };
    let Some(guest) = secured.peer_key() else { return };
    let meeting = Meeting { host: trust.key(), guest, exported };
    for action in trust.invitations().handle(HostEvent::Said(meeting, message)) {
        let answer = match action {
            HostAction::Remember(key, name) => match remember(trust, key, name) {
                Ok(machine) => {
                    shared.report(&Event::Paired { peer: client.peer, machine, key });
                    continue;
                }
                Err(error) => {
                    shared.report(&Event::Pairing {
                        news: PairingNews::Machines { reason: error.to_string() },
                    });
                    PairingMessage::Refused(NotPaired::NotKept)
                }
            },
            HostAction::ShowNew => match trust.invitations().open() {
                Some(invitation) => PairingMessage::Invited { line: invitation.line.to_string() },
                None => PairingMessage::Refused(NotPaired::NotKept),
            },
            HostAction::Expired(lines) => {
                shared.report(&Event::Pairing { news: PairingNews::Expired { lines } });
                continue;
            }
            HostAction::Guessed => {
                shared.report(&Event::Pairing { news: PairingNews::Guessed });
                continue;
            }
            HostAction::Answer(message) => message,
        };
        if let PairingMessage::Refused(why) = &answer {
            refused(&Refusal::NotPaired(*why));
        }
        // A client that does not wait for the answer does not want it.
        let _ = say(secured, &mut output, &answer);
        // There is one answer to one question.
        return;
    }
}

/// Remembers that a machine may use this one, and says what it is called.
fn remember(trust: &Trust, key: Key, name: MachineName) -> Result<MachineName, MachinesError> {
    trust.book().file().change(|machines| {
        let machine = machines.remember(name.clone(), key)?;
        (machine.may_use_this, machine.calls_itself) = (true, Some(name));
        Ok(machine.name.clone())
    })
}

fn hear(secured: &mut Secured, input: &mut impl Read) -> io::Result<PairingMessage> {
    let mut heard = Vec::new();
    loop {
        let wrong = |error: PairingError| io::Error::new(io::ErrorKind::InvalidData, error);
        if let Some((message, _)) = PairingMessage::take(&heard).map_err(wrong)? {
            return Ok(message);
        }
        let mut piece = [0; 1024];
        match secured.read(input, &mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => heard.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
    }
}

fn say(secured: &mut Secured, output: &mut impl Write, message: &PairingMessage) -> io::Result<()> {
    // An answer is shorter than what is held back at a time.
    secured.take(&[IoSlice::new(&message.encode())])?;
    secured.flush(output)
}
