//! The stand-in for ProtoVM in builds without the feature `protovm`. There are never any programs, because configs that want them are refused.

use std::fmt;

use ferretto_proto::messages::VmProgram;
use ferretto_wire::Writer;

use crate::ids::ProducerId;

/// Why such configs are refused.
pub(crate) const NOT_BUILT_IN: &str =
    "ProtoVM is not built into this service; build it with the feature `protovm`";

/// Why a program was not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUpError;

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NOT_BUILT_IN)
    }
}

impl std::error::Error for SetUpError {}

/// A program with its state.
#[derive(Debug)]
pub enum Instance {}

/// The programs of one trace buffer.
#[derive(Debug, Default)]
pub struct ProtoVms;

impl ProtoVms {
    /// Does not set up a program.
    ///
    /// # Errors
    /// Always.
    pub fn set_up(&mut self, _: &str, _: &VmProgram, _: u32, _: ProducerId) -> Result<(), SetUpError> {
        Err(SetUpError)
    }

    /// Whether [`ProtoVms::apply`] has to be called for packets of this producer.
    pub(crate) fn want(&self, _: ProducerId) -> bool {
        false
    }

    /// A packet of this producer, in these pieces, is being overwritten.
    pub fn apply<'p>(&mut self, _: ProducerId, _: impl Iterator<Item = &'p [u8]> + Clone) {}

    /// There is no work to be restricted.
    pub(crate) fn restrict_work(&mut self, _: u64) {}

    /// The remaining work.
    pub(crate) fn work_left(&self) -> u64 {
        0
    }

    /// A copy that stays as it is.
    pub fn clone_read_only(&self) -> Self {
        Self
    }

    /// Bytes of memory that count for programs and states.
    pub(crate) fn memory_used(&self) -> u64 {
        0
    }

    /// In the order in which they were made.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        std::iter::empty()
    }

    /// The errors of the instances.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        std::iter::empty()
    }
}

/// Writes no instances: there are none.
pub(crate) fn write_instances<'v>(
    instances: &mut impl Iterator<Item = &'v Instance>,
    _: usize,
    _: &mut Writer,
) {
    if let Some(instance) = instances.next() {
        match *instance {}
    }
}
