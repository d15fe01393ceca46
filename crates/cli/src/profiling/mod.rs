//! The parts that `ferretto profile` and `ferretto heap` share: the recording, the file that a profile goes into, the list of functions, the family of a command, and answers
//! to flags of other tools.

mod advice;
mod goal;
mod recording;
mod schedule;
pub(crate) mod top;

#[cfg(test)]
pub(crate) use advice::advice_about;
#[cfg(test)]
pub(crate) use advice::check;
pub(crate) use advice::{Advice, arguments};
pub(crate) use goal::{Goal, GoalError, ProfileFormat};
pub(crate) use recording::Wish;
pub(crate) use schedule::{Schedule, Take};
