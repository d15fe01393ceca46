//! Tracks as programs describe them.

/// All descriptions.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {}

impl Descriptors {
    pub(crate) fn first_packet(&mut self, _sequence: u32) {}
}
