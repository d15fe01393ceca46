//! Text as a trace config. What is accepted is a config that the service can decode, encodes again and stays the same, and that
//! can be printed and read; what is refused is refused with places that exist.

#![no_main]

use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_proto::text::{self, TRACE_CONFIG, UnknownNames};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| {
    let lenient = text::encode_with(source, TRACE_CONFIG, UnknownNames::Drop);
    match text::encode(source, TRACE_CONFIG) {
        Ok(bytes) => {
            let config = TraceConfig::decode_from_slice(&bytes).expect("an accepted config is one");
            let again = TraceConfig::decode_from_slice(&config.encode_to_vec()).expect("our own encoding");
            assert_eq!(again, config);
            assert_eq!(lenient.as_deref(), Ok(&bytes[..]), "it names nothing unknown");
            let (placed, positions) = text::encode_with_positions(source, TRACE_CONFIG, UnknownNames::Refuse)
                .expect("an accepted config");
            assert_eq!(placed, bytes, "places change nothing");
            for (index, _) in config.buffers.iter().enumerate() {
                positions
                    .place(&format!("buffers[{index}]"))
                    .expect("it is in the text");
            }
            let mut printed = Vec::new();
            let printer = text::Printer::new(TRACE_CONFIG).expect("the schema has it");
            printer
                .print(&bytes, 0, &mut printed)
                .expect("memory takes everything");
            let printed = String::from_utf8(printed).expect("it prints text");
            text::encode(&printed, TRACE_CONFIG).expect("what is printed is read");
        }
        Err(errors) => {
            assert!(errors.render("fuzz.cfg").starts_with("fuzz.cfg:"));
            let lines = source.split('\n').count();
            assert!(errors.errors().iter().all(|error| error.place.line <= lines));
        }
    }
    if let Ok(bytes) = lenient {
        TraceConfig::decode_from_slice(&bytes).expect("an accepted config is one");
    }
});
