//! Both ends of the tunnel as processes, with certificates of authorities that the tests make: passing data, refused strangers, and the cost of refusing.
#![allow(clippy::unwrap_used, reason = "what fails in a test fails the test")]

mod chain;
mod ends;
mod files;
mod fleet;
mod passing;
mod reload;
mod strangers;
