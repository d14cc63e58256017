//! Which known machine is, or was, at a place.
//!
//! Invariants: a place of a known machine is never taken for one of no known machine, however it is written and whatever names stand for: what
//! cannot be told is an error. Names of all known machines together are waited for no longer than [`LOOK_UP`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Machine, Machines};
use crate::client::Endpoint;
use crate::link::key::Key;
use crate::link::limits::{LOOK_UP, LOOK_UPS, MAX_PLACES};
use crate::link::name::MachineName;

/// What is known of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The machine that is, or was, there. What answers must be that machine.
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
    #[error(
        "{endpoint}: this name cannot be found ({error}); write the worker's IP address, or the name that oxcart trust lists"
    )]
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

/// What changes when a machine has been found at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Machines that were thought to be there.
    pub displaced: Vec<MachineName>,
    /// Places of the machine itself that are remembered no more, because there are too many.
    pub forgotten: Vec<Endpoint>,
}

/// What looks a place up.
type Resolve = fn(&Endpoint) -> io::Result<Vec<SocketAddr>>;

impl Machines {
    /// What is known of a place, however it is written: as it was when it was paired, by another name, or by its address.
    pub fn at(&self, endpoint: &Endpoint) -> Result<Place<'_>, PlaceError> {
        self.at_by(endpoint, Endpoint::addresses, LOOK_UP)
    }

    fn at_by(
        &self,
        endpoint: &Endpoint,
        resolve: Resolve,
        patience: Duration,
    ) -> Result<Place<'_>, PlaceError> {
        let placed = || self.iter().filter(|machine| !machine.endpoints.is_empty());
        let written_so =
            placed().find(|machine| machine.endpoints.iter().any(|known| known.is_same(endpoint)));
        if written_so.is_some() || placed().next().is_none() {
            return Ok(Place { machine: written_so, addresses: Vec::new() });
        }
        let not_found = |error| PlaceError::NotFound { endpoint: endpoint.clone(), error };
        let addresses = resolve(endpoint).map_err(not_found)?;
        if addresses.is_empty() {
            return Err(not_found(io::ErrorKind::NotFound.into()));
        }
        let ips: Vec<IpAddr> = addresses.iter().map(|address| address.ip().to_canonical()).collect();
        let is_there =
            |found: &[SocketAddr]| found.iter().any(|found| ips.contains(&found.ip().to_canonical()));
        let known = placed().flat_map(|machine| machine.endpoints.iter().map(move |known| (machine, known)));
        let known: Vec<_> = known.filter(|(_, known)| known.port() == endpoint.port()).collect();
        let found = look_up(known.iter().map(|(_, known)| *known), resolve, patience);
        let mut unclear = None;
        for (machine, known) in known {
            match found.get(known) {
                Some(found) if is_there(found) => return Ok(Place { machine: Some(machine), addresses }),
                Some(_) => {}
                // Another of its places may have been found, but that is not where it has to be now.
                None => unclear = Some((machine.name.clone(), known.clone())),
            }
        }
        match unclear {
            Some((machine, known)) => Err(PlaceError::Unclear { endpoint: endpoint.clone(), machine, known }),
            None => Ok(Place { machine: None, addresses }),
        }
    }

    /// Notes where a machine has been found, newest first; it has proved that it is there, to this machine, which may use it from now on.
    pub fn found_at(&mut self, key: Key, endpoints: &[Endpoint]) -> Found {
        let is_there = |known: &Endpoint| endpoints.iter().any(|found| found.is_same(known));
        let mut found = Found::default();
        for machine in self.0.values_mut() {
            let before = machine.endpoints.len();
            machine.endpoints.retain(|known| !is_there(known));
            if machine.key == key {
                machine.avoided = false;
                machine.endpoints.splice(..0, endpoints.iter().cloned());
                found.forgotten = machine.endpoints.split_off(machine.endpoints.len().min(MAX_PLACES));
            } else if machine.endpoints.len() < before {
                found.displaced.push(machine.name.clone());
            }
        }
        found
    }
}

