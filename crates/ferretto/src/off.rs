//! Whether this build records at all.
//!
//! Decided when the crate is compiled. The functions at which tracing begins ask it (whether anybody listens to an event,
//! [`initialize`](crate::initialize), sessions), so that the compiler leaves out all code behind them. Types, and with them the compiler's messages
//! about a program, are the same either way.
//!
//! ```compile_fail
//! struct Unknown;
//! ferretto::trace_event_instant!("kitchen", "Bake", "what" => Unknown);
//! ```
//!
//! Modules that record are not even compiled then. Modules in `elsewhere/` take their places, by the same condition, which `lib.rs` and
//! `session/mod.rs` have at each of them.

/// Why this build records nothing; `None` if it records.
pub(crate) const WHY_OFF: Option<&str> = if cfg!(feature = "off") {
    Some("tracing is off: this program was compiled with the feature `off` of the crate ferretto")
} else if cfg!(all(
    target_endian = "little",
    any(target_os = "linux", target_os = "android")
)) {
    None
} else {
    Some("tracing is off: ferretto records on Linux and Android only, and on little-endian machines")
};

/// Whether this build records nothing.
pub(crate) const OFF: bool = WHY_OFF.is_some();
