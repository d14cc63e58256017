//! Whom this machine knows: a file that people can read and `oxcart trust` changes, and a view of it that is never old.
//!
//! Invariants: no two machines have one key or one name. The file is replaced as a whole, by one process at a time. What cannot be
//! read changes nothing: those who were known stay so, and nobody else becomes so. Where the system keeps it from being read for a while,
//! it is read as soon as that is over, and until then nobody new comes in: a machine that is revoked stays revoked.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::files::{Unread, lock, read, replace};
use super::key::Key;
use super::limits::{MAX_LINE_ADDRESSES, MAX_MACHINES, MAX_MACHINES_BYTES};
use super::name::MachineName;
use crate::client::Endpoint;
use crate::os::private_file::stamp;
use crate::os::socket::{SpareDescriptor, is_exhausted};

/// A machine that this one has been paired with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What people call it here.
    pub name: MachineName,
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
}

impl Machine {
    /// A machine without rights.
    pub fn new(name: MachineName, key: Key) -> Machine {
        Machine {
            name,
            key,
            endpoints: Vec::new(),
            may_use_this: false,
            max_memory: None,
            max_connections: None,
            revoked: false,
        }
    }

    /// Whether it lends its devices to this machine.
    pub fn lends(&self) -> bool {
        !self.revoked && !self.endpoints.is_empty()
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
    /// A name that another machine has.
    #[error("another machine is called {name}; give one of them another name")]
    NameTaken {
        /// The name.
        name: MachineName,
    },
}

/// What is known of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The machine that is, or was, there. Whoever answers must be that machine.
    pub machine: Option<&'a Machine>,
    /// Where it is, if that was looked up. A place of no known machine must be used by these addresses: what its name stands for may be
    /// another the next time.
    pub addresses: Vec<SocketAddr>,
}

