//! Arbitrary bytes as operations on a trace buffer; see `ferretto_service::trace_buffer::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferretto_service::trace_buffer::fuzz::run(data));
