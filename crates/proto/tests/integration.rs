//! Tests of the crate from outside, in one program. Each module is a subject, except `dice` and `traceconv`, which the subjects share.
//! `message_reflection` is a program of its own, because it replaces the allocator.

#[path = "support/dice.rs"]
mod dice;
#[path = "support/traceconv.rs"]
mod traceconv;

mod config_table;
mod messages;
mod text;
mod text_mistakes;
mod text_reflection;
mod text_upstream;
mod write;
