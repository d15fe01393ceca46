//! Text as a trace config. What is accepted is a config that the service can decode, encodes again and stays the same;
//! what is refused is refused with places that exist.

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
        }
        Err(errors) => assert!(errors.render("fuzz.cfg").starts_with("fuzz.cfg:")),
    }
    if let Ok(bytes) = lenient {
        TraceConfig::decode_from_slice(&bytes).expect("an accepted config is one");
    }
});
