//! Ends of slices with arguments, and slices that go on elsewhere.

use super::call_site::{CallSite, EventCategory};
use super::emit::{BeginMark, EventName, OpenSlice, Parts, Slice, emit, one_and_others, short_or_long};
use super::event::{EventContext, EventFields, Fill, LogPriority};
use super::sequence::{Event, Name, TrackRef};
use super::wire::EventType;
use crate::track::TrackLike;

/// The site of all ends that get arguments from a closure.
static END: CallSite = CallSite::new(EventType::SliceEnd, "", &[]);

impl Slice {
    /// Ends the slice, with fields that `fill` adds to the event: arguments that are known only now.
    ///
    /// ```
    /// let query = ferretto::trace_slice!("database", "Query");
    /// let rows = 17;
    /// query.end_with(|event| {
    ///     event.annotation("rows", rows);
    /// });
    /// ```
    ///
    /// `fill` runs once for each session that records the slice, and not at all if none does.
    pub fn end_with(self, fill: impl Fn(&mut EventContext<'_, '_>)) {
        self.into_open().end_by(fill);
    }
}

impl OpenSlice {
    /// Ends the slice with an event that has fields. `site` is one for ends.
    pub fn end_with(self, site: &'static CallSite, track: Option<&dyn TrackLike>, fields: &impl EventFields) {
        self.end_on(site, track.map_or(TrackRef::Thread, TrackRef::Tell), fields);
    }

    /// Ends the slice, with the fields that `fill` adds.
    pub(crate) fn end_by(self, fill: impl Fn(&mut EventContext<'_, '_>)) {
        if !self.is_recorded() {
            return;
        }
        // Registers the site the first time. Ends are written even if a session filters categories.
        EventCategory::listeners("", &END);
        let track = self.track.map_or(TrackRef::Thread, TrackRef::Told);
        self.end_on(&END, track, &Fill::new(fill));
    }

    fn end_on(self, site: &'static CallSite, track: TrackRef<'_>, fields: &impl EventFields) {
        let starts = self.starts;
        let listeners = self.into_listeners();
        if listeners != 0 {
            write_end(site, listeners, starts, track, fields);
        }
    }

    /// Ends the slice on its track for now.
    pub(crate) fn suspend(self) -> Suspended {
        Suspended {
            site: self.site,
            begun: self.begun,
            starts: self.starts,
        }
    }
}

/// Writes an end with fields, for the listeners whose instances had started when the count of starts was `starts`.
#[inline(never)]
fn write_end(
    site: &'static CallSite,
    listeners: u32,
    starts: u32,
    track: TrackRef<'_>,
    fields: &impl EventFields,
) -> u32 {
    let uuid = track.uuid();
    let record = |slot| {
        short_or_long(slot, site, EventType::SliceEnd, None, uuid, fields, |thread| {
            let event = Event {
                kind: EventType::SliceEnd,
                site: Some(site),
                category: None,
                name: Name::OfSite,
                track,
                timestamp: None,
                begun: Some(starts),
            };
            // If it is lost, the sequence owes it.
            thread.write(slot, &event, &|context| fields.write(context))
        })
    };
    one_and_others(listeners, record, |others| {
        write_end_for_others(site, others, starts, track, fields)
    })
}

#[cold]
#[inline(never)]
fn write_end_for_others(
    site: &'static CallSite,
    listeners: u32,
    starts: u32,
    track: TrackRef<'_>,
    fields: &impl EventFields,
) -> u32 {
    write_end(site, listeners, starts, track, fields)
}

/// A slice that has ended on one track and goes on on another.
#[derive(Debug)]
pub(crate) struct Suspended {
    site: &'static CallSite,
    begun: u32,
    starts: u32,
}

impl Suspended {
    /// Begins the slice again, for the listeners that recorded the first part. `name` is for sites without one.
    pub(crate) fn resume(self, name: &'static str, track: &dyn TrackLike) -> OpenSlice {
        let Self { site, begun, starts } = self;
        let whole = OpenSlice {
            site,
            begun,
            starts,
            track: None,
        };
        let listeners = whole.into_listeners();
        if listeners == 0 {
            return OpenSlice::none(site);
        }
        let parts = Parts {
            category: None,
            name: match site.name {
                "" => EventName::Static(name),
                _ => EventName::OfSite,
            },
            track: Some(track),
            timestamp: None,
        };
        let mark = BeginMark::new();
        let recorded = emit(site, listeners, parts, &());
        OpenSlice::begun(site, mark, recorded, Some(track))
    }
}

/// Adds an error to the end of its slice: `#[trace_function(err)]`.
#[doc(hidden)]
pub fn mark_error(event: &mut EventContext<'_, '_>, error: std::fmt::Arguments<'_>) {
    // The log would tell what the config leaves out of the arguments.
    if !event.has_annotations() {
        return;
    }
    let error = error.to_string();
    event.annotation("error", &error);
    event.log_message(&error, LogPriority::Error);
}

#[cfg(test)]
mod tests;

/// Calls a closure. Its type tells the compiler that the closure runs once, and so may return values that it owns.
#[doc(hidden)]
#[inline(always)]
pub fn call<T>(body: impl FnOnce() -> T) -> T {
    body()
}
