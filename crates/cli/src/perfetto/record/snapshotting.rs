//! Takes and awaits the snapshots of a recording whose triggers request them.
//!
//! [`record`](super) calls it from its loop.

use super::*;
use crate::perfetto::signals::Wish;

impl Recorder<'_> {
    /// Waits for unfinished snapshots, because the session that they clone ends with our connection. Gives them up if the recording was abandoned or
    /// a signal arrives, and returns that signal.
    pub(super) fn await_snapshots(
        &mut self,
        ending: &Ending,
        reactor: &mut Reactor,
        events: &mut Events,
    ) -> Result<Option<Signal>, ReactorError> {
        let Some(snapshots) = self.snapshots.as_ref().filter(|all| all.under_way()) else {
            return Ok(None);
        };
        if let Some(endpoint) = &self.endpoint {
            // Messages of the service do not matter any more.
            reactor.deregister(endpoint, SERVICE)?;
        }
        let mut given_up = None;
        if let Ending::Abandoned(signal) = ending {
            snapshots.give_up(*signal);
            given_up = Some((*signal, now() + GIVE_UP_PATIENCE));
        }
        while self.snapshots.as_ref().is_some_and(Snapshots::under_way) {
            let deadline = given_up.map(|(_, until)| Deadline::Monotonic(nanoseconds(until)));
            reactor.wait(events, deadline)?;
            self.show_snapshots();
            let signal = events
                .signals()
                .iter()
                .find(|signal| self.session.hear(**signal, now()) != Wish::Known);
            match (given_up, signal) {
                (None, Some(signal)) => {
                    self.snapshots
                        .iter()
                        .for_each(|snapshots| snapshots.give_up(*signal));
                    given_up = Some((*signal, now() + GIVE_UP_PATIENCE));
                }
                (Some(_), Some(_)) => break,
                (Some((_, until)), None) if now() >= until => break,
                _ => {}
            }
        }
        for file in self.snapshots.iter().flat_map(Snapshots::unfinished) {
            self.console
                .say(format_args!("{} is given up in the middle", file.display()));
        }
        Ok(given_up.map(|(signal, _)| signal))
    }

    /// Prints the messages of snapshots since the last call.
    pub(super) fn show_snapshots(&mut self) {
        for line in self.snapshots.iter_mut().flat_map(Snapshots::take_lines) {
            self.console.pass_on(line);
        }
    }

    /// Takes a snapshot for a trigger that was hit.
    pub(super) fn take_snapshot(&mut self, hit: &CloneTriggerHit) {
        if let (Some(snapshots), Some(service)) = (&mut self.snapshots, &self.service)
            && let Err(error) = snapshots.take(hit, &service.consumer_socket)
        {
            self.console.say(format_args!("cannot take a snapshot: {error}"));
        }
    }
}
