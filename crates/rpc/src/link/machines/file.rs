//! The list of machines as a file that people can read and `oxcart trust` changes.
//!
//! Invariants: the file is replaced as a whole, by one process at a time, and never by what could not be read again. What is not
//! understood is an error, never nothing: it may be a limit, or a machine that is revoked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::{Machine, Machines, MachinesError};
use crate::link::files::{Unread, lock, read, replace};
use crate::link::key::Key;
use crate::link::limits::{MAX_MACHINES, MAX_MACHINES_BYTES, MAX_PLACES};
use crate::link::name::MachineName;
use crate::os::private_file::stamp;

impl Machines {
    fn from_text(text: &str) -> Result<Machines, String> {
        // What a program leaves that writes a file in its place, for a moment or for good. A list without machines has its first line.
        if text.trim().is_empty() {
            return Err("it is empty; a list without machines is no file at all".into());
        }
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        // What is not understood may be machines, which must not be overlooked, least of all those that are revoked.
        if let Some((other, _)) = document.iter().find(|(key, _)| *key != "machine") {
            return Err(format!(
                "'{}' is unknown here; each machine is a table [[machine]]",
                other.escape_debug()
            ));
        }
        let mut machines = Machines::default();
        let Some(tables) = document.get("machine") else { return Ok(machines) };
        let tables = tables.as_array_of_tables().ok_or("'machine' should be a list of tables")?;
        for table in tables {
            let machine = from_table(table)?;
            if machines.0.len() >= MAX_MACHINES {
                return Err(format!("there are more than {MAX_MACHINES} machines"));
            }
            if machines.by_key(machine.key).is_some() {
                return Err(format!("the key of '{}' stands there twice", machine.name));
            }
            if let Some(twice) = machines.0.insert(machine.name.clone(), machine) {
                return Err(format!("'{}' stands there twice", twice.name));
            }
        }
        Ok(machines)
    }

    fn to_text(&self) -> String {
        let tables: ArrayOfTables = self.iter().map(to_table).collect();
        let mut document = DocumentMut::new();
        document.insert("machine", Item::ArrayOfTables(tables));
        format!(
            "# Machines that this one has been paired with. `oxcart trust` shows and changes them.\n\n{document}"
        )
    }
}

fn from_table(table: &Table) -> Result<Machine, String> {
    let text = |key: &str| {
        let found = table.get(key).and_then(Item::as_str);
        found.ok_or_else(|| format!("a machine has no '{key}', or it is no text"))
    };
    let name: MachineName = text("name")?.parse().map_err(|error| format!("{error}"))?;
    let wrong = |what: &str| format!("'{what}' of '{name}' is not what it should be");
    let key: Key = text("key")?.parse().map_err(|error| format!("{error}"))?;
    let mut machine = Machine::new(name.clone(), key);
    for (field, item) in table {
        match field {
            "name" | "key" => {}
            "calls_itself" => {
                let name = item.as_str().and_then(|text| text.parse().ok());
                machine.calls_itself = Some(name.ok_or_else(|| wrong(field))?);
            }
            "addresses" => {
                let listed = item.as_array().filter(|all| all.len() <= MAX_PLACES);
                for address in listed.ok_or_else(|| wrong(field))? {
                    let endpoint = address.as_str().and_then(|text| text.parse().ok());
                    machine.endpoints.push(endpoint.ok_or_else(|| wrong(field))?);
                }
            }
            "may_use_this_machine" => machine.may_use_this = item.as_bool().ok_or_else(|| wrong(field))?,
            "revoked" => machine.revoked = item.as_bool().ok_or_else(|| wrong(field))?,
            "avoided" => machine.avoided = item.as_bool().ok_or_else(|| wrong(field))?,
            "max_memory" => machine.max_memory = Some(whole(item).ok_or_else(|| wrong(field))?),
            "max_connections" => {
                let count = whole(item).and_then(|count| u32::try_from(count).ok());
                machine.max_connections = Some(count.ok_or_else(|| wrong(field))?);
            }
            // What is not understood may be a limit, which must not be overlooked.
            other => return Err(format!("'{}' of '{name}' is unknown here", other.escape_debug())),
        }
    }
    machine.may_use_this &= !machine.revoked;
    Ok(machine)
}

fn whole(item: &Item) -> Option<u64> {
    u64::try_from(item.as_integer()?).ok()
}

fn to_table(machine: &Machine) -> Table {
    let mut table = Table::new();
    table.insert("name", value(machine.name.as_str()));
    table.insert("key", value(machine.key.to_string()));
    if let Some(name) = &machine.calls_itself {
        table.insert("calls_itself", value(name.as_str()));
    }
    if !machine.endpoints.is_empty() {
        table.insert("addresses", value(Array::from_iter(machine.endpoints.iter().map(ToString::to_string))));
    }
    if machine.revoked {
        table.insert("revoked", value(true));
    }
    if machine.avoided {
        table.insert("avoided", value(true));
    }
    if let Some(bytes) = machine.max_memory {
        table.insert("max_memory", value(i64::try_from(bytes).unwrap_or(i64::MAX)));
    }
    if let Some(count) = machine.max_connections {
        table.insert("max_connections", value(i64::from(count)));
    }
    // A right comes behind its limits: a file that is cut off somewhere gives none without them.
    table.insert("may_use_this_machine", value(machine.may_use_this));
    table
}

/// Where machines are remembered.
#[derive(Clone, Debug)]
pub struct MachinesFile {
    folder: PathBuf,
    path: PathBuf,
}

