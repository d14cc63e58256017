//! Whom this machine knows, and what it knows of them.
//!
//! Invariants: no two machines have one key or one name. Rights are one-sided: whatever gives a machine the right to use this one does
//! not have this one use it, and the other way round.

mod file;
mod places;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use super::key::Key;
use super::limits::{MAX_MACHINES, MAX_MACHINES_BYTES};
use super::name::MachineName;
use crate::client::Endpoint;
pub use file::MachinesFile;
pub(super) use file::Stamp;
pub use places::{Found, Place, PlaceError};

/// A machine that this one has been paired with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What people call it here.
    pub name: MachineName,
    /// What it calls itself, which people go on typing when it has another name here.
    pub calls_itself: Option<MachineName>,
    /// Who it is.
    pub key: Key,
    /// Where it lends its devices to this machine; empty if it does not.
    pub endpoints: Vec<Endpoint>,
    /// Whether it may use the devices of this machine.
    pub may_use_this: bool,
    /// Bytes of each device that it may use; all that are lent, if nothing is said.
    pub max_memory: Option<u64>,
    /// Connections that it may have at a time.
    pub max_connections: Option<u32>,
    /// Whether it is not trusted any more. What is left of it is where it was: nothing is sent there, with or without a key.
    pub revoked: bool,
    /// Whether it was revoked, and has since got back nothing but the right to use this machine. Nothing is sent to where it was before
    /// this machine is paired with it from here again.
    pub avoided: bool,
}

impl Machine {
    /// A machine without rights.
    pub fn new(name: MachineName, key: Key) -> Machine {
        Machine {
            name,
            calls_itself: None,
            key,
            endpoints: Vec::new(),
            may_use_this: false,
            max_memory: None,
            max_connections: None,
            revoked: false,
            avoided: false,
        }
    }

    /// Whether it lends its devices to this machine.
    pub fn lends(&self) -> bool {
        self.is_trusted() && !self.endpoints.is_empty()
    }

    /// Whether anything may be sent to where it is.
    pub fn is_trusted(&self) -> bool {
        !self.revoked && !self.avoided
    }
}

/// Why machines cannot be known or remembered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachinesError {
    /// Others may have written it.
    #[error("{}: this list of machines is not safe: {why}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It does not say what such a file says.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The system did not let it be read or kept.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// There are as many as there may be.
    #[error("this machine already knows {MAX_MACHINES} others; oxcart trust forget removes one")]
    TooMany,
    /// There is so much to say of them that it could not be read again.
    #[error("{}: this list of machines would be longer than {MAX_MACHINES_BYTES} bytes; oxcart trust forget removes a machine", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A name that another machine has.
    #[error("another machine is called {name}; give one of them another name")]
    NameTaken {
        /// The name.
        name: MachineName,
    },
}

/// Machines, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machines(BTreeMap<MachineName, Machine>);

impl Machines {
    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> + Clone {
        self.0.values()
    }

    /// The one with a key.
    pub fn by_key(&self, key: Key) -> Option<&Machine> {
        self.iter().find(|machine| machine.key == key)
    }

    /// The one with a name; where none has it, all that call themselves so.
    pub fn called(&self, name: &str) -> Vec<&Machine> {
        let Ok(name) = name.parse::<MachineName>() else { return Vec::new() };
        match self.0.get(&name) {
            Some(machine) => vec![machine],
            None => self.iter().filter(|machine| machine.calls_itself.as_ref() == Some(&name)).collect(),
        }
    }

    /// The one that a person means: by its name, its key, or the start of its key where that is clear.
    pub fn meant_by(&self, text: &str) -> Option<&Machine> {
        let text = text.to_ascii_lowercase();
        if let Ok(key) = text.parse() {
            return self.by_key(key);
        }
        let starts = |machine: &Machine| text.len() >= 8 && machine.key.to_string().starts_with(&text);
        let mut found = self.iter().filter(|machine| machine.name.as_str() == text || starts(machine));
        found.next().filter(|_| found.next().is_none())
    }