/// The addresses of some places, as far as they are found in time. Names are looked up side by side: each may take as long as the system
/// likes, and a network that suppresses answers must not make a command wait for all of them.
fn look_up<'a>(
    places: impl Iterator<Item = &'a Endpoint>,
    resolve: Resolve,
    patience: Duration,
) -> HashMap<Endpoint, Vec<SocketAddr>> {
    let mut found = HashMap::new();
    let mut names = Vec::new();
    for place in places {
        // An address needs no looking up.
        match place.host().parse::<IpAddr>() {
            Ok(ip) => drop(found.insert(place.clone(), vec![SocketAddr::new(ip, place.port())])),
            Err(_) if names.contains(place) => {}
            Err(_) => names.push(place.clone()),
        }
    }
    let (threads, wanted) = (names.len().min(LOOK_UPS), names.len());
    let names = Arc::new(Mutex::new(names.into_iter()));
    let (sender, answers) = channel();
    for _ in 0..threads {
        let (names, sender) = (Arc::clone(&names), sender.clone());
        let next = move || names.lock().unwrap_or_else(PoisonError::into_inner).next();
        // Where no thread can be started, what it would have looked up is not found.
        let _ = thread::Builder::new().name("look-up".into()).spawn(move || {
            while let Some(name) = next() {
                let addresses = resolve(&name);
                if sender.send((name, addresses)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let until = Instant::now() + patience;
    for _ in 0..wanted {
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((name, Ok(addresses))) => drop(found.insert(name, addresses)),
            Ok((_, Err(_))) => {}
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::{key, name};
    use super::*;

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
            vec![endpoint("127.0.0.1:50052"), endpoint("localhost:50054")];
        for (place, is_den) in [
            ("127.0.0.1:50052", true),
            ("[::ffff:127.0.0.1]:50052", true),
            // By the address of its name.
            ("127.0.0.1:50054", true),
            ("LOCALHOST.:50054", true),
            ("127.0.0.1:50053", false),
            ("127.0.0.2:50052", false),
        ] {
            let place = machines.at(&endpoint(place)).unwrap();
            assert_eq!(place.machine.is_some(), is_den, "{place:?}");
            assert!(is_den || !place.addresses.is_empty(), "what was looked at is what is used");
        }
        // By its text, though it cannot be looked up.
        machines.remember(name("attic"), key(3)).unwrap().endpoints = vec![endpoint("attic.invalid:7")];
        assert_eq!(machines.at(&endpoint("ATTIC.invalid.:7")).unwrap().machine.unwrap().key, key(3));
        // It is one also when it was revoked.
        machines.revoke(key(2)).unwrap();
        assert!(machines.at(&endpoint("127.0.0.1:50052")).unwrap().machine.unwrap().revoked);
    }

    /// Where names cannot be looked up, it is not assumed that a place is another one.
    #[test]
    fn a_place_is_unclear_when_names_cannot_be_found() {
        for places in [&["no.such.invalid:50052"][..], &["no.such.invalid:50052", "192.0.2.5:50052"]] {
            let mut machines = Machines::default();
            machines.remember(name("den"), key(2)).unwrap().endpoints =
                places.iter().map(|place| endpoint(place)).collect();
            // Its last address is known, too, but it may have another one now.
            let unclear = machines.at(&endpoint("127.0.0.1:50052"));
            assert!(matches!(unclear, Err(PlaceError::Unclear { .. })), "{places:?}: {unclear:?}");
            let lost = machines.at(&endpoint("other.invalid:50052"));
            assert!(matches!(lost, Err(PlaceError::NotFound { .. })), "{lost:?}");
            // Another port is another place.
            assert!(machines.at(&endpoint("127.0.0.1:50053")).unwrap().machine.is_none());
        }
    }

    /// Names that are not answered for are waited for together, and not for long.
    #[test]
    fn names_without_answers_are_waited_for_together() {
        let silent: Resolve = |place| match place.host().ends_with(".silent") {
            true => {
                thread::sleep(Duration::from_secs(3600));
                Ok(Vec::new())
            }
            false => place.addresses(),
        };
        let mut machines = Machines::default();
        for number in 1..50 {
            machines.remember(name("den"), key(number)).unwrap().endpoints =
                vec![endpoint(&format!("den-{number}.silent:1")), endpoint("192.0.2.5:1")];
        }
        machines.remember(name("attic"), key(100)).unwrap().endpoints = vec![endpoint("localhost:1")];
        let start = Instant::now();
        let patience = Duration::from_millis(500);
        let unclear = machines.at_by(&endpoint("192.0.2.6:1"), silent, patience);
        assert!(matches!(unclear, Err(PlaceError::Unclear { .. })), "{unclear:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    /// A machine that has proved to be at a place takes it over from the one that was there, and keeps its others.
    #[test]
    fn places_change_hands_when_a_machine_proves_to_be_there() {
        let mut machines = Machines::default();
        machines.remember(name("den"), key(1)).unwrap();
        let first = machines.found_at(key(1), &[endpoint("10.0.0.1:1"), endpoint("den.lan:1")]);
        assert_eq!(first, Found::default());
        machines.found_at(key(1), &[endpoint("10.0.0.2:1")]);
        machines.remember(name("den"), key(2)).unwrap();
        assert_eq!(machines.found_at(key(2), &[endpoint("DEN.lan:1")]).displaced, [name("den")]);
        assert_eq!(
            machines.by_key(key(1)).unwrap().endpoints,
            [endpoint("10.0.0.2:1"), endpoint("10.0.0.1:1")]
        );
        // Places are kept much longer than a line has any, and it is said which go.
        let place = |number: usize| endpoint(&format!("10.0.1.{number}:1"));
        for number in 1..MAX_PLACES {
            assert_eq!(machines.found_at(key(2), &[place(number)]).forgotten, []);
        }
        assert_eq!(machines.found_at(key(2), &[place(100)]).forgotten, [endpoint("DEN.lan:1")]);
        let kept = &machines.by_key(key(2)).unwrap().endpoints;
        assert_eq!((kept.len(), &kept[0]), (MAX_PLACES, &place(100)));
    }
}
