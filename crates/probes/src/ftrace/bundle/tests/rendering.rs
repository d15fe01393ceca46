//! Bundles against the kernel's own rendering of the same events as text.

use super::*;
use crate::ftrace::field::ProtoType;
use crate::ftrace::fixtures::{FORMATS, untyped_table};
use crate::ftrace::typed;

/// How the kernel would print an event that has a message of its own.
fn print(event: &FtraceEvent) -> (String, String) {
    let text = |string: &Option<String>| string.clone().unwrap();
    let (name, text) = match event.event.as_ref().unwrap() {
        Event::Print(e) => ("tracing_mark_write", text(&e.buf).trim_end().to_owned()),
        Event::SchedSwitch(e) => {
            let state = match e.prev_state.unwrap() {
                0 | 256 => "R",
                1 => "S",
                2 => "D",
                32 => "Z",
                128 => "I",
                other => panic!("a state that the recording does not have: {other}"),
            };
            let plus = if e.prev_state == Some(256) { "+" } else { "" };
            let (prev, next) = (text(&e.prev_comm), text(&e.next_comm));
            let (prev_pid, prev_prio) = (e.prev_pid.unwrap(), e.prev_prio.unwrap());
            let (next_pid, next_prio) = (e.next_pid.unwrap(), e.next_prio.unwrap());
            (
                "sched_switch",
                format!(
                    "prev_comm={prev} prev_pid={prev_pid} prev_prio={prev_prio} prev_state={state}{plus} ==> next_comm={next} next_pid={next_pid} next_prio={next_prio}"
                ),
            )
        }
        Event::SchedWaking(e) => {
            let (comm, pid, prio, cpu) = (
                text(&e.comm),
                e.pid.unwrap(),
                e.prio.unwrap(),
                e.target_cpu.unwrap(),
            );
            (
                "sched_waking",
                format!("comm={comm} pid={pid} prio={prio} target_cpu={cpu:03}"),
            )
        }
        Event::SchedProcessExec(e) => {
            let (file, pid, old) = (text(&e.filename), e.pid.unwrap(), e.old_pid.unwrap());
            (
                "sched_process_exec",
                format!("filename={file} pid={pid} old_pid={old}"),
            )
        }
        Event::SchedProcessExit(e) => {
            let (comm, pid, prio) = (text(&e.comm), e.pid.unwrap(), e.prio.unwrap());
            (
                "sched_process_exit",
                format!("comm={comm} pid={pid} prio={prio} group_dead=true"),
            )
        }
        Event::SchedProcessFork(e) => {
            let (comm, pid, child, child_pid) = (
                text(&e.parent_comm),
                e.parent_pid.unwrap(),
                text(&e.child_comm),
                e.child_pid.unwrap(),
            );
            (
                "sched_process_fork",
                format!("comm={comm} pid={pid} child_comm={child} child_pid={child_pid}"),
            )
        }
        Event::TaskRename(e) => {
            let (pid, old, new, adj) = (
                e.pid.unwrap(),
                text(&e.oldcomm),
                text(&e.newcomm),
                e.oom_score_adj.unwrap(),
            );
            (
                "task_rename",
                format!("pid={pid} oldcomm={old} newcomm={new} oom_score_adj={adj}"),
            )
        }
        Event::TaskNewtask(e) => {
            let (pid, comm, flags, adj) = (
                e.pid.unwrap(),
                text(&e.comm),
                e.clone_flags.unwrap(),
                e.oom_score_adj.unwrap(),
            );
            (
                "task_newtask",
                format!("pid={pid} comm={comm} clone_flags={flags:x} oom_score_adj={adj}"),
            )
        }
        Event::CpuIdle(e) => (
            "cpu_idle",
            format!("state={} cpu_id={}", e.state.unwrap(), e.cpu_id.unwrap()),
        ),
        Event::SoftirqEntry(e) => ("softirq_entry", softirq(e.vec.unwrap())),
        Event::SoftirqExit(e) => ("softirq_exit", softirq(e.vec.unwrap())),
        Event::SoftirqRaise(e) => ("softirq_raise", softirq(e.vec.unwrap())),
        Event::SysEnter(e) => {
            let args: Vec<String> = e.args.iter().map(|arg| format!("{arg:x}")).collect();
            ("sys_enter", format!("NR {} ({})", e.id.unwrap(), args.join(", ")))
        }
        Event::SysExit(e) => ("sys_exit", format!("NR {} = {}", e.id.unwrap(), e.ret.unwrap())),
        other => panic!("an event that the recording does not have: {other:?}"),
    };
    (name.to_owned(), text)
}