    /// Takes all rights from a machine, and the right to use it from this one. It stays known where it was, and its limits are those
    /// that it would have again.
    pub fn revoke(&mut self, key: Key) -> Option<&Machine> {
        let machine = self.get_mut(key)?;
        (machine.revoked, machine.avoided, machine.may_use_this) = (true, false, false);
        Some(machine)
    }

    /// Remembers a machine: a new one, or more of one that is known, which may have been revoked before. Its name gets a number where
    /// another has it. What it may, and whether it is used, is for the caller to say: a machine that was revoked stays unused where it
    /// was until it is [found](Machines::found_at) again.
    pub fn remember(&mut self, wanted: MachineName, key: Key) -> Result<&mut Machine, MachinesError> {
        let known = self.by_key(key).map(|machine| machine.name.clone());
        let name = match known {
            Some(name) => name,
            None if self.0.len() >= MAX_MACHINES => return Err(MachinesError::TooMany),
            None => {
                let numbered = (2..MAX_MACHINES + 2).map(|number| wanted.numbered(number));
                let mut names = std::iter::once(wanted.clone()).chain(numbered);
                names.find(|name| !self.0.contains_key(name)).ok_or(MachinesError::TooMany)?
            }
        };
        let machine = self.0.entry(name.clone()).or_insert_with(|| Machine::new(name, key));
        machine.avoided |= machine.revoked && !machine.endpoints.is_empty();
        machine.revoked = false;
        Ok(machine)
    }

    /// Gives a machine another name.
    pub fn rename(&mut self, key: Key, name: MachineName) -> Result<bool, MachinesError> {
        match self.0.get(&name) {
            Some(other) if other.key != key => return Err(MachinesError::NameTaken { name }),
            _ => {}
        }
        let Some(machine) = self.forget(key) else { return Ok(false) };
        self.0.insert(name.clone(), Machine { name, ..machine });
        Ok(true)
    }

