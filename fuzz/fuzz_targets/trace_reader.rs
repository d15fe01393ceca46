//! Arbitrary bytes as a trace file, for `ferretto info` and `ferretto text`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferretto_cli::fuzz::trace_file(data));
