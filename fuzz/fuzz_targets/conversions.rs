//! Arbitrary bytes as a file of any format, for `ferretto convert`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferretto_cli::fuzz::conversion(data));
