//! Groups of tracks that are shown as one: each event goes to a track of the group that is free.
//!
//! Track events and marks of programs share the numbers of groups, so there is one list of them.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::tracks::{Dimension, Has, Key, TrackId, Tracks};
use crate::context::Context;
use crate::strings::StringId;

/// What an event does to the track that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Occupies it once more, until as many ends of this number have come.
    Begin(u64),
    /// Occupies it, until one end of this number has come.
    BeginOnce(u64),
    End(u64),
    /// Only asks for it.
    Ask(u64),
    /// Occupies it at one moment. Tracks of moments are apart from those with numbers.
    Moment,
}

/// One track of a group. That of moments has no use for the numbers.
#[derive(Debug, Default)]
struct Member {
    number: u64,
    nested: u64,
    /// Whether it is in [`Members::free`].
    is_free: bool,
    track: Option<TrackId>,
}

#[derive(Debug, Default)]
struct Members {
    members: Vec<Member>,
    /// The places of numbers.
    places: HashMap<u64, usize>,
    /// The place that a number had last, which often comes again.
    last: Option<usize>,
    /// The places of tracks for numbers that nothing occupies.
    free: BTreeSet<usize>,
    /// The place of the track of moments. One is enough, as events come in the order of time.
    moments: Option<usize>,
}

impl Members {
    fn add(&mut self) -> usize {
        self.members.push(Member::default());
        self.members.len() - 1
    }

    fn place(&mut self, used: Use) -> usize {
        let (Use::Begin(number) | Use::BeginOnce(number) | Use::End(number) | Use::Ask(number)) = used else {
            let at = self.moments.unwrap_or_else(|| self.add());
            self.moments = Some(at);
            return at;
        };
        let at = match self.last {
            Some(at) if self.members[at].number == number => at,
            _ => self.place_of(number),
        };
        self.last = Some(at);
        let member = &mut self.members[at];
        member.number = number;
        match used {
            Use::Begin(_) => member.nested += 1,
            Use::BeginOnce(_) => member.nested = 1,
            Use::End(_) => member.nested = member.nested.saturating_sub(1),
            Use::Ask(_) | Use::Moment => {}
        }
        let is_free = member.nested == 0;
        if is_free != std::mem::replace(&mut member.is_free, is_free) {
            match is_free {
                true => self.free.insert(at),
                false => self.free.remove(&at),
            };
        }
        at
    }

    /// Returns the place of a number. If it has none, it gets one.
    fn place_of(&mut self, number: u64) -> usize {
        let at = match (self.places.get(&number), self.free.first()) {
            (Some(at), _) => return *at,
            (None, Some(at)) => {
                let at = *at;
                self.places.remove(&self.members[at].number);
                at
            }
            (None, None) => self.add(),
        };
        self.places.insert(number, at);
        at
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    all: Vec<Members>,
    numbers: HashMap<Key, usize>,
}

impl Groups {
    /// Returns the first track of a group, if there is one.
    pub(crate) fn first(&self, key: &Key) -> Option<TrackId> {
        self.all.get(*self.numbers.get(key)?)?.members.first()?.track
    }

    /// Returns the number of a group, which is new if there was none.
    pub(crate) fn number(&mut self, key: &Key) -> usize {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = self.all.len();
        self.all.push(Members::default());
        self.numbers.insert(key.clone(), number);
        number
    }
}

/// The track that an event gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Got {
    pub(crate) track: TrackId,
    /// Nothing has used the track before, so it may need a description.
    pub(crate) is_new: bool,
}

/// Returns the track of a group that an event goes to. Makes it if none is free.
pub(crate) fn track_in(
    key: &Key,
    name: Option<StringId>,
    used: Use,
    tracks: &mut Tracks,
    context: &mut Context<'_>,
) -> Got {
    let number = context.groups.number(key);
    track_of_number(number, key, name, used, tracks, context)
}

/// As [`track_in`], of a group whose number is known.
pub(crate) fn track_of_number(
    number: usize,
    key: &Key,
    name: Option<StringId>,
    used: Use,
    tracks: &mut Tracks,
    context: &mut Context<'_>,
) -> Got {
    let members = &mut context.groups.all[number];
    let at = members.place(used);
    if let Some(track) = members.members[at].track {
        return Got { track, is_new: false };
    }
    let mut key_of_track = key.clone();
    key_of_track
        .dimensions
        .push(("track_compressor_idx", Dimension::Int(at as i64)));
    let track = tracks.create(&key_of_track, Has::Slices, name, context);
    tracks.set_group(track, number as i64);
    context.groups.all[number].members[at].track = Some(track);
    Got { track, is_new: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first track that has the number, else the first that is free, else a new one: what the trace processor searches for.
    #[test]
    fn tracks_are_those_that_a_search_from_the_first_finds() {
        let mut state = 7_u64;
        let mut below = |limit| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        let mut members = Members::default();
        // The number of each track and how often it is occupied; `None` for the track of moments.
        let mut model: Vec<Option<(u64, u64)>> = Vec::new();
        for _ in 0..20_000 {
            let number = below(12);
            let used = match below(9) {
                0..=2 => Use::Begin(number),
                3 => Use::BeginOnce(number),
                4..=6 => Use::End(number),
                7 => Use::Ask(number),
                _ => Use::Moment,
            };
            let is_moment = used == Use::Moment;
            let has_number = |it: &Option<(u64, u64)>| it.is_some_and(|it| it.0 == number);
            let is_free = |it: &Option<(u64, u64)>| it.is_some_and(|it| it.1 == 0);
            let found = match is_moment {
                true => model.iter().position(Option::is_none),
                false => model
                    .iter()
                    .position(has_number)
                    .or_else(|| model.iter().position(is_free)),
            };
            let at = found.unwrap_or(model.len());
            if found.is_none() {
                model.push((!is_moment).then_some((number, 0)));
            }
            if let Some((known, nested)) = &mut model[at] {
                *known = number;
                *nested = match used {
                    Use::Begin(_) => *nested + 1,
                    Use::BeginOnce(_) => 1,
                    Use::End(_) => nested.saturating_sub(1),
                    Use::Ask(_) | Use::Moment => *nested,
                };
            }
            assert_eq!(members.place(used), at);
        }
        assert!(model.len() > 5);
    }
}
