//! Chrome's JSON traces, turned into track events.
//!
//! Both forms are read: an object with `traceEvents`, and an array of events whose end may be missing, as the format allows. Events are parsed one at a
//! time. [`chrome_events`](super::chrome_events) makes track events of them.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;

use super::chrome_events::Events;
use super::{ImportError, Notes, Write};

/// Passes on the packets of a trace with these events.
///
/// # Errors
/// With line and column of the mistake.
pub(in crate::convert) fn import(source: impl Read, write: &mut Write<'_>) -> Result<Notes, ImportError> {
    let mut events = Events::default();
    let mut state = State {
        events: &mut events,
        is_array: false,
    };
    let mut parser = serde_json::Deserializer::from_reader(source);
    let read = Trace(&mut state).deserialize(&mut parser);
    let is_array = state.is_array;
    match read.and_then(|()| parser.end()) {
        Ok(()) => {}
        // An array may lack its end.
        Err(error) if is_array && error.classify() == Category::Eof => {}
        Err(error) if error.is_io() => return Err(ImportError::Read(error.into())),
        Err(error) => {
            return Err(ImportError::Json {
                line: error.line(),
                column: error.column(),
                reason: reason(&error),
            });
        }
    }
    events.write(write)
}

/// Returns an error's message without its place.
fn reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&place).unwrap_or(&message).to_owned()
}

struct State<'a> {
    events: &'a mut Events,
    is_array: bool,
}

/// The whole file.
struct Trace<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Trace<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Trace<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events, or an object with `traceEvents`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.0.is_array = true;
        while let Some(event) = elements.next_element::<Value>()? {
            self.0.events.take(&event).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = entries.next_key::<String>()? {
            if key == "traceEvents" {
                found = true;
                entries.next_value_seed(List(self.0))?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        match found {
            true => Ok(()),
            false => Err(serde::de::Error::custom("the object has no `traceEvents`")),
        }
    }
}

/// The array of events inside an object.
struct List<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for List<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(event) = elements.next_element::<Value>()? {
            self.0.events.take(&event).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}
