//! The reader beside a real systemd-journald.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferretto_client::data_source::Acknowledge;
use ferretto_client::runtime::instance_threads::{Command, Inbox, What};
use ferretto_ipc::reactor::{boot_now, monotonic_now};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, SystemdJournaldConfig, SystemdJournaldEvent, TracePacket};

use super::entry::{Filters, LONGEST_FIELD};
use super::follow::move_to_end;
use super::libsystemd::Journal;
use super::reader::{Progress, Reader};
use super::thread::{Runtime, take_commands};
use private_journal::PrivateJournal;

#[path = "../../../cli/tests/support/journal.rs"]
mod private_journal;

/// How long to wait for an entry before another one is sent.
const NUDGE: Duration = Duration::from_secs(1);
/// A limit far longer than the test needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader at the end of the journal, with these filters.
fn reader(journal: &PrivateJournal, config: SystemdJournaldConfig) -> Reader {
    let folder = journal.root().join("run/log/journal");
    let folder = CString::new(folder.as_os_str().as_bytes()).unwrap();
    let mut journal = Journal::open_directory(&folder).unwrap();
    move_to_end(&mut journal, Filters::of(&config).matches()).unwrap();
    Reader::new(journal)
}

/// The packets of the next `count` entries, however many turns it takes.
///
/// The library counts an entry before it can be found by its fields. A reader that looks in between sees the entry with the next one only, so
/// others are sent until all are found.
fn packets(journal: &PrivateJournal, reader: &mut Reader, count: usize) -> Vec<Vec<u8>> {
    let began = Instant::now();
    let mut packets = Vec::new();
    for nudges in 1.. {
        while began.elapsed() < NUDGE * nudges {
            reader.read(1 << 20, &mut packets).unwrap();
            if packets.len() >= count {
                return packets;
            }
            std::thread::yield_now();
        }
        assert!(began.elapsed() < PATIENCE, "{} of {count} entries", packets.len());
        journal.send(&[("FERRETTO_MARKER", b"nudge")]);
    }
    unreachable!()
}

fn decode(packet: &[u8]) -> (u64, SystemdJournaldEvent) {
    let packet = TracePacket::decode_from_slice(packet).unwrap();
    assert_eq!(packet.timestamp_clock_id, Some(3), "the monotonic clock");
    match packet.data {
        Some(Data::JournaldEvent(event)) => (packet.timestamp.unwrap(), *event),
        other => panic!("{other:?}"),
    }
}

fn messages(packets: &[Vec<u8>]) -> Vec<String> {
    let message = |packet: &Vec<u8>| decode(packet).1.message.unwrap_or_default();
    packets.iter().map(message).collect()
}

fn send(journal: &PrivateJournal, message: &str) {
    journal.send(&[("MESSAGE", message.as_bytes()), ("PRIORITY", b"5")]);
}

#[test]
fn entries_after_the_start_are_recorded_with_what_the_journal_knows_of_them() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    send(&journal, "before");
    journal.settle();
    let mut reader = reader(&journal, SystemdJournaldConfig::default());
    let began = monotonic_now();
    journal.send(&[
        ("MESSAGE", b"after, \xf0\x9f\xa6\x80\nin two lines"),
        ("PRIORITY", b"4"),
        ("SYSLOG_IDENTIFIER", b"a-test"),
    ]);
    let packets = packets(&journal, &mut reader, 1);
    assert_eq!(packets.len(), 1);
    let (time, event) = decode(&packets[0]);
    // The journal counts microseconds.
    assert!((began - 1000..=monotonic_now()).contains(&time), "{began} {time}");
    assert_eq!(event.message.as_deref(), Some("after, 🦀\nin two lines"));
    assert_eq!((event.prio, event.tag.as_deref()), (Some(4), Some("a-test")));
    assert_eq!(event.transport.as_deref(), Some("journal"));
    assert_eq!(event.pid, Some(std::process::id()));
    assert_eq!(event.uid, Some(rustix::process::geteuid().as_raw()));
    assert_eq!(event.gid, Some(rustix::process::getegid().as_raw()));
    let here = rustix::system::uname();
    assert_eq!(event.hostname.as_deref(), here.nodename().to_str().ok());
    let this = std::env::current_exe().unwrap();
    assert_eq!(event.exe.as_deref(), this.to_str());
    assert!(event.comm.is_some());
    assert_eq!((event.num_total, event.num_failed), (None, None));
}

