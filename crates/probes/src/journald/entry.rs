//! An entry of the journal as a packet, and the filters of the config as matches of the library.
//!
//! | field of the entry | field of `SystemdJournaldEvent` |
//! |---|---|
//! | `MESSAGE`, `SYSLOG_IDENTIFIER`, `PRIORITY` | `message`, `tag`, `prio` |
//! | `_PID`, `_TID`, `_UID`, `_GID` | `pid`, `tid`, `uid`, `gid` |
//! | `_COMM`, `_EXE`, `_SYSTEMD_UNIT`, `_HOSTNAME`, `_TRANSPORT` | `comm`, `exe`, `systemd_unit`, `hostname`, `transport` |
//!
//! Called by the reader. Guarantees that a packet has each field once and that its size is bounded, whoever logs: each field has at
//! most [`LONGEST_FIELD`] bytes.

use ferretto_proto::messages::{BuiltinClock, SystemdJournaldConfig};
use ferretto_proto::write;
use ferretto_proto::write::SystemdJournaldEvent as Event;
use ferretto_wire::Writer;

use crate::kernel_text::whole_u32;

/// Bytes that are recorded of one field of an entry with its name, at most. The number is the library's own threshold for compressed
/// fields (`sd_journal_get_data_threshold(3)`). The journal takes fields of hundreds of megabytes.
pub const LONGEST_FIELD: usize = 64 * 1024;

/// Bytes of the longest name in [`FIELDS`].
const LONGEST_NAME: usize = "SYSLOG_IDENTIFIER".len();

/// How to record the value of a field.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
}

/// The fields that are recorded: the journal's name, the number in `SystemdJournaldEvent`, and the kind of value there.
const FIELDS: [(&str, u32, Kind); 12] = [
    ("MESSAGE", Event::MESSAGE, Kind::Text),
    ("SYSLOG_IDENTIFIER", Event::TAG, Kind::Text),
    ("PRIORITY", Event::PRIO, Kind::Number),
    ("_PID", Event::PID, Kind::Number),
    ("_TID", Event::TID, Kind::Number),
    ("_UID", Event::UID, Kind::Number),
    ("_GID", Event::GID, Kind::Number),
    ("_COMM", Event::COMM, Kind::Text),
    ("_EXE", Event::EXE, Kind::Text),
    ("_SYSTEMD_UNIT", Event::SYSTEMD_UNIT, Kind::Text),
    ("_HOSTNAME", Event::HOSTNAME, Kind::Text),
    ("_TRANSPORT", Event::TRANSPORT, Kind::Text),
];

/// The highest number of a priority: debug messages.
const LOWEST_PRIORITY: u32 = 7;

/// The fields of an entry that were recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// A bit for the number of each field of `SystemdJournaldEvent`.
    fields: u32,
    /// Whether a field was longer than [`LONGEST_FIELD`].
    pub is_cut: bool,
}

impl Taken {
    /// Notes that the field of this number was recorded. Returns whether it is the first of its name; later ones are left out.
    fn is_first(&mut self, number: u32) -> bool {
        let before = self.fields;
        self.fields |= 1 << number;
        self.fields != before
    }
}

/// The conditions on the entries that an instance records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filters {
    /// The highest number of a priority.
    min_prio: u32,
    identifiers: Vec<String>,
    units: Vec<String>,
}

impl Filters {
    /// The conditions of the config. Entries without a priority match no config, as with upstream.
    pub(super) fn of(config: &SystemdJournaldConfig) -> Filters {
        Filters {
            // There are no higher numbers.
            min_prio: config.min_prio.unwrap_or(LOWEST_PRIORITY).min(LOWEST_PRIORITY),
            identifiers: config.filter_identifiers.clone(),
            units: config.filter_units.clone(),
        }
    }

    /// The number of names in the filters.
    pub(super) fn names(&self) -> usize {
        self.identifiers.len() + self.units.len()
    }

    /// Conditions that the library checks, as `FIELD=value`. Conditions on one field are alternatives.
    pub(super) fn matches(&self) -> impl Iterator<Item = String> {
        let priorities = (0..=self.min_prio).map(|priority| format!("PRIORITY={priority}"));
        let identifiers = self
            .identifiers
            .iter()
            .map(|name| format!("SYSLOG_IDENTIFIER={name}"));
        let units = self.units.iter().map(|name| format!("_SYSTEMD_UNIT={name}"));
        priorities.chain(identifiers).chain(units)
    }
}

