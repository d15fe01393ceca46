//! `linux.systemd_journald` in whole systems: a private systemd-journald, our probes and upstream's beside each other, and machines whose journal
//! cannot be read.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::journal::PrivateJournal;
use crate::support::{Program, Programs, Recording, Side, System};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, SystemdJournaldEvent, Trace, TracePacket};
use rustix::process::Signal;

const NAME: &str = "linux.systemd_journald";

/// A config with that source alone, and with this in its own config.
fn config(own: &str) -> String {
    format!(
        "buffers {{ size_kb: 65536 }} flush_timeout_ms: 120000 data_source_stop_timeout_ms: 120000
        data_sources {{ config {{ name: '{NAME}' journald_config {{ {own} }} }} }}"
    )
}

/// Our service, and probes that see the private journal and no other; and the process id of the probes.
fn system_inside<'programs>(
    programs: &'programs Programs,
    side: Side,
    journal: &PrivateJournal,
) -> (System<'programs>, u32) {
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.program(side, Program::TracedProbes);
    let pid = system.start_copy(Path::new("nsenter"), Program::TracedProbes, |command| {
        command.args(journal.nsenter()).arg(probes);
    });
    (system, pid)
}

/// The entries of a trace with their times, in the order of the trace; and the last statistics.
struct Recorded {
    entries: Vec<(Option<u64>, Option<u32>, SystemdJournaldEvent)>,
    statistics: Option<(u64, u64)>,
}

fn read(trace: &Path) -> Recorded {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let mut recorded = Recorded {
        entries: Vec::new(),
        statistics: None,
    };
    for packet in trace.packet {
        let (time, clock) = (packet.timestamp, packet.timestamp_clock_id);
        let Some(Data::JournaldEvent(event)) = packet.data else {
            continue;
        };
        match (event.num_total, event.num_failed) {
            (Some(total), Some(failed)) => {
                assert_eq!(clock, Some(6), "statistics are on the boot clock");
                recorded.statistics = Some((total, failed));
            }
            (None, None) => recorded.entries.push((time, clock, *event)),
            other => panic!("half of the statistics: {other:?}"),
        }
    }
    recorded
}

fn messages(recorded: &Recorded) -> Vec<&str> {
    let entries = recorded.entries.iter();
    entries
        .filter_map(|(.., event)| event.message.as_deref())
        .collect()
}

/// Sends entries of all kinds: each identifier with each priority, and some that are special.
fn send_all_kinds(journal: &PrivateJournal) {
    for identifier in ["one", "two", "three"] {
        for priority in 0..8 {
            let priority = priority.to_string();
            let message = format!("{identifier} at {priority}");
            journal.send(&[
                ("MESSAGE", message.as_bytes()),
                ("PRIORITY", priority.as_bytes()),
                ("SYSLOG_IDENTIFIER", identifier.as_bytes()),
            ]);
        }
    }
    journal.send(&[("MESSAGE", b"no priority"), ("SYSLOG_IDENTIFIER", b"one")]);
    journal.send(&[
        ("MESSAGE", b""),
        ("PRIORITY", b"1"),
        ("SYSLOG_IDENTIFIER", b"one"),
    ]);
    journal.send(&[("PRIORITY", b"2"), ("CUSTOM", b"no message")]);
    journal.send(&[
        ("MESSAGE", "zwei\nZeilen, =übrigens".as_bytes()),
        ("PRIORITY", b"3"),
    ]);
    journal.send(&[
        ("MESSAGE", b"stated, not known"),
        ("PRIORITY", b"3"),
        ("_PID", b"1"),
        ("_COMM", b"forged"),
    ]);
    // This text is below 64 KiB, where we cut and upstream does not.
    let long = "long ".repeat(12_000);
    journal.send(&[("MESSAGE", long.as_bytes()), ("PRIORITY", b"6")]);
}