fn softirq(vec: u32) -> String {
    let actions = [
        "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
    ];
    format!("vec={vec} [action={}]", actions[vec as usize])
}

#[test]
fn events_with_messages_say_what_the_kernel_prints() {
    let table = table();
    for (recording, names) in [
        (
            SCHED,
            &[
                "sched_switch",
                "sched_waking",
                "sched_process_exec",
                "sched_process_exit",
                "sched_process_fork",
                "task_rename",
                "task_newtask",
                "print",
            ][..],
        ),
        (
            MIXED,
            &[
                "softirq_entry",
                "softirq_exit",
                "softirq_raise",
                "sys_enter",
                "sys_exit",
                "cpu_idle",
                "print",
            ],
        ),
    ] {
        let config = DecodeConfig {
            sched_encoding: SchedEncoding::Verbose,
            ..only(&table, names)
        };
        let bundle = bundle(&table, config, &recording);
        let wanted = |line: &Line| names.contains(&line.event.as_str()) || line.event == "tracing_mark_write";
        let lines: Vec<Line> = recording.lines().into_iter().filter(wanted).collect();
        assert!(lines.len() > 100);
        let decoded: Vec<Line> = bundle
            .event
            .iter()
            .map(|event| {
                let (name, text) = print(event);
                let (tid, microseconds) = (
                    event.pid.unwrap() as i32,
                    to_microseconds(event.timestamp.unwrap()),
                );
                Line {
                    tid,
                    microseconds,
                    event: name,
                    text,
                }
            })
            .collect();
        for (decoded, line) in decoded.iter().zip(&lines) {
            assert_eq!(decoded, line);
        }
        assert_eq!(decoded.len(), lines.len());
    }
}

#[test]
fn compact_columns_say_what_the_kernel_prints() {
    let table = table();
    let bundle = bundle(&table, only(&table, &["sched_switch", "sched_waking"]), &SCHED);
    assert!(
        bundle.event.is_empty(),
        "scheduler events are in the columns only"
    );
    let sched = bundle.compact_sched.as_option().unwrap();
    let absolute = |deltas: &[u64]| {
        let mut now = 0;
        deltas
            .iter()
            .map(|delta| {
                now += delta;
                to_microseconds(now)
            })
            .collect::<Vec<_>>()
    };

    let lines = SCHED.lines_of("sched_switch");
    assert_eq!(
        absolute(&sched.switch_timestamp),
        lines.iter().map(|line| line.microseconds).collect::<Vec<_>>()
    );
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(
            sched.intern_table[sched.switch_next_comm_index[at] as usize],
            line.value("next_comm")
        );
        assert_eq!(sched.switch_next_pid[at].to_string(), line.value("next_pid"));
        assert_eq!(sched.switch_next_prio[at].to_string(), line.value("next_prio"));
        let letter = match sched.switch_prev_state[at] {
            0 => "R",
            1 => "S",
            2 => "D",
            32 => "Z",
            128 => "I",
            256 => "R+",
            other => panic!("{other}"),
        };
        assert_eq!(letter, line.value("prev_state"));
    }
    assert_eq!(sched.switch_next_comm_index.len(), lines.len());

    let lines = SCHED.lines_of("sched_waking");
    assert_eq!(
        absolute(&sched.waking_timestamp),
        lines.iter().map(|line| line.microseconds).collect::<Vec<_>>()
    );
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(
            sched.intern_table[sched.waking_comm_index[at] as usize],
            line.value("comm")
        );
        assert_eq!(sched.waking_pid[at].to_string(), line.value("pid"));
        assert_eq!(sched.waking_prio[at].to_string(), line.value("prio"));
        assert_eq!(
            sched.waking_target_cpu[at],
            line.value("target_cpu").parse::<i32>().unwrap()
        );
    }
    assert_eq!(sched.waking_common_flags.len(), lines.len());
    assert!(sched.waking_common_flags.iter().any(|flags| *flags != 0));
    let unique: std::collections::BTreeSet<_> = sched.intern_table.iter().collect();
    assert_eq!(unique.len(), sched.intern_table.len());
}