#[test]
fn every_entry_counts_even_if_none_matched_before() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let config = SystemdJournaldConfig {
        filter_identifiers: vec!["new".to_owned(), "other".to_owned()],
        ..Default::default()
    };
    let mut reader = reader(&journal, config);
    let mut nothing: Vec<Vec<u8>> = Vec::new();
    assert_eq!(reader.read(1 << 20, &mut nothing).unwrap(), Progress::CaughtUp);
    assert!(nothing.is_empty());
    // All entries are there when it looks again.
    for number in 0..10 {
        let identifier = [&b"new"[..], b"other", b"none of them"][number % 3];
        let message = number.to_string();
        journal.send(&[
            ("MESSAGE", message.as_bytes()),
            ("PRIORITY", b"6"),
            ("SYSLOG_IDENTIFIER", identifier),
        ]);
    }
    journal.settle();
    let packets = packets(&journal, &mut reader, 1);
    assert_eq!(messages(&packets), ["0", "1", "3", "4", "6", "7", "9"]);
}

#[test]
fn a_priority_lets_through_what_matters_more() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let of = |min_prio| {
        let config = SystemdJournaldConfig {
            min_prio,
            ..Default::default()
        };
        reader(&journal, config)
    };
    let mut readers = [of(None), of(Some(3)), of(Some(0))];
    for priority in ["7", "3", "0", "4", "2"] {
        journal.send(&[
            ("MESSAGE", priority.as_bytes()),
            ("PRIORITY", priority.as_bytes()),
        ]);
    }
    journal.send(&[("MESSAGE", b"without")]);
    journal.settle();
    let seen = readers.each_mut().map(|reader| {
        // Entries of journald itself come with others.
        let packets = packets(&journal, reader, 1);
        let events = packets.iter().map(|packet| decode(packet).1);
        let sent = events.filter(|event| event.transport.as_deref() == Some("journal"));
        sent.filter_map(|event| event.message).collect::<Vec<_>>()
    });
    assert_eq!(seen, [&["7", "3", "0", "4", "2"][..], &["3", "0", "2"], &["0"]]);
}

#[test]
fn a_flood_is_read_in_turns_and_in_order() {
    const MESSAGES: usize = 1000;
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let mut reader = reader(&journal, SystemdJournaldConfig::default());
    let began = monotonic_now();
    let padding = "x".repeat(1000);
    for number in 0..MESSAGES {
        send(&journal, &format!("{number} {padding}"));
    }
    journal.settle();
    let sent = monotonic_now();
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut turns = 0;
    loop {
        let before = all.len();
        let progress = reader.read(20_000, &mut all).unwrap();
        let written: usize = all[before..].iter().map(Vec::len).sum();
        assert!(written < 20_000 + 2000, "{written} bytes in a turn");
        assert!(progress.has_reached(began), "it was before all of them");
        if progress.has_reached(sent) {
            break;
        }
        turns += 1;
    }
    assert!(turns > MESSAGES / 20, "{turns} turns");
    let numbers: Vec<String> = messages(&all)
        .iter()
        .filter_map(|message| Some(message.strip_suffix(&padding)?.trim().to_owned()))
        .collect();
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    let times: Vec<u64> = all.iter().map(|packet| decode(packet).0).collect();
    assert!(times.is_sorted());
}