#[test]
fn what_is_recorded_is_what_upstream_records() {
    const CONFIGS: [&str; 7] = [
        "",
        "min_prio: 7",
        "min_prio: 3",
        "min_prio: 0",
        "filter_identifiers: 'two' filter_identifiers: 'three'",
        "min_prio: 4 filter_identifiers: 'one'",
        // No entry here belongs to a unit.
        "filter_units: 'ssh.service'",
    ];
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    // Upstream loses entries while no entry has matched its filters, so all kinds of entries exist before the recording.
    send_all_kinds(&journal);
    journal.settle();
    let sides = [Side::Ours, Side::Upstream].map(|side| system_inside(&programs, side, &journal).0);
    // A user may have five sessions at a time.
    for configs in CONFIGS.chunks(4) {
        let recordings = sides.each_ref().map(|system| {
            let record = |own: &&str| system.record(Side::Ours, &config(own));
            configs.iter().map(record).collect::<Vec<_>>()
        });
        send_all_kinds(&journal);
        journal.settle();
        let [ours, upstreams] = recordings.map(|of_side| {
            let traces = of_side.into_iter().map(Recording::interrupt);
            traces.map(|trace| read(&trace)).collect::<Vec<_>>()
        });
        for ((own, ours), upstreams) in configs.iter().zip(&ours).zip(&upstreams) {
            compare(own, ours, upstreams);
        }
    }
}

/// Asserts that both recordings are the same, and that neither is empty.
fn compare(own: &str, ours: &Recorded, upstreams: &Recorded) {
    assert_eq!(ours.entries, upstreams.entries, "{own}");
    assert_eq!(ours.statistics, Some((ours.entries.len() as u64, 0)), "{own}");
    assert_eq!(upstreams.statistics, ours.statistics, "{own}");
    let on_monotonic_clock = |(_, clock, _): &(_, Option<u32>, _)| *clock == Some(3);
    assert!(ours.entries.iter().all(on_monotonic_clock), "{own}");
    // Without a filter for identifiers, entries of journald itself may be among these.
    let (least, most) = match own {
        "" | "min_prio: 7" => (24 + 5, usize::MAX),
        "min_prio: 3" => (12 + 4, usize::MAX),
        "min_prio: 0" => (3, 3),
        "min_prio: 4 filter_identifiers: 'one'" => (6, 6),
        "filter_units: 'ssh.service'" => (0, 0),
        _ => (16, 16),
    };
    let entries = ours.entries.len();
    assert!((least..=most).contains(&entries), "{own}: {entries}");
}

#[test]
fn a_unit_that_had_nothing_to_say_before_is_recorded_from_its_first_message() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let programs = Programs::ours();
    let (system, _) = system_inside(&programs, Side::Ours, &journal);
    let recording = system.record(Side::Ours, &config("filter_identifiers: 'new'"));
    for number in 0..20 {
        let message = number.to_string();
        journal.send(&[
            ("MESSAGE", message.as_bytes()),
            ("PRIORITY", b"6"),
            ("SYSLOG_IDENTIFIER", b"new"),
        ]);
    }
    journal.settle();
    let recorded = read(&recording.interrupt());
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(messages(&recorded), expected);
}