/// Why it is not known whether a known machine is at a place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It cannot be found.
    #[error("cannot find {endpoint}: {error}")]
    NotFound {
        /// The place.
        endpoint: Endpoint,
        /// What the system says.
        error: io::Error,
    },
    /// A machine that may be there cannot be found.
    #[error(
        "{endpoint} may be {machine}, which was paired at {known}, a name that cannot be found now; write {machine} instead, or run \
         oxcart trust forget {machine}"
    )]
    Unclear {
        /// The place.
        endpoint: Endpoint,
        /// The machine.
        machine: MachineName,
        /// Where it was.
        known: Endpoint,
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

    /// The one with a name.
    pub fn by_name(&self, name: &str) -> Option<&Machine> {
        self.0.get(&name.parse::<MachineName>().ok()?)
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

    /// What is known of a place, however it is written: as it was when it was paired, by another name, or by its address.
    pub fn at(&self, endpoint: &Endpoint) -> Result<Place<'_>, PlaceError> {
        let placed = || self.iter().filter(|machine| !machine.endpoints.is_empty());
        let written_so =
            placed().find(|machine| machine.endpoints.iter().any(|known| known.is_same(endpoint)));
        if written_so.is_some() || placed().next().is_none() {
            return Ok(Place { machine: written_so, addresses: Vec::new() });
        }
        let not_found = |error| PlaceError::NotFound { endpoint: endpoint.clone(), error };
        let addresses = endpoint.addresses().map_err(not_found)?;
        if addresses.is_empty() {
            return Err(not_found(io::ErrorKind::NotFound.into()));
        }
        let ips: Vec<IpAddr> = addresses.iter().map(|address| address.ip().to_canonical()).collect();
        let is_there =
            |found: &[SocketAddr]| found.iter().any(|found| ips.contains(&found.ip().to_canonical()));
        let mut unclear = None;
        for machine in placed() {
            let mut lost = None;
            let mut is_found = false;
            for known in machine.endpoints.iter().filter(|known| known.port() == endpoint.port()) {
                match known.addresses() {
                    Ok(found) if is_there(&found) => return Ok(Place { machine: Some(machine), addresses }),
                    Ok(_) => is_found = true,
                    Err(_) => lost = Some(known),
                }
            }
            if let Some(known) = lost.filter(|_| !is_found) {
                unclear = Some((machine.name.clone(), known.clone()));
            }
        }
        match unclear {
            Some((machine, known)) => Err(PlaceError::Unclear { endpoint: endpoint.clone(), machine, known }),
            None => Ok(Place { machine: None, addresses }),
        }
    }

    /// Notes where a machine has been found, newest first; it has proved that it is there. Says which others were thought to be there.
    pub fn found_at(&mut self, key: Key, endpoints: &[Endpoint]) -> Vec<MachineName> {
        let is_there = |known: &Endpoint| endpoints.iter().any(|found| found.is_same(known));
        let mut others = Vec::new();
        for machine in self.0.values_mut() {
            let before = machine.endpoints.len();
            machine.endpoints.retain(|known| !is_there(known));
            if machine.key == key {
                machine.endpoints.splice(..0, endpoints.iter().cloned());
                machine.endpoints.truncate(MAX_LINE_ADDRESSES);
            } else if machine.endpoints.len() < before {
                others.push(machine.name.clone());
            }
        }
        others
    }

    /// Takes all rights from a machine, and the right to use it from this one. It stays known where it was.
    pub fn revoke(&mut self, key: Key) -> Option<&Machine> {
        let machine = self.get_mut(key)?;
        let (name, endpoints) = (machine.name.clone(), std::mem::take(&mut machine.endpoints));
        *machine = Machine { endpoints, revoked: true, ..Machine::new(name, key) };
        Some(machine)
    }

    /// Remembers a machine: a new one, or more of one that is known, which may have been revoked before. Its name gets a number where
    /// another has it.
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

    fn from_text(text: &str) -> Result<Machines, String> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
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
            "addresses" => {
                let listed = item.as_array().filter(|all| all.len() <= MAX_LINE_ADDRESSES);
                for address in listed.ok_or_else(|| wrong(field))? {
                    let endpoint = address.as_str().and_then(|text| text.parse().ok());
                    machine.endpoints.push(endpoint.ok_or_else(|| wrong(field))?);
                }
            }
            "may_use_this_machine" => machine.may_use_this = item.as_bool().ok_or_else(|| wrong(field))?,
            "revoked" => machine.revoked = item.as_bool().ok_or_else(|| wrong(field))?,
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
    if !machine.endpoints.is_empty() {
        table.insert("addresses", value(Array::from_iter(machine.endpoints.iter().map(ToString::to_string))));
    }
    table.insert("may_use_this_machine", value(machine.may_use_this));
    if machine.revoked {
        table.insert("revoked", value(true));
    }
    if let Some(bytes) = machine.max_memory {
        table.insert("max_memory", value(i64::try_from(bytes).unwrap_or(i64::MAX)));
    }
    if let Some(count) = machine.max_connections {
        table.insert("max_connections", value(i64::from(count)));
    }
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

    /// Who is known; nobody where there is no file.
    pub fn read(&self) -> Result<Machines, MachinesError> {
        let path = || self.path.clone();
        match read(&self.path, MAX_MACHINES_BYTES) {
            Ok(text) => {
                Machines::from_text(&text).map_err(|what| MachinesError::Damaged { path: path(), what })
            }
            Err(Unread::Missing) => Ok(Machines::default()),
            Err(Unread::Exposed(why)) => Err(MachinesError::Exposed { path: path(), why }),
            Err(Unread::NoText) => {
                Err(MachinesError::Damaged { path: path(), what: "it is not text".into() })
            }
            Err(Unread::TooLong) => {
                Err(MachinesError::Damaged { path: path(), what: "it is too long".into() })
            }
            Err(Unread::Io(error)) => Err(MachinesError::File { path: path(), error }),
        }
    }

    /// Changes who is known, or nothing if the change fails.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Machines) -> Result<T, MachinesError>,
    ) -> Result<T, MachinesError> {
        let failed = |error| MachinesError::File { path: self.path.clone(), error };
        let _locked = lock(&self.folder).map_err(failed)?;
        let mut machines = self.read()?;
        let done = change(&mut machines)?;
        replace(&self.path, &machines.to_text()).map_err(failed)?;
        Ok(done)
    }

    /// What changes when the file does; nothing where there is none.
    fn stamp(&self) -> Stamp {
        fs::metadata(&self.path).ok().map(|found| stamp(&found))
    }
}

type Stamp = Option<[i64; 4]>;

/// Who is known, as the file says now.
#[derive(Debug)]
pub struct Book {
    file: MachinesFile,
    read: Mutex<Known>,
}

/// What was read last.
#[derive(Debug)]
struct Known {
    /// Of the file that was read.
    stamp: Stamp,
    machines: Arc<Machines>,
    /// Of a file that the system does not let be read.
    unread: Option<Stamp>,
    /// What was wrong since, if something was.
    error: Option<MachinesError>,
    /// To read with when there are no descriptors.
    spare: SpareDescriptor,
}

