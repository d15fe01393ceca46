//! The text front and the printer against an independent implementation, `prost-reflect`: what that prints, ours reads, and the
//! other way round.

use ferretto_proto::{descriptors, text};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::dice::{Dice, config};

fn trace_config() -> MessageDescriptor {
    DescriptorPool::decode(descriptors::TRACE)
        .expect("the embedded descriptors hang together")
        .get_message_by_name(text::TRACE_CONFIG)
        .expect("the embedded descriptors have TraceConfig")
}

#[test]
fn what_is_printed_is_read_back() {
    let descriptor = trace_config();
    proptest!(config(), |(seed in any::<u64>(), pretty in any::<bool>())| {
        let message = Dice(seed).message(&descriptor, 0);
        let source = message.to_text_format_with_options(&FormatOptions::new().pretty(pretty));
        let bytes = text::encode(&source, text::TRACE_CONFIG).map_err(|errors| {
            TestCaseError::fail(format!("{errors}\n{source}"))
        })?;
        let read = DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).expect("well-formed");
        prop_assert_eq!(read, message, "{}", source);
    });
}

#[test]
fn what_our_printer_prints_is_read_back_by_both() {
    let descriptor = DescriptorPool::decode(descriptors::TRACE)
        .expect("the embedded descriptors hang together")
        .get_message_by_name(text::TRACE_PACKET)
        .expect("the embedded descriptors have TracePacket");
    let printer = text::Printer::new(text::TRACE_PACKET).expect("the schema has TracePacket");
    proptest!(config(), |(seed in any::<u64>())| {
        let message = Dice(seed).message(&descriptor, 0);
        let mut printed = Vec::new();
        printer.print(&message.encode_to_vec(), 0, &mut printed).expect("memory");
        let printed = String::from_utf8(printed).expect("only ASCII");
        let theirs = DynamicMessage::parse_text_format(descriptor.clone(), &printed);
        let theirs = theirs.map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
        prop_assert_eq!(&theirs, &message, "{}", printed);
        let bytes = text::encode(&printed, text::TRACE_PACKET);
        let bytes = bytes.map_err(|errors| TestCaseError::fail(format!("{errors}\n{printed}")))?;
        let ours = DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).expect("well-formed");
        prop_assert_eq!(ours, message, "{}", printed);
    });
}

#[test]
fn damaged_text_never_panics_and_every_place_it_names_exists() {
    let descriptor = trace_config();
    proptest!(config(), |(
        seed in any::<u64>(),
        at in any::<prop::sample::Index>(),
        junk in "[ -~\n]{0,3}",
        removed in 0_usize..3,
    )| {
        let mut source: Vec<char> = Dice(seed).message(&descriptor, 0).to_text_format().chars().collect();
        let from = at.index(source.len() + 1);
        let to = (from + removed).min(source.len());
        source.splice(from..to, junk.chars());
        let source: String = source.into_iter().collect();
        match text::encode(&source, text::TRACE_CONFIG) {
            Ok(bytes) => {
                prop_assert!(DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).is_ok(), "{}", source);
            }
            Err(errors) => {
                prop_assert!(!errors.errors().is_empty());
                for error in errors.errors() {
                    let line = source.split('\n').nth(error.place.line - 1).unwrap_or_default();
                    prop_assert!(error.place.column <= line.chars().count() + 1, "{}\n{}", error, source);
                }
            }
        }
    });
}

#[test]
fn every_field_has_its_place_and_looking_for_places_changes_nothing() {
    let descriptor = trace_config();
    proptest!(config(), |(seed in any::<u64>())| {
        let bytes = Dice(seed).message(&descriptor, 0).encode_to_vec();
        let mut source = Vec::new();
        let printer = text::Printer::new(text::TRACE_CONFIG).expect("the schema has it");
        printer.print(&bytes, 0, &mut source).expect("memory takes everything");
        let source = String::from_utf8(source).expect("it prints text");
        let (again, positions) =
            text::encode_with_positions(&source, text::TRACE_CONFIG, text::UnknownNames::Refuse).map_err(|errors| {
                TestCaseError::fail(format!("{errors}\n{source}"))
            })?;
        let read = |bytes: &[u8]| DynamicMessage::decode(descriptor.clone(), bytes).expect("well-formed");
        prop_assert_eq!(read(&again), read(&bytes), "{}", &source);
        // Each line that names a field outside of all others is where that field is, in order.
        for name in ["buffers", "data_sources"] {
            let head = format!("{name} {{");
            let lines = source.lines().enumerate().filter(|(_, line)| *line == head);
            for (index, (line, _)) in lines.enumerate() {
                let place = positions.place(&format!("{name}[{index}].of_which_there_is_none")).expect("it is there");
                prop_assert_eq!((place.line, place.column), (line + 1, 1));
            }
        }
    });
}