impl MachinesFile {
    /// The file of a folder, which need not exist yet.
    pub fn new(folder: &Path) -> MachinesFile {
        MachinesFile { folder: folder.to_owned(), path: folder.join("machines.toml") }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which machines are known; none where there is no file.
    pub fn read(&self) -> Result<Machines, MachinesError> {
        match read(&self.path, MAX_MACHINES_BYTES) {
            Ok(text) => Machines::from_text(&text)
                .map_err(|what| MachinesError::Damaged { path: self.path.clone(), what }),
            Err(Unread::Missing) => Ok(Machines::default()),
            Err(unread) => Err(self.failure(unread)),
        }
    }

    /// Changes who is known, or nothing if the change fails.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Machines) -> Result<T, MachinesError>,
    ) -> Result<T, MachinesError> {
        self.write(change, |_, after| after)
    }

    /// Whether a change could be made: does all that it takes, and writes what was there.
    pub fn rehearse<T>(
        &self,
        change: impl FnOnce(&mut Machines) -> Result<T, MachinesError>,
    ) -> Result<T, MachinesError> {
        self.write(change, |before, _| before)
    }

    fn write<T>(
        &self,
        change: impl FnOnce(&mut Machines) -> Result<T, MachinesError>,
        chosen: impl FnOnce(Machines, Machines) -> Machines,
    ) -> Result<T, MachinesError> {
        let _locked = lock(&self.folder).map_err(|unread| self.failure(unread))?;
        let before = self.read()?;
        let mut after = before.clone();
        let done = change(&mut after)?;
        // What could not be read again must not be written.
        if after.to_text().len() as u64 > MAX_MACHINES_BYTES {
            return Err(MachinesError::TooLong { path: self.path.clone() });
        }
        let text = chosen(before, after).to_text();
        replace(&self.path, &text).map_err(|error| MachinesError::File { path: self.path.clone(), error })?;
        Ok(done)
    }

    fn failure(&self, unread: Unread) -> MachinesError {
        let path = self.path.clone();
        let damaged = |what: &str| MachinesError::Damaged { path: path.clone(), what: what.to_owned() };
        match unread {
            Unread::Exposed(why) => MachinesError::Exposed { path, why },
            Unread::Missing => MachinesError::File { path, error: io::ErrorKind::NotFound.into() },
            Unread::NoText => damaged("it is not text"),
            Unread::TooLong => damaged("it is too long"),
            Unread::Io(error) => MachinesError::File { path, error },
        }
    }

    /// What changes when the file does; nothing where there is none.
    pub(in crate::link) fn stamp(&self) -> Stamp {
        fs::metadata(&self.path).ok().map(|found| stamp(&found))
    }
}

/// Of a file, as the system tells it.
pub(in crate::link) type Stamp = Option<[i64; 4]>;

#[cfg(test)]
mod tests {
    use super::super::tests::{key, name};
    use super::*;

    #[test]
    fn changes_of_many_processes_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        std::thread::scope(|scope| {
            for number in 0..16 {
                let file = &file;
                scope.spawn(move || {
                    file.change(|machines| machines.remember(name("den"), key(number)).map(|_| ())).unwrap();
                });
            }
        });
        assert_eq!(file.read().unwrap().iter().count(), 16);
    }

    /// A list that others may write to would let them in.
    #[cfg(unix)]
    #[test]
    fn a_list_that_others_could_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(file.read(), Err(MachinesError::Exposed { .. })));
    }

    /// What is written can be read again, or is not written; and what would fail is found out without doing it.
    #[test]
    fn a_list_that_could_not_be_read_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let grow = |machines: &mut Machines| {
            for number in 2..200 {
                let place = |at| format!("{}.{at}:1", "x".repeat(200)).parse().unwrap();
                machines.remember(name("attic"), key(number))?.endpoints =
                    (0..MAX_PLACES).map(place).collect();
            }
            Ok(())
        };
        for tried in [file.rehearse(grow), file.change(grow)] {
            assert!(matches!(tried, Err(MachinesError::TooLong { .. })), "{tried:?}");
        }
        assert_eq!(file.read().unwrap().iter().count(), 1);
        file.rehearse(|machines| Ok(machines.forget(key(1)))).unwrap();
        assert_eq!(file.read().unwrap().iter().count(), 1, "it was only tried");
        let many = |machines: &mut Machines| {
            (0..=MAX_MACHINES).try_for_each(|number| {
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                machines.remember(name("desk"), Key::from_bytes(bytes)).map(|_| ())
            })
        };
        assert!(matches!(file.rehearse(many), Err(MachinesError::TooMany)));
    }

    /// However a list is cut off, no machine in it has a right without its limits.
    #[test]
    fn a_list_that_is_cut_off_gives_no_right_without_its_limits() {
        let mut machines = Machines::default();
        for number in 1..4 {
            let machine = machines.remember(name("den"), key(number)).unwrap();
            (machine.may_use_this, machine.max_memory, machine.max_connections) = (true, Some(1), Some(1));
        }
        let text = machines.to_text();
        for end in 0..text.len() {
            let Ok(cut) = Machines::from_text(&text[..end]) else { continue };
            for machine in cut.iter().filter(|machine| machine.may_use_this) {
                assert_eq!((machine.max_memory, machine.max_connections), (Some(1), Some(1)), "{end}");
            }
        }
        assert_eq!(Machines::from_text(&text).unwrap(), machines);
    }
}