impl Book {
    /// Reads a file, which then may change.
    pub fn open(file: MachinesFile) -> Result<Book, MachinesError> {
        // The stamp first: what is changed in between is read again.
        let stamp = file.stamp();
        let machines = Arc::new(file.read()?);
        let known = Known { stamp, machines, unread: None, error: None, spare: SpareDescriptor::new() };
        Ok(Book { file, read: Mutex::new(known) })
    }

    /// The file.
    pub fn file(&self) -> &MachinesFile {
        &self.file
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was read last, after looking whether there is something new.
    fn refreshed(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known();
        let stamp = self.file.stamp();
        if stamp == known.stamp {
            known.unread = None;
            return known;
        }
        let read = match self.file.read() {
            Err(MachinesError::File { error, .. }) if is_exhausted(&error) => {
                known.spare.lend(|| self.file.read())
            }
            read => read,
        };
        match read {
            Ok(machines) => {
                (known.machines, known.stamp, known.unread) = (Arc::new(machines), stamp, None);
            }
            // The reason may pass, so it is read again the next time; it is said once.
            Err(error @ MachinesError::File { .. }) => {
                if known.unread != Some(stamp) {
                    (known.unread, known.error) = (Some(stamp), Some(error));
                }
            }
            // What it says is wrong, until it changes.
            Err(error) => {
                (known.stamp, known.unread, known.error) = (stamp, None, Some(error));
            }
        }
        known
    }

    /// Who is known, as far as that could be read.
    pub fn look(&self) -> Arc<Machines> {
        Arc::clone(&self.refreshed().machines)
    }

    /// Who is known now; `None` as long as the file has changed and the system does not let it be read.
    pub fn look_now(&self) -> Option<Arc<Machines>> {
        let known = self.refreshed();
        known.unread.is_none().then(|| Arc::clone(&known.machines))
    }

    /// Why the file could not be read when it changed, if it could not; said once.
    pub fn take_error(&self) -> Option<MachinesError> {
        self.known().error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Key {
        Key::from_bytes([number; 32])
    }

    fn name(text: &str) -> MachineName {
        text.parse().unwrap()
    }

    #[test]
    fn machines_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(&folder.path().join("data"));
        assert_eq!(file.read().unwrap(), Machines::default());
        let book = Book::open(file.clone()).unwrap();
        file.change(|machines| {
            let den = machines.remember(name("den"), key(1))?;
            (den.may_use_this, den.max_memory, den.max_connections) = (true, Some(1 << 33), Some(4));
            let other = machines.remember(name("den"), key(2))?;
            assert_eq!(other.name.as_str(), "den-2");
            other.endpoints = vec!["192.168.1.5:50052".parse().unwrap(), "[fe80::1]:7".parse().unwrap()];
            // More of one that is known; its name stays.
            assert_eq!(machines.remember(name("attic"), key(1))?.name.as_str(), "den");
            Ok(())
        })
        .unwrap();
        let seen = book.look();
        assert!(book.take_error().is_none() && *seen == file.read().unwrap());
        assert_eq!(seen.meant_by("DEN").unwrap().max_memory, Some(1 << 33));
        assert_eq!(seen.meant_by(&key(2).short()).unwrap().endpoints.len(), 2);
        assert!(seen.meant_by("attic").is_none() && seen.meant_by(&key(2).short()[..7]).is_none());
        file.change(|machines| {
            assert!(machines.rename(key(2), name("den")).is_err());
            assert!(machines.rename(key(2), name("attic"))?);
            machines.revoke(key(1));
            Ok(())
        })
        .unwrap();
        let revoked = book.look().by_key(key(1)).cloned().unwrap();
        assert!(revoked.revoked && !revoked.may_use_this && revoked.max_memory.is_none());
        file.change(|machines| Ok(machines.forget(key(1)))).unwrap();
        let seen = book.look_now().unwrap();
        assert_eq!(seen.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(), ["attic"]);
    }

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    /// However a known place is written, it is a known place.
    #[test]
    fn a_known_place_is_known_under_all_its_names() {
        let mut machines = Machines::default();
        assert_eq!(
            machines.at(&endpoint("127.0.0.1:50052")).unwrap(),
            Place { machine: None, addresses: vec![] }
        );
        machines.remember(name("guest"), key(1)).unwrap().may_use_this = true;
        machines.remember(name("den"), key(2)).unwrap().endpoints =
            vec![endpoint("127.0.0.1:50052"), endpoint("den.invalid:50052")];
        for (place, is_den) in [
            ("127.0.0.1:50052", true),
            ("[::ffff:127.0.0.1]:50052", true),
            // By its text, though it cannot be looked up.
            ("den.invalid:50052", true),
            ("DEN.invalid.:50052", true),
            ("127.0.0.1:50053", false),
            ("127.0.0.2:50052", false),
        ] {
            let place = machines.at(&endpoint(place)).unwrap();
            assert_eq!(place.machine.is_some(), is_den, "{place:?}");
            assert!(is_den || !place.addresses.is_empty(), "what was looked at is what is used");
        }
        // It is one also when it was revoked.
        machines.revoke(key(2)).unwrap();
        assert!(machines.at(&endpoint("127.0.0.1:50052")).unwrap().machine.unwrap().revoked);
    }

    /// Where names cannot be looked up, it is not assumed that a place is another one.
    #[test]
    fn a_place_is_unclear_when_names_cannot_be_found() {
        let mut machines = Machines::default();
        machines.remember(name("den"), key(2)).unwrap().endpoints = vec![endpoint("no.such.invalid:50052")];
        let unclear = machines.at(&endpoint("127.0.0.1:50052"));
        assert!(matches!(unclear, Err(PlaceError::Unclear { .. })), "{unclear:?}");
        let lost = machines.at(&endpoint("other.invalid:50052"));
        assert!(matches!(lost, Err(PlaceError::NotFound { .. })), "{lost:?}");
        // Another port is another place.
        assert!(machines.at(&endpoint("127.0.0.1:50053")).unwrap().machine.is_none());
    }

    /// A machine that has proved to be at a place takes it over from the one that was there, and keeps its others.
    #[test]
    fn places_change_hands_when_a_machine_proves_to_be_there() {
        let mut machines = Machines::default();
        machines.remember(name("den"), key(1)).unwrap();
        assert!(machines.found_at(key(1), &[endpoint("10.0.0.1:1"), endpoint("den.lan:1")]).is_empty());
        machines.found_at(key(1), &[endpoint("10.0.0.2:1")]);
        machines.remember(name("den"), key(2)).unwrap();
        assert_eq!(machines.found_at(key(2), &[endpoint("DEN.lan:1")]), [name("den")]);
        assert_eq!(
            machines.by_key(key(1)).unwrap().endpoints,
            [endpoint("10.0.0.2:1"), endpoint("10.0.0.1:1")]
        );
        for number in 0..20 {
            machines.found_at(key(2), &[endpoint(&format!("10.0.1.{number}:1"))]);
        }
        let kept = &machines.by_key(key(2)).unwrap().endpoints;
        assert_eq!((kept.len(), &kept[0]), (MAX_LINE_ADDRESSES, &endpoint("10.0.1.19:1")));
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

    /// A file that someone breaks while a worker runs lets nobody in, and nobody out either.
    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let book = Book::open(file.clone()).unwrap();
        let whole = fs::read_to_string(file.path()).unwrap();
        let twice = format!("{whole}\n{}", whole.replace("den", "attic"));
        for broken in [
            "x",
            "machine = 100",
            "[[machine]]",
            "[[machine]]\nname = \"den\"\nkey = \"x\"",
            &twice,
            &whole.replace("may_use_this_machine", "may_use"),
            &whole.replace("false", "7"),
            &whole.replace("den", "all"),
        ] {
            fs::write(file.path(), broken).unwrap();
            assert!(book.look().by_key(key(1)).is_some() && book.take_error().is_some(), "{broken}");
            book.look();
            assert!(
                book.take_error().is_none()
                    && Book::open(file.clone()).is_err()
                    && file.change(|_| Ok(())).is_err()
            );
        }
        fs::remove_file(file.path()).unwrap();
        assert!(book.look().by_key(key(1)).is_none());
    }

    /// A file that the system does not let be read for a while is read when it does; until then nobody new comes in.
    #[cfg(unix)]
    #[test]
    fn a_list_is_read_again_when_it_could_not_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let book = Book::open(file.clone()).unwrap();
        assert!(book.look_now().is_some());
        // A link to itself has a stamp of its own kind, and cannot be opened.
        let aside = folder.path().join("aside");
        fs::rename(file.path(), &aside).unwrap();
        std::os::unix::fs::symlink(file.path(), file.path()).unwrap();
        for is_first in [true, false] {
            assert!(book.look().by_key(key(1)).is_some() && book.look_now().is_none());
            assert_eq!(book.take_error().is_some(), is_first, "it is said once");
        }
        fs::remove_file(file.path()).unwrap();
        fs::rename(&aside, file.path()).unwrap();
        assert!(book.look_now().unwrap().by_key(key(1)).is_some());
        file.change(|machines| Ok(machines.forget(key(1)))).unwrap();
        assert!(book.look_now().unwrap().by_key(key(1)).is_none());
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
}
