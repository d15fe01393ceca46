//! The service's address: looks up the name of its machine on another thread, because that may take long, and tries its addresses in turn.
//!
//! Called by `traced_relay`, whose own connection goes through the addresses until a service answers it and whose producers' connections take the same,
//! and by `ferretto-tunnel`. Nothing here waits.

use std::net::IpAddr;

use ferretto_ipc::channel::{Nothing, Receiver, channel};
use ferretto_ipc::reactor::Waker;
use ferretto_ipc::{Address, transport};

/// See the [module](self).
pub struct Destination {
    name: Address,
    waker: Waker,
    /// The addresses that the name stands for, the current one first.
    found: Vec<Address>,
    /// How many of them have failed since the name was looked up.
    failed: usize,
    /// A service has answered at the current one.
    is_answering: bool,
    looking: Option<Receiver<Result<Vec<Address>, String>>>,
}

impl Destination {
    /// The service of this name. `waker` wakes the loop that calls [`poll`](Self::poll).
    pub fn new(name: Address, waker: Waker) -> Destination {
        let is_number = match &name {
            Address::Tcp { host, .. } => host.parse::<IpAddr>().is_ok(),
            _ => true,
        };
        Destination {
            found: Vec::from_iter(is_number.then(|| name.clone())),
            name,
            waker,
            failed: 0,
            is_answering: false,
            looking: None,
        }
    }

    /// As people wrote it.
    pub fn name(&self) -> &Address {
        &self.name
    }

    /// The address to connect to, if it is known.
    pub fn current(&self) -> Option<&Address> {
        self.found.first()
    }

    /// The address for producers: none while it is open which of several it is.
    pub(crate) fn for_producers(&self) -> Option<&Address> {
        let is_open = self.found.len() > 1 && !self.is_answering;
        self.current().filter(|_| !is_open)
    }

    /// A service has answered at the current address.
    pub fn answered(&mut self) {
        self.is_answering = true;
        self.failed = 0;
    }

    /// Has the name looked up, unless that is under way.
    ///
    /// # Errors
    /// If there can be no thread for it.
    pub fn look_up(&mut self) -> Result<(), String> {
        if self.looking.is_some() {
            return Ok(());
        }
        let (sender, receiver) = channel();
        let (name, waker) = (self.name.clone(), self.waker.clone());
        std::thread::Builder::new()
            .name("look-up".into())
            .spawn(move || {
                let found = transport::look_up(&name).map_err(|error| error.to_string());
                // The relay may have ended.
                let _ = sender.send(found);
                waker.wake();
            })
            .map_err(|error| format!("cannot look up {}: {error}", self.name))?;
        self.looking = Some(receiver);
        Ok(())
    }

    /// Takes what was found, if the look-up is over.
    ///
    /// # Errors
    /// If the name is not known.
    pub fn poll(&mut self) -> Result<(), String> {
        let Some(looking) = &self.looking else {
            return Ok(());
        };
        let found = match looking.try_receive() {
            Ok(found) => found,
            Err(Nothing::SoFar) => return Ok(()),
            Err(Nothing::EverAgain) => Err(format!("cannot look up {}", self.name)),
        };
        self.looking = None;
        self.found = found?;
        self.failed = 0;
        self.is_answering = false;
        match self.found.is_empty() {
            true => Err(format!("{} stands for no address", self.name)),
            false => Ok(()),
        }
    }

    /// The current address does not answer, so the next attempt takes another. After the last one the name is looked up again. Returns when to go on.
    pub fn failed(&mut self) -> Next {
        self.is_answering = false;
        let is_name = self.found.first() != Some(&self.name);
        if self.found.is_empty() || !is_name {
            return Next::AfterAPause;
        }
        self.found.rotate_left(1);
        self.failed += 1;
        if self.failed < self.found.len() {
            return Next::AtOnce;
        }
        self.found.clear();
        Next::AfterAPause
    }
}

/// When to try the next address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has not been tried.
    AtOnce,
    /// All have.
    AfterAPause,
}

#[cfg(test)]
impl Destination {
    /// One whose name has been found to stand for these addresses.
    pub fn found(name: &str, addresses: &[Address], waker: Waker) -> Destination {
        let mut destination = Destination::new(name.parse().expect("an address"), waker);
        destination.found = addresses.to_vec();
        destination
    }
}

#[cfg(test)]
mod tests {
    use ferretto_ipc::Reactor;
    use ferretto_ipc::reactor::{Deadline, Events};

    use super::*;

    fn destination(name: &str) -> (Destination, Reactor) {
        let reactor = Reactor::new().expect("a reactor");
        let destination = Destination::new(name.parse().expect("an address"), reactor.waker());
        (destination, reactor)
    }

    #[test]
    fn what_is_no_name_is_never_looked_up() {
        for name in ["127.0.0.1:7", "[::1]:7", "vsock://2:7", "/tmp/x", "@x"] {
            let (mut destination, _reactor) = destination(name);
            for _ in 0..3 {
                assert_eq!(destination.current(), Some(destination.name()), "{name}");
                assert_eq!(destination.for_producers(), destination.current(), "{name}");
                assert_eq!(destination.failed(), Next::AfterAPause, "{name}");
            }
        }
    }

    #[test]
    fn the_addresses_of_a_name_are_tried_in_turn_and_then_looked_up_again() {
        let (mut destination, mut reactor) = destination("localhost:7");
        for _ in 0..2 {
            assert_eq!(destination.current(), None);
            destination.look_up().unwrap();
            let patience = Deadline::after(std::time::Duration::from_secs(60));
            reactor.wait(&mut Events::new(), patience).unwrap();
            destination.poll().unwrap();
            let found = destination.found.clone();
            assert!(!found.is_empty());
            for (position, address) in found.iter().enumerate() {
                assert_eq!(destination.current(), Some(address));
                let next = match position + 1 == found.len() {
                    true => Next::AfterAPause,
                    false => Next::AtOnce,
                };
                assert_eq!(destination.failed(), next);
            }
        }
    }

    #[test]
    fn producers_wait_until_it_is_known_which_of_several_addresses_answers() {
        let reactor = Reactor::new().expect("a reactor");
        let found = ["127.0.0.1:7", "127.0.0.2:7"].map(|address| address.parse().unwrap());
        let mut destination = Destination::found("service.example:7", &found, reactor.waker());
        assert_eq!(destination.for_producers(), None);
        assert_eq!(destination.failed(), Next::AtOnce);
        assert_eq!(destination.for_producers(), None);
        destination.answered();
        assert_eq!(destination.for_producers(), Some(&found[1]));
        // It has gone. The round begins again.
        assert_eq!(destination.failed(), Next::AtOnce);
        assert_eq!(destination.current(), Some(&found[0]));
        assert_eq!(destination.for_producers(), None);
        assert_eq!(destination.failed(), Next::AfterAPause);
        assert_eq!(destination.current(), None);
    }
}