/// Replaces `packet` by the packet of an entry that was received at `monotonic_usec`. `fill` writes the entry's fields.
pub fn encode(packet: &mut Writer, monotonic_usec: u64, fill: impl FnOnce(&mut Event<'_>)) {
    packet.clear();
    write::TracePacket::new(packet)
        .timestamp(monotonic_usec.saturating_mul(1000))
        .timestamp_clock_id(BuiltinClock::BUILTIN_CLOCK_MONOTONIC as u32)
        .journald_event(fill);
}

/// Writes `field` (`NAME=value`) of an entry if fields of this name are recorded.
pub fn copy_field(field: &[u8], taken: &mut Taken, event: &mut Event<'_>) {
    let name = field.iter().take(LONGEST_NAME + 1).position(|&byte| byte == b'=');
    let Some((name, value)) = name.map(|equals| (&field[..equals], &field[equals + 1..])) else {
        return;
    };
    let Some(&(_, number, kind)) = FIELDS.iter().find(|(known, ..)| known.as_bytes() == name) else {
        return;
    };
    match kind {
        Kind::Text => {
            let value = &value[..whole_characters(value, LONGEST_FIELD - name.len() - 1)];
            // Upstream leaves empty values out too.
            if !value.is_empty() && taken.is_first(number) {
                taken.is_cut |= name.len() + 1 + value.len() < field.len();
                event.writer().bytes_field(number, value);
            }
        }
        Kind::Number => {
            if let Some(value) = whole_u32(value)
                && taken.is_first(number)
            {
                event.writer().varint_field(number, value.into());
            }
        }
    }
}

/// The number of bytes to keep, at most `most`, so that no character of the text is cut in two.
fn whole_characters(text: &[u8], most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let is_within = |at: &usize| text[*at] & 0xc0 == 0x80;
    // Text that is not UTF-8 may be cut anywhere.
    (most.saturating_sub(3)..=most)
        .rev()
        .find(|at| !is_within(at))
        .unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::trace_packet::Data;
    use ferretto_proto::messages::{Message, SystemdJournaldEvent, TracePacket};

    use super::*;

    /// The event of an entry with these fields, and the record of which fields were taken.
    fn event(fields: &[&[u8]]) -> (SystemdJournaldEvent, Taken) {
        let mut packet = Writer::default();
        let mut taken = Taken::default();
        encode(&mut packet, 1_234_567, |event| {
            fields
                .iter()
                .for_each(|field| copy_field(field, &mut taken, event));
        });
        let packet = TracePacket::decode_from_slice(packet.as_slice()).unwrap();
        assert_eq!(packet.timestamp, Some(1_234_567_000));
        assert_eq!(packet.timestamp_clock_id, Some(3));
        match packet.data {
            Some(Data::JournaldEvent(event)) => (*event, taken),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_field_of_an_entry_has_its_place() {
        let (event, taken) = event(&[
            b"_PID=12",
            b"_TID=13",
            b"_UID=1000",
            b"_GID=100",
            b"PRIORITY=4",
            b"SYSLOG_IDENTIFIER=sshd",
            b"MESSAGE=a=b, c",
            b"_COMM=sshd-session",
            b"_EXE=/usr/sbin/sshd",
            b"_SYSTEMD_UNIT=ssh.service",
            b"_HOSTNAME=here",
            b"_TRANSPORT=syslog",
            b"_BOOT_ID=0123",
            b"UNRELATED=1",
        ]);
        let text = |text: &str| Some(text.to_owned());
        let expected = SystemdJournaldEvent {
            pid: Some(12),
            tid: Some(13),
            uid: Some(1000),
            gid: Some(100),
            prio: Some(4),
            tag: text("sshd"),
            message: text("a=b, c"),
            comm: text("sshd-session"),
            exe: text("/usr/sbin/sshd"),
            systemd_unit: text("ssh.service"),
            hostname: text("here"),
            transport: text("syslog"),
            ..Default::default()
        };
        assert_eq!(event, expected);
        assert!(!taken.is_cut);
    }

    #[test]
    fn empty_fields_and_numbers_that_are_none_are_left_out() {
        let (event, _) = event(&[
            b"MESSAGE=",
            b"PRIORITY=high",
            b"_PID=",
            b"_UID=4294967296",
            b"_GID=-1",
            b"=",
            b"",
        ]);
        assert_eq!(event, SystemdJournaldEvent::default());
    }

    #[test]
    fn of_fields_with_the_same_name_the_first_counts() {
        let (event, _) = event(&[
            b"MESSAGE=",
            b"MESSAGE=one",
            b"MESSAGE=two",
            b"_PID=x",
            b"_PID=1",
            b"_PID=2",
        ]);
        assert_eq!(event.message.as_deref(), Some("one"));
        assert_eq!(event.pid, Some(1));
    }

    #[test]
    fn a_long_field_is_cut_between_two_characters_and_noted() {
        let longest = LONGEST_FIELD - "MESSAGE=".len();
        for spare in 0..4 {
            let fits = "x".repeat(longest);
            let (whole, taken) = event(&[format!("MESSAGE={fits}").as_bytes()]);
            assert_eq!((whole.message, taken.is_cut), (Some(fits), false));
            let start = "x".repeat(longest - spare);
            let (cut, taken) = event(&[format!("MESSAGE={start}\u{1f980}\u{1f980}").as_bytes()]);
            assert_eq!((cut.message, taken.is_cut), (Some(start), true), "{spare}");
        }
    }

    #[test]
    fn a_priority_stands_for_those_that_matter_more_and_names_for_themselves() {
        let matches = |config| Filters::of(&config).matches().collect::<Vec<_>>();
        let config = SystemdJournaldConfig {
            min_prio: Some(1),
            filter_identifiers: vec!["sshd".to_owned(), "a=b".to_owned()],
            filter_units: vec!["ssh.service".to_owned()],
            ..Default::default()
        };
        let expected = [
            "PRIORITY=0",
            "PRIORITY=1",
            "SYSLOG_IDENTIFIER=sshd",
            "SYSLOG_IDENTIFIER=a=b",
            "_SYSTEMD_UNIT=ssh.service",
        ];
        assert_eq!(Filters::of(&config).names(), 3);
        assert_eq!(matches(config), expected);
        let of_priority = |min_prio| {
            matches(SystemdJournaldConfig {
                min_prio,
                ..Default::default()
            })
        };
        assert_eq!(of_priority(Some(0)), ["PRIORITY=0"]);
        let all: Vec<_> = (0..8).map(|priority| format!("PRIORITY={priority}")).collect();
        assert_eq!(of_priority(None), all);
        assert_eq!(of_priority(Some(u32::MAX)), all);
    }
}