#[test]
fn a_flood_of_messages_costs_other_data_sources_nothing() {
    const MESSAGES: usize = 20_000;
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let programs = Programs::ours();
    let (system, _) = system_inside(&programs, Side::Ours, &journal);
    let with_counters = format!(
        "{} data_sources {{ config {{ name: 'linux.sys_stats' sys_stats_config {{ meminfo_period_ms: 10 vmstat_period_ms: 10 }} }} }}",
        config("filter_identifiers: 'flood'")
    );
    let recording = system.record(Side::Ours, &with_counters);
    let padding = "x".repeat(1000);
    for number in 0..MESSAGES {
        let message = format!("{number} {padding}");
        journal.send(&[
            ("MESSAGE", message.as_bytes()),
            ("PRIORITY", b"6"),
            ("SYSLOG_IDENTIFIER", b"flood"),
        ]);
    }
    journal.settle();
    let trace = recording.interrupt();
    let recorded = read(&trace);
    assert_eq!(recorded.statistics, Some((MESSAGES as u64, 0)));
    let expected = (0..MESSAGES).map(|number| number.to_string());
    let numbers = messages(&recorded);
    let numbers = numbers
        .iter()
        .map(|message| message.split(' ').next().unwrap_or_default());
    assert!(numbers.eq(expected), "all of them, in order");
    let trace = Trace::decode_from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let lost = |packet: &&TracePacket| packet.previous_packet_dropped.is_some_and(|reason| reason != 0);
    assert_eq!(trace.packet.iter().filter(lost).count(), 0);
    let samples = trace
        .packet
        .iter()
        .filter(|packet| matches!(packet.data, Some(Data::SysStats(_))));
    assert!(samples.count() > 1);
}

/// Records with our probes, which the shell's `script` starts as `$0` where they cannot read the journal: in a mount namespace below that of
/// `journal`, if there is one. They say `why`.
fn cannot_read(script: &str, journal: Option<&PrivateJournal>, why: &[&str]) {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    std::fs::set_permissions(system.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    system.start(Side::Ours, Program::Traced);
    std::fs::set_permissions(system.producer_socket(), PermissionsExt::from_mode(0o777)).unwrap();
    let probes = system.copy_of(Side::Ours, Program::TracedProbes);
    let enter = match journal {
        Some(journal) => [&["nsenter".to_owned()][..], &journal.nsenter()].concat(),
        None => Vec::new(),
    };
    system.start_copy(Path::new("env"), Program::TracedProbes, |command| {
        command
            .args(enter)
            .args(["unshare", "--mount", "--", "sh", "-euc"]);
        command.arg(script).arg(probes);
    });
    let with_counters = format!(
        "{} data_sources {{ config {{ name: 'linux.sys_stats' sys_stats_config {{ meminfo_period_ms: 10 }} }} }}",
        config("")
    );
    let perfetto = system.program(Side::Ours, Program::Perfetto);
    let config_file = system.path("config");
    // On a busy machine the counters come late.
    std::fs::write(&config_file, with_counters + " duration_ms: 2000").unwrap();
    let trace = system.path("trace");
    let output = system
        .command(&perfetto, "perfetto.log")
        .args(["--txt", "-c"])
        .arg(&config_file)
        .arg("-o")
        .arg(&trace)
        .output()
        .unwrap();
    let said = system.log("perfetto.log");
    println!("{:?}\n{said}\n{}", output.status, system.log("traced_probes.log"));
    // The user who records sees the reason, and gets the rest of the trace.
    assert!(said.contains(NAME), "{said}");
    let log = system.log("traced_probes.log");
    for part in why {
        assert!(log.contains(part), "{part:?}:\n{log}");
        assert!(said.contains(part), "{part:?}:\n{said}");
    }
    let trace = Trace::decode_from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let is_sample = |packet: &TracePacket| matches!(packet.data, Some(Data::SysStats(_)));
    assert!(trace.packet.iter().any(is_sample));
    assert!(
        !trace
            .packet
            .iter()
            .any(|packet| matches!(packet.data, Some(Data::JournaldEvent(_))))
    );
}

/// Whether mount namespaces can be made, or a line that says that the test is skipped.
fn can_unshare() -> bool {
    let can = Command::new("unshare").args(["--mount", "true"]).status();
    let can = can.is_ok_and(|status| status.success());
    if !can {
        println!("skipped: this user may not make mount namespaces");
    }
    can
}

#[test]
fn a_machine_without_a_journal_is_recorded_without_it_and_told_so() {
    if can_unshare() {
        let hide = "mount -t tmpfs none /run; [ ! -d /var/log/journal ] || mount -t tmpfs none /var/log/journal; exec \"$0\"";
        let why = [
            "could not be started: this machine has no journal: there is none in \
             /run/log/journal and /var/log/journal;",
        ];
        cannot_read(hide, None, &why);
    }
}

#[test]
fn a_machine_without_libsystemd_is_recorded_without_its_journal_and_told_so() {
    if can_unshare() {
        let hide = "for library in $(ldconfig -p | sed -n 's/^.*libsystemd.so.0 .*=> //p'); do mount --bind /dev/null \"$library\"; done; exec \"$0\"";
        let why = [
            "could not be started: cannot load libsystemd.so.0: ",
            "; install it (Debian has it in libsystemd0",
        ];
        cannot_read(hide, None, &why);
    }
}

#[test]
fn a_user_who_may_not_read_the_journal_is_told_who_may() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let why = [
        "could not be started: this user may not read the journal (/run/log/journal/",
        "start traced_probes as root or as a member of the group systemd-journal",
    ];
    cannot_read(
        "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\"",
        Some(&journal),
        &why,
    );
}

