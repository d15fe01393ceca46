//! The bytecode of trace filters and its overlays, arbitrary bytes or arbitrary words with the right checksum. What is
//! accepted allows the fields of a packet that a naive reading of the words does, and filters without harm.
//!
//! The input: a byte that says what is raw, how many words the bytecode has, the words, then the overlay likewise. A word
//! is a byte, or after one of the largest ones four more.

#![no_main]

#[path = "../../crates/service/tests/support/filter_bytecode.rs"]
mod filter_bytecode;

use std::collections::BTreeMap;
use std::sync::Arc;

use ferretto_fuzz::Input;
use ferretto_proto::messages::trace_config;
use ferretto_service::trace_filter::{PacketFilter, TraceFilter};
use ferretto_wire::{MAX_FIELD_NUMBER, Writer};
use libfuzzer_sys::fuzz_target;

const RAW_BYTECODE: u8 = 1;
const RAW_OVERLAY: u8 = 2;
const FIRST_VERSION: u8 = 4;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let flags = input.byte();
    let words = words(&mut input);
    let overlay = words_of_overlay(&mut input, flags);
    let bytecode = if flags & RAW_BYTECODE != 0 {
        data.to_vec()
    } else {
        filter_bytecode::encode(&words)
    };
    let mut config = trace_config::TraceFilter {
        bytecode_overlay_v54: overlay.clone(),
        ..Default::default()
    };
    if flags & FIRST_VERSION != 0 {
        config.bytecode = Some(bytecode);
    } else {
        config.bytecode_v2 = Some(bytecode);
    }
    let filter = match TraceFilter::new(&config) {
        Ok(filter) => filter,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut filter = PacketFilter::new(Arc::new(filter));
    if let Ok(kept) = filter.filter([data]) {
        assert!(kept.len() <= data.len());
    }
    if flags & RAW_BYTECODE != 0 || overlay.is_some() {
        return;
    }
    let allowed = naive_root(&words);
    let candidates = allowed.range(..=MAX_FIELD_NUMBER).map(|(field, _)| *field);
    for field in (1..300).chain(candidates.take(300)) {
        let mut packet = Writer::new();
        packet.varint_field(field, 1);
        let kept = filter.filter([packet.as_slice()]).expect("it is a message");
        let stays = allowed.get(&field).is_some_and(|keep| *keep);
        assert_eq!(kept == packet.as_slice(), stays, "field {field} of {words:?}");
    }
});

fn words(input: &mut Input<'_>) -> Vec<u32> {
    const LONG: u8 = 0xf8;
    let count = input.byte();
    let word = |_| match input.byte() {
        LONG.. => input
            .bytes(4)
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte)),
        byte => u32::from(byte),
    };
    (0..count).map(word).collect()
}

fn words_of_overlay(input: &mut Input<'_>, flags: u8) -> Option<Vec<u8>> {
    if flags & RAW_OVERLAY != 0 {
        return Some(input.0.to_vec());
    }
    let words = words(input);
    (!words.is_empty()).then(|| filter_bytecode::encode(&words))
}

/// For the packet in bytecode that was accepted: fields, and whether a number in them stays. Only the first thousand numbers of a range.
fn naive_root(words: &[u32]) -> BTreeMap<u32, bool> {
    let mut messages = vec![BTreeMap::new()];
    let mut packet = 0;
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let (opcode, field) = (word & 7, word >> 3);
        let first = messages.len() == 1;
        let fields = messages.last_mut().expect("never empty");
        match opcode {
            0 => messages.push(BTreeMap::new()),
            1 => drop(fields.insert(field, true)),
            2 => {
                let end = field.wrapping_add(words.next().expect("accepted"));
                fields.extend((field..end).take(1000).map(|field| (field, true)));
            }
            3 => {
                let message = words.next().expect("accepted");
                fields.insert(field, false);
                if first && field == 1 {
                    packet = message as usize;
                }
            }
            4 => drop(fields.insert(field, false)),
            5 => {
                words.next();
                fields.insert(field, false);
            }
            _ => unreachable!("accepted"),
        }
    }
    messages.swap_remove(packet)
}