    /// One to change.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Machine> {
        self.0.values_mut().find(|machine| machine.key == key)
    }

    /// Forgets a machine.
    pub fn forget(&mut self, key: Key) -> Option<Machine> {
        let name = self.by_key(key)?.name.clone();
        self.0.remove(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn key(number: u8) -> Key {
        Key::from_bytes([number; 32])
    }

    pub(super) fn name(text: &str) -> MachineName {
        text.parse().unwrap()
    }

    #[test]
    fn machines_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(&folder.path().join("data"));
        assert_eq!(file.read().unwrap(), Machines::default());
        file.change(|machines| {
            let den = machines.remember(name("den"), key(1))?;
            (den.may_use_this, den.max_memory, den.max_connections) = (true, Some(1 << 33), Some(4));
            let other = machines.remember(name("den"), key(2))?;
            assert_eq!(other.name.as_str(), "den-2");
            other.endpoints = vec!["192.168.1.5:50052".parse().unwrap(), "[fe80::1]:7".parse().unwrap()];
            (other.calls_itself, other.avoided) = (Some(name("den")), true);
            // More of one that is known; its name stays.
            assert_eq!(machines.remember(name("attic"), key(1))?.name.as_str(), "den");
            let changed = machines.clone();
            machines.rename(key(1), name("study"))?;
            assert_eq!(machines.by_key(key(1)).unwrap().name.as_str(), "study");
            *machines = changed;
            Ok(())
        })
        .unwrap();
        let seen = file.read().unwrap();
        assert_eq!(seen.meant_by("DEN").unwrap().max_memory, Some(1 << 33));
        let other = seen.meant_by(&key(2).short()).unwrap();
        assert_eq!((other.endpoints.len(), other.avoided), (2, true));
        assert_eq!(other.calls_itself, Some(name("den")));
        assert!(seen.meant_by("attic").is_none() && seen.meant_by(&key(2).short()[..7]).is_none());
        file.change(|machines| {
            assert!(machines.rename(key(2), name("den")).is_err());
            assert!(machines.rename(key(2), name("attic"))?);
            machines.revoke(key(1));
            Ok(())
        })
        .unwrap();
        let revoked = file.read().unwrap().by_key(key(1)).cloned().unwrap();
        assert!(revoked.revoked && !revoked.may_use_this);
        file.change(|machines| Ok(machines.forget(key(1)))).unwrap();
        let seen = file.read().unwrap();
        assert_eq!(seen.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(), ["attic"]);
    }

    /// Whatever a machine gets back after it was revoked, it is the one right that it was given, with the limits that it had.
    #[test]
    fn a_revoked_machine_gets_back_one_right_at_a_time() {
        let place = "192.168.1.5:50052".parse::<Endpoint>().unwrap();
        let mut machines = Machines::default();
        let attic = machines.remember(name("attic"), key(1)).unwrap();
        (attic.may_use_this, attic.max_memory, attic.max_connections) = (true, Some(1 << 33), Some(4));
        machines.found_at(key(1), std::slice::from_ref(&place));
        assert!(machines.by_key(key(1)).unwrap().lends());
        machines.revoke(key(1));
        let revoked = machines.by_key(key(1)).unwrap();
        assert!(!revoked.lends() && !revoked.may_use_this && !revoked.is_trusted());
        // It may use this machine again, and is not used for that.
        machines.remember(name("attic"), key(1)).unwrap().may_use_this = true;
        let guest = machines.by_key(key(1)).unwrap();
        assert!(!guest.revoked && !guest.lends() && !guest.is_trusted());
        assert_eq!((guest.max_memory, guest.max_connections), (Some(1 << 33), Some(4)));
        // Its place is still known as one where nothing is sent, also after being revoked once more.
        assert_eq!(machines.at(&place).unwrap().machine.unwrap().key, key(1));
        machines.revoke(key(1));
        // It is used again, and may not use this machine for that.
        machines.remember(name("attic"), key(1)).unwrap();
        machines.found_at(key(1), &[place]);
        let worker = machines.by_key(key(1)).unwrap();
        assert!(worker.lends() && !worker.may_use_this);
        // One that had no place is not avoided anywhere.
        machines.remember(name("desk"), key(2)).unwrap();
        machines.revoke(key(2));
        assert!(machines.remember(name("desk"), key(2)).unwrap().is_trusted());
    }

    /// People go on typing what a machine calls itself.
    #[test]
    fn a_machine_is_found_by_what_it_calls_itself() {
        let mut machines = Machines::default();
        for number in [1, 2] {
            machines.remember(name("den"), key(number)).unwrap().calls_itself = Some(name("den"));
        }
        let found =
            |machines: &Machines| machines.called("DEN").iter().map(|found| found.key).collect::<Vec<_>>();
        assert_eq!(found(&machines), [key(1)], "who has the name comes first");
        machines.rename(key(1), name("study")).unwrap();
        assert_eq!(found(&machines), [key(2), key(1)], "it may be either");
        machines.forget(key(2));
        assert_eq!(found(&machines), [key(1)]);
        assert!(machines.called("attic").is_empty() && machines.called("10.0.0.1").is_empty());
    }

    /// What a person types means one machine, or none.
    #[test]
    fn a_name_never_stands_for_the_key_of_another() {
        let mut machines = Machines::default();
        machines.remember(name("den"), key(1)).unwrap();
        let evil = machines.remember(key(1).short().parse().unwrap(), key(2)).unwrap().name.clone();
        assert_eq!(machines.meant_by(&key(1).to_string()).unwrap().key, key(1));
        assert!(machines.meant_by(evil.as_str()).is_none(), "it may be either");
        assert!(key(1).to_string().parse::<MachineName>().is_err());
    }
}