/// Policy, real-time priority and nice value of the daemon's threads of this name, sorted.
fn scheduling(pid: u32, called: &str) -> Vec<[i32; 3]> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut readers: Vec<[i32; 3]> = threads
        .filter_map(|thread| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).ok()?;
            let (name, behind) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = behind.split(' ').collect();
            name.ends_with(&format!("({called}")).then(|| {
                // The name is the second field.
                [41, 40, 19].map(|number: usize| fields[number - 3].parse().unwrap())
            })
        })
        .collect();
    readers.sort_unstable();
    readers
}

#[test]
fn a_thread_that_reads_the_journal_runs_at_the_priority_of_its_own_session() {
    let may = Command::new("chrt").args(["-f", "1", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not raise priorities, or there is no chrt");
        return;
    }
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let programs = Programs::ours();
    let (mut system, probes) = system_inside(&programs, Side::Ours, &journal);
    let [usual] = scheduling(probes, "traced_probes")[..] else {
        panic!("one thread before there are sessions")
    };
    let boosted = config("").replace(
        "journald_config",
        "priority_boost { policy: POLICY_SCHED_FIFO priority: 42 } journald_config",
    );
    let first = system.record(Side::Ours, &boosted);
    let second = system.record(Side::Ours, &config(""));
    // A thread takes the priority of its own session when it begins to run. The second thread does not inherit the first thread's priority.
    let wanted = [usual, [libc::SCHED_FIFO, 42, 0]];
    system.await_state(|_| scheduling(probes, "journal_reader") == wanted);
    first.interrupt();
    second.interrupt();
    // The threads end with their sessions.
    system.await_state(|_| scheduling(probes, "journal_reader").is_empty());
    assert_eq!(
        system
            .end_with(probes, Signal::TERM)
            .and_then(|status| status.code()),
        Some(0)
    );
}

#[test]
fn each_session_has_its_own_reading_of_the_journal() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let programs = Programs::ours();
    let (system, _) = system_inside(&programs, Side::Ours, &journal);
    let send = |message: &str| {
        journal.send(&[
            ("MESSAGE", message.as_bytes()),
            ("PRIORITY", b"6"),
            ("SYSLOG_IDENTIFIER", b"test"),
        ]);
        journal.settle();
    };
    let own = config("filter_identifiers: 'test'");
    let first = system.record(Side::Ours, &own);
    send("a");
    let second = system.record(Side::Ours, &own);
    send("b");
    let first = read(&first.interrupt());
    send("c");
    let second = read(&second.interrupt());
    let seen = BTreeMap::from([("first", messages(&first)), ("second", messages(&second))]);
    assert_eq!(
        seen,
        BTreeMap::from([("first", vec!["a", "b"]), ("second", vec!["b", "c"])])
    );
}
