//! Makes arguments of annotations that are JSON text, as Chromium writes them. What is before a mistake in the text counts.

use std::fmt;

use serde_core::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::annotations::{Key, MOST_ARGUMENTS};
use super::track_event::code::Coder;
use crate::context::Context;
use crate::strings::StringId;

/// Adds what the text has below a key.
pub(super) fn add(text: &[u8], key: &mut Key, coder: &mut Coder<'_>, context: &mut Context<'_>) {
    let mut text = serde_json::Deserializer::from_slice(text);
    let mut to = To { coder, context };
    let place = Place {
        key,
        array: None,
        to: &mut to,
    };
    // A mistake ends the arguments.
    let _ = place.deserialize(&mut text);
}

struct To<'a, 'b, 'c> {
    coder: &'a mut Coder<'b>,
    context: &'a mut Context<'c>,
}

/// Where a value goes.
struct Place<'t, 'a, 'b, 'c> {
    key: &'t mut Key,
    /// How much of the key is that of the array that it is an element of, unless it is null.
    array: Option<usize>,
    to: &'t mut To<'a, 'b, 'c>,
}

impl Place<'_, '_, '_, '_> {
    /// Takes the place of an element.
    fn take<E: Error>(&mut self) -> Result<(), E> {
        if let Some(array) = self.array {
            self.to.coder.add_element(&self.key.whole()[..array]);
        }
        match self.to.coder.arguments() < MOST_ARGUMENTS {
            true => Ok(()),
            false => Err(E::custom("too many arguments")),
        }
    }

    fn leaf<E: Error>(mut self, add: impl FnOnce(&mut Coder<'_>, StringId, StringId)) -> Result<(), E> {
        self.take()?;
        let (flat, whole) = self.key.intern(&mut self.to.context.strings);
        add(self.to.coder, flat, whole);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_, '_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_, '_, '_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.leaf(|coder, flat, whole| coder.bool(flat, whole, value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.leaf(|coder, flat, whole| coder.int(flat, whole, value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.leaf(|coder, flat, whole| coder.real(flat, whole, value.to_bits()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.leaf(|coder, flat, whole| coder.text(flat, whole, value.as_bytes()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        self.take()?;
        loop {
            let array = self.key.whole().len();
            let back = self
                .key
                .enter_element(self.to.coder.next_element(self.key.whole()));
            let place = Place {
                key: &mut *self.key,
                array: Some(array),
                to: &mut *self.to,
            };
            let element = elements.next_element_seed(place)?;
            self.key.leave(back);
            if element.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        self.take()?;
        while let Some(name) = entries.next_key::<String>()? {
            let back = self.key.enter(&name);
            entries.next_value_seed(Place {
                key: &mut *self.key,
                array: None,
                to: &mut *self.to,
            })?;
            self.key.leave(back);
        }
        Ok(())
    }
}
