//! Placeholder until the applets land.
fn main() {}
