//! Arbitrary bytes as a program of a data source, and packets for it; see `ferretto_service::protovm::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    ferretto_service::protovm::fuzz::run(data);
});