#[test]
fn journals_that_are_rotated_are_followed() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let mut reader = reader(
        &journal,
        SystemdJournaldConfig {
            filter_identifiers: vec!["test".to_owned()],
            ..Default::default()
        },
    );
    let mut all = Vec::new();
    for number in 0..6 {
        let message = number.to_string();
        journal.send(&[
            ("MESSAGE", message.as_bytes()),
            ("PRIORITY", b"6"),
            ("SYSLOG_IDENTIFIER", b"test"),
        ]);
        journal.settle();
        if number % 2 == 0 {
            journal.journalctl(&["--rotate"]);
        }
        if number % 3 == 0 {
            all.extend(packets(&journal, &mut reader, 1));
        }
    }
    all.extend(packets(&journal, &mut reader, 6 - all.len()));
    assert_eq!(messages(&all), ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn a_message_of_any_bytes_is_recorded_and_a_long_one_is_cut() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let mut reader = reader(&journal, SystemdJournaldConfig::default());
    let fits = vec![b'a'; LONGEST_FIELD - "MESSAGE=".len()];
    let long = vec![b'b'; 100_000];
    for message in [&b"\xff\xfe no text"[..], &fits, &long] {
        journal.send(&[("MESSAGE", message), ("PRIORITY", b"6")]);
    }
    journal.settle();
    let packets = packets(&journal, &mut reader, 3);
    let holds = |packet: &[u8], part: &[u8]| packet.windows(part.len()).any(|window| window == part);
    assert!(holds(&packets[0], b"\xff\xfe no text"));
    let sizes = messages(&packets[1..])
        .iter()
        .map(String::len)
        .collect::<Vec<_>>();
    assert_eq!(sizes, [fits.len(), fits.len()]);
    assert_eq!(reader.cut(), 1);
}

#[test]
fn statistics_say_how_many_entries_there_were() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let mut reader = reader(&journal, SystemdJournaldConfig::default());
    let mut sink: Vec<Vec<u8>> = Vec::new();
    let before = boot_now();
    reader.write_statistics(&mut sink);
    send(&journal, "one");
    send(&journal, "two");
    journal.settle();
    assert_eq!(packets(&journal, &mut reader, 2).len(), 2);
    reader.write_statistics(&mut sink);
    let told = sink.iter().map(|packet| {
        let packet = TracePacket::decode_from_slice(packet).unwrap();
        assert!((before..=boot_now()).contains(&packet.timestamp.unwrap()));
        assert_eq!(packet.timestamp_clock_id, Some(6), "the boot clock");
        packet.data
    });
    let statistics = |total| {
        Some(Data::JournaldEvent(Box::new(SystemdJournaldEvent {
            num_total: Some(total),
            num_failed: Some(0),
            ..Default::default()
        })))
    };
    assert_eq!(told.collect::<Vec<_>>(), [statistics(0), statistics(2)]);
}

#[test]
fn a_stop_is_carried_out_although_the_channel_ends_with_it() {
    let told = Arc::new(AtomicBool::new(false));
    let done = |what| {
        let told = told.clone();
        let done = Acknowledge::new(move || told.store(what == What::Stop, Ordering::Relaxed));
        Command { what, done }
    };
    let (commands, inbox) = Inbox::new().unwrap();
    let mut waiting = Vec::new();
    assert_eq!(take_commands(&inbox, &mut waiting), Runtime::Commands);
    assert!(commands.send(done(What::Flush)).is_ok());
    assert!(commands.send(done(What::Stop)).is_ok());
    drop(commands);
    assert_eq!(take_commands(&inbox, &mut waiting), Runtime::Commands);
    assert_eq!(take_commands(&inbox, &mut waiting), Runtime::Commands);
    assert_eq!(waiting.len(), 2);
    assert!(!told.load(Ordering::Relaxed), "it has not stopped yet");
    waiting.clear();
    assert!(told.load(Ordering::Relaxed));
    assert_eq!(take_commands(&inbox, &mut waiting), Runtime::Gone);
}
