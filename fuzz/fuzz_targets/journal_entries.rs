//! Entries of the journal, whose fields anybody may choose, as `libsystemd` hands them over: `NAME=value` as bytes.
//!
//! The input is a row of fields. A byte chooses the name (one that is recorded, or none so that the value has all of the field), two bytes are the
//! length of the value, a byte says how often the value is repeated, and the value follows.

#![no_main]

use std::collections::BTreeMap;

use ferretto_fuzz::{Input, assert_message};
use ferretto_probes::journald::entry::{LONGEST_FIELD, Taken, copy_field, encode};
use ferretto_proto::write::{SystemdJournaldEvent as Event, TracePacket};
use ferretto_wire::{Reader, Value, Writer};
use libfuzzer_sys::fuzz_target;

const TEXTS: [(&str, u32); 7] = [
    ("MESSAGE", Event::MESSAGE),
    ("SYSLOG_IDENTIFIER", Event::TAG),
    ("_COMM", Event::COMM),
    ("_EXE", Event::EXE),
    ("_SYSTEMD_UNIT", Event::SYSTEMD_UNIT),
    ("_HOSTNAME", Event::HOSTNAME),
    ("_TRANSPORT", Event::TRANSPORT),
];

const NUMBERS: [(&str, u32); 5] = [
    ("PRIORITY", Event::PRIO),
    ("_PID", Event::PID),
    ("_TID", Event::TID),
    ("_UID", Event::UID),
    ("_GID", Event::GID),
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let usec = input.number().into();
    let mut fields = Vec::new();
    while !input.0.is_empty() && fields.len() < 64 {
        fields.push(field(&mut input));
    }

    let mut packet = Writer::default();
    let mut taken = Taken::default();
    encode(&mut packet, usec, |event| {
        fields
            .iter()
            .for_each(|field| copy_field(field, &mut taken, event));
    });
    let packet = packet.as_slice();
    assert_message(packet);
    assert!(
        packet.len() <= TEXTS.len() * (LONGEST_FIELD + 8) + 100,
        "{} bytes of an entry",
        packet.len()
    );
    let mut in_packet = Reader::new(packet).map(|field| field.expect("a packet"));
    let event = in_packet.find(|field| field.number == TracePacket::JOURNALD_EVENT);
    let event = event.and_then(|field| field.value.as_bytes()).expect("an entry");
    let mut recorded = BTreeMap::new();
    for field in Reader::new(event).map(|field| field.expect("an entry")) {
        let value = match field.value {
            Value::Bytes(text) => Recorded::Text(text.to_vec()),
            value => Recorded::Number(value.as_varint().expect("a number")),
        };
        assert_eq!(recorded.insert(field.number, value), None, "a field twice");
    }
    let (expected, is_cut) = naive(&fields);
    assert!(recorded == expected, "{recorded:?} instead of {expected:?}");
    assert_eq!(taken.is_cut, is_cut);
});

/// The value of a field in the trace.
#[derive(Debug, PartialEq, Eq)]
enum Recorded {
    Text(Vec<u8>),
    Number(u64),
}

/// At most a byte more than is recorded: the library cuts there.
fn field(input: &mut Input<'_>) -> Vec<u8> {
    let mut names = TEXTS.iter().chain(&NUMBERS);
    let name = names.nth(usize::from(input.byte() % 16));
    let mut field = name.map_or(Vec::new(), |(name, _)| format!("{name}=").into_bytes());
    let length = usize::from(input.byte()) | usize::from(input.byte()) << 8;
    let times = 1 + usize::from(input.byte());
    field.extend(input.bytes(length).repeat(times));
    field.truncate(LONGEST_FIELD + 1);
    field
}

/// The expected fields of the packet, and whether something was too long: one name after the other, for each the first value that counts.
fn naive(fields: &[Vec<u8>]) -> (BTreeMap<u32, Recorded>, bool) {
    let values = |name: &str| {
        let prefix = format!("{name}=").into_bytes();
        let values = fields
            .iter()
            .filter_map(move |field| field.strip_prefix(&prefix[..]));
        values.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let mut expected = BTreeMap::new();
    let mut is_cut = false;
    for (name, number) in TEXTS {
        if let Some(value) = values(name).into_iter().find(|value| !value.is_empty()) {
            let most = LONGEST_FIELD - name.len() - 1;
            is_cut |= value.len() > most;
            let kept = value[..whole(&value, most)].to_vec();
            expected.insert(number, Recorded::Text(kept));
        }
    }
    for (name, number) in NUMBERS {
        if let Some(value) = values(name).iter().find_map(|value| decimal(value)) {
            expected.insert(number, Recorded::Number(value.into()));
        }
    }
    (expected, is_cut)
}

/// The length of at most `most` bytes that end where a character begins, if one begins within the last four.
fn whole(value: &[u8], most: usize) -> usize {
    if value.len() <= most {
        return value.len();
    }
    let begins = |at: usize| !(0x80..0xc0).contains(&value[at]);
    (0..4)
        .map(|back| most - back)
        .find(|at| begins(*at))
        .unwrap_or(most)
}

/// Nothing but digits, without a sign.
fn decimal(value: &[u8]) -> Option<u32> {
    let mut number = 0_u32;
    for digit in value {
        let digit = digit
            .is_ascii_digit()
            .then_some(u32::from(digit.wrapping_sub(b'0')))?;
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    (!value.is_empty()).then_some(number)
}