/// Values of a self-described event by field name, read with the help of the descriptors in its bundle.
fn self_described(bundle: &FtraceEventBundle, encoded: &[u8]) -> Vec<(String, BTreeMap<String, String>)> {
    let mut described = BTreeMap::new();
    for descriptor in &bundle.generic_event_descriptors {
        let fields = descriptor_fields(descriptor.event_descriptor.as_deref().unwrap());
        described.insert(descriptor.field_id.unwrap() as u32, fields);
    }
    let fields_of = |bytes: &'static [u8]| Reader::new(bytes).map(Result::unwrap);
    let leak = |bytes: &[u8]| -> &'static [u8] { bytes.to_vec().leak() };
    let mut events = Vec::new();
    for event in fields_of(leak(encoded)).filter(|field| field.number == write::FtraceEventBundle::EVENT) {
        for field in
            fields_of(event.value.as_bytes().unwrap()).filter(|field| field.number >= FIRST_SELF_DESCRIBED)
        {
            let (name, descriptors) = &described[&field.number];
            let values = fields_of(field.value.as_bytes().unwrap()).map(|value| {
                let (name, _, ty) = descriptors
                    .iter()
                    .find(|(_, number, _)| *number == value.number)
                    .unwrap();
                let text = match (ty, value.value) {
                    (3, Value::Varint(value)) => (value as i64).to_string(),
                    (4, Value::Varint(value)) => value.to_string(),
                    (9, Value::Bytes(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
                    other => panic!("{name}: type and value disagree: {other:?}"),
                };
                (name.clone(), text)
            });
            events.push((name.clone(), values.collect()));
        }
    }
    events
}

fn check_generic(events: &[(String, BTreeMap<String, String>)]) {
    let of = |name: &str| {
        events
            .iter()
            .filter(|(event, _)| event == name)
            .map(|(_, fields)| fields)
            .collect::<Vec<_>>()
    };
    let queued = of("block_bio_queue");
    let line = &MIXED.lines_of("block_bio_queue")[0];
    // As in `7,0 FS 0 + 8 [sync]`.
    let words: Vec<&str> = line.text.split_whitespace().collect();
    let (major, minor) = words[0].split_once(',').unwrap();
    let device = rustix::fs::makedev(major.parse().unwrap(), minor.parse().unwrap());
    assert_eq!(queued[0]["dev"], device.to_string());
    assert_eq!(
        [&queued[0]["rwbs"], &queued[0]["sector"], &queued[0]["nr_sector"]],
        [words[1], words[2], words[4]]
    );
    assert_eq!(queued[0]["comm"], "sync");

    let lines = MIXED.lines_of("rcu_utilization");
    assert_eq!(
        of("rcu_utilization")
            .iter()
            .map(|fields| fields["s"].as_str())
            .collect::<Vec<_>>(),
        lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>()
    );

    let lines = MIXED.lines_of("hrtimer_expire_entry");
    let now: Vec<_> = of("hrtimer_expire_entry")
        .iter()
        .map(|fields| fields["now"].clone())
        .collect();
    assert_eq!(
        now,
        lines.iter().map(|line| line.value("now")).collect::<Vec<_>>()
    );
    let line = &MIXED.lines_of("ext4_sync_file_exit")[0];
    // As in `dev 7,0 ino 12 ret 0`.
    let words: Vec<&str> = line.text.split_whitespace().collect();
    let exit = of("ext4_sync_file_exit")[0];
    assert_eq!([&exit["ino"], &exit["ret"]], [words[3], words[5]]);
}

const GENERIC: &[&str] = &[
    "block_bio_queue",
    "rcu_utilization",
    "hrtimer_expire_entry",
    "ext4_sync_file_enter",
    "ext4_sync_file_exit",
];

#[test]
fn unknown_events_can_be_read_by_their_descriptors() {
    let table = untyped_table();
    let mut session = Session::new(&table, only(&table, GENERIC));
    let mut packets: Vec<Vec<u8>> = Vec::new();
    BundleWriter::default().encode(&table, &mut session, &read_of(MIXED.pages), None, &mut packets);
    let packet = TracePacket::decode_from_slice(&packets[0]).unwrap();
    let bundle = bundle_of(&packet);
    assert_eq!(
        bundle.generic_event_descriptors.len(),
        GENERIC.len(),
        "one descriptor per kind, however many events"
    );
    let encoded = Reader::new(&packets[0])
        .next()
        .unwrap()
        .unwrap()
        .value
        .as_bytes()
        .unwrap();
    check_generic(&self_described(bundle, encoded));
}

#[test]
fn unknown_events_can_spell_out_their_names() {
    let table = untyped_table();
    let config = DecodeConfig {
        generic_encoding: GenericEncoding::Names,
        ..only(&table, GENERIC)
    };
    let bundle = bundle(&table, config, &MIXED);
    assert!(bundle.generic_event_descriptors.is_empty());
    let events = bundle.event.iter().map(|event| {
        let Some(Event::Generic(generic)) = &event.event else {
            panic!("{event:?}")
        };
        let fields = generic.field.iter().map(|field| {
            let value = match field.value.as_ref().unwrap() {
                GenericValue::StrValue(text) => text.to_string(),
                GenericValue::IntValue(value) => value.to_string(),
                GenericValue::UintValue(value) => value.to_string(),
            };
            (field.name.clone().unwrap(), value)
        });
        (generic.event_name.clone().unwrap(), fields.collect())
    });
    check_generic(&events.collect::<Vec<_>>());
}

/// Values of events by field name, read with the help of the table of typed events.
fn by_table_of_types(encoded: &[u8]) -> Vec<(String, BTreeMap<String, String>)> {
    let mut events = Vec::new();
    let fields_of = |bytes: &'static [u8]| Reader::new(bytes).map(Result::unwrap);
    let leaked: &'static [u8] = encoded.to_vec().leak();
    for event in fields_of(leaked).filter(|field| field.number == write::FtraceEventBundle::EVENT) {
        for field in fields_of(event.value.as_bytes().unwrap()) {
            let Some(typed) = typed::all().find(|typed| typed.number == field.number) else {
                continue;
            };
            let values = fields_of(field.value.as_bytes().unwrap()).map(|value| {
                let known = typed.fields().find(|known| known.number == value.number).unwrap();
                let text = match (known.proto_type, value.value) {
                    (ProtoType::Int32 | ProtoType::Int64, Value::Varint(value)) => (value as i64).to_string(),
                    (ProtoType::Uint32 | ProtoType::Uint64, Value::Varint(value)) => value.to_string(),
                    (ProtoType::String, Value::Bytes(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
                    other => panic!("{}: type and value disagree: {other:?}", known.name),
                };
                (known.name.to_owned(), text)
            });
            events.push((typed.name.to_owned(), values.collect()));
        }
    }
    events
}

#[test]
fn events_with_messages_have_the_values_that_they_would_have_without() {
    for recording in [SCHED, MIXED] {
        let (typed, untyped) = (table(), untyped_table());
        let names: Vec<&str> = FORMATS
            .iter()
            // The arguments of system calls are no field without a message; `rcu` has no messages.
            .filter(|(group, ..)| !["raw_syscalls", "rcu"].contains(group))
            .map(|(_, name, _)| *name)
            .collect();
        let encoded = |table: &Table| {
            let config = DecodeConfig {
                sched_encoding: SchedEncoding::Verbose,
                ..only(table, &names)
            };
            let mut session = Session::new(table, config);
            let mut packets: Vec<Vec<u8>> = Vec::new();
            BundleWriter::default().encode(
                table,
                &mut session,
                &read_of(recording.pages),
                None,
                &mut packets,
            );
            packets.remove(0)
        };
        let bundle_in = |packet: &[u8]| -> Vec<u8> {
            let mut fields = Reader::new(packet).map(Result::unwrap);
            let bundle = fields.find(|field| field.number == write::TracePacket::FTRACE_EVENTS);
            bundle.unwrap().value.as_bytes().unwrap().to_vec()
        };
        let of_untyped = encoded(&untyped);
        let packet = TracePacket::decode_from_slice(&of_untyped).unwrap();
        let without = self_described(bundle_of(&packet), &bundle_in(&of_untyped));
        let with = by_table_of_types(&bundle_in(&encoded(&typed)));
        assert_eq!(with.len(), without.len());
        for ((name, fields), (untyped_name, untyped_fields)) in with.iter().zip(&without) {
            assert_eq!(name, untyped_name);
            assert!(!fields.is_empty(), "{name}");
            for (field, value) in fields {
                assert_eq!(value, &untyped_fields[field], "{name}.{field}");
            }
        }
    }
}
