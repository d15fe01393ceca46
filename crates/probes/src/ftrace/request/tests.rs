//! Tests of the module.

use super::*;
use crate::ftrace::test_instance::TestInstance;
use crate::test_files::TempDir;
use ferretto_proto::messages::ftrace_config::{KprobeEvent, TracefsOption};
use proptest::prelude::*;

fn events(names: &[&str]) -> FtraceConfig {
    FtraceConfig {
        ftrace_events: names.iter().map(|name| name.to_string()).collect(),
        ..FtraceConfig::default()
    }
}

#[test]
fn an_event_that_cannot_be_is_left_out_and_the_others_are_recorded() {
    for name in [
        "/sched",
        "sched/",
        "a/b/c",
        "*/*",
        "sched/*,irq/*",
        "sch*d",
        "sched/sched_*h",
        "new\nline",
        "tab\t",
        "é",
    ] {
        assert!(!is_event_pattern(name), "{name:?}");
        let Some(instance) = TestInstance::new() else {
            continue;
        };
        let config = events(&[name, "sched/sched_switch"]);
        let request = Request::new(&config, &instance.tracefs, InstanceRole::Top).unwrap();
        let switch = EventName::new("sched", "sched_switch");
        assert_eq!(request.events, BTreeSet::from([switch]), "{name:?}");
        assert_eq!(request.errors.unknown_events, [name]);
        assert_eq!(request.warnings.len(), 1, "{:?}", request.warnings);
    }
    for name in ["sched_switch", "sched/sched_switch", "sched/*", "a b", "*"] {
        assert!(is_event_pattern(name), "{name:?}");
    }
}

#[test]
fn a_name_without_a_group_is_the_event_that_has_a_message() {
    let folder = TempDir::new("bare-events");
    folder.write("tracing_on", "1");
    for event in [
        "aaa/sched_switch",
        "sched/sched_switch",
        "aaa/made_up",
        "bbb/made_up",
    ] {
        folder.write(&format!("events/{event}/format"), "");
    }
    let tracefs = Tracefs::at(folder.path()).unwrap();
    let request = Request::new(&events(&["sched_switch", "made_up"]), &tracefs, InstanceRole::Top).unwrap();
    let expected = [
        EventName::new("aaa", "made_up"),
        EventName::new("sched", "sched_switch"),
    ];
    assert_eq!(request.events, BTreeSet::from(expected));
}

#[test]
fn names_that_could_be_paths_or_commands_are_refused() {
    let command = FtraceConfig {
        function_filters: vec!["schedule:traceoff".into()],
        ..FtraceConfig::default()
    };
    assert!(matches!(
        check_names(&command),
        Err(RequestError::FunctionCommand(..))
    ));
    let category = FtraceConfig {
        atrace_categories: vec!["sch\u{7}".into()],
        ..FtraceConfig::default()
    };
    assert!(matches!(
        check_names(&category),
        Err(RequestError::AtraceName(..))
    ));
    let option = TracefsOption {
        name: Some("../current_tracer".into()),
        state: Some(State::STATE_ENABLED),
        ..TracefsOption::default()
    };
    let option = FtraceConfig {
        tracefs_options: vec![option],
        ..FtraceConfig::default()
    };
    assert!(matches!(
        exclusive_settings(&option),
        Err(RequestError::OptionName(_))
    ));
}

#[test]
fn buffers_are_as_large_as_asked_for_or_as_memory_allows() {
    let pages = |kib, lower_bound, memory| {
        let config = FtraceConfig {
            buffer_size_kb: kib,
            buffer_size_lower_bound: lower_bound,
            ..FtraceConfig::default()
        };
        let machine = Machine {
            memory,
            cpus: 2,
            page_bytes: 4096,
        };
        buffer_pages(&config, machine).0
    };
    const SMALL: u64 = 4 << 30;
    const LARGE: u64 = 8_000_000_000;
    assert_eq!(pages(None, None, SMALL), 512);
    assert_eq!(pages(None, None, LARGE), 2048);
    assert_eq!(pages(Some(0), None, LARGE), 2048);
    assert_eq!(pages(Some(1), None, LARGE), 1, "at least a page");
    assert_eq!(pages(Some(42), None, LARGE), 10, "rounded down to pages");
    assert_eq!(pages(Some(1024), Some(true), LARGE), 2048);
    assert_eq!(pages(Some(16384), Some(true), LARGE), 4096);
}

#[test]
fn the_buffers_of_many_cpus_take_a_bounded_part_of_the_memory() {
    let kib = |asked, cpus, memory| {
        let config = FtraceConfig {
            buffer_size_kb: asked,
            ..FtraceConfig::default()
        };
        let machine = Machine {
            memory,
            cpus,
            page_bytes: 4096,
        };
        let (pages, warning) = buffer_pages(&config, machine);
        (pages * 4, warning)
    };
    const GIB: u64 = 1 << 30;
    assert_eq!(kib(None, 256, 512 * GIB), (8192, None), "2 GiB of 512 are few");
    assert_eq!(kib(None, 256, 16 * GIB), (2048, None), "a thirty-second in all");
    assert_eq!(
        kib(Some(16384), 256, 16 * GIB),
        (16384, None),
        "a quarter in all, as asked"
    );
    let (used, warning) = kib(Some(65536), 256, 16 * GIB);
    assert_eq!(used, 16384);
    let warning = warning.unwrap();
    assert!(warning.contains("65536 KB for each of 256 CPUs"), "{warning}");
    assert_eq!(kib(Some(u32::MAX), 1, 4 * GIB).0, 1 << 20);
    assert_eq!(kib(None, 100_000, GIB).0, 4, "a page at least");
}

#[test]
fn probes_are_defined_as_the_kernel_wants_them() {
    let probe = |group| kprobe_definition(&EventName::new(group, "vfs_read"));
    assert_eq!(probe(KPROBE_GROUP), "p:perfetto_kprobes/vfs_read vfs_read");
    assert_eq!(
        probe(KRETPROBE_GROUP),
        "r1024:perfetto_kretprobes/vfs_read vfs_read"
    );
}

#[test]
fn events_are_resolved_against_the_kernel() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let request = |config: &FtraceConfig| Request::new(config, &instance.tracefs, InstanceRole::Top).unwrap();

    let by_name = request(&events(&["sched_switch", "sched/sched_waking"]));
    let expected = ["sched_switch", "sched_waking"].map(|name| EventName::new("sched", name));
    assert_eq!(by_name.events, BTreeSet::from(expected));
    assert_eq!(by_name.errors, SetupErrors::default());

    let group = request(&events(&["sched/*"]));
    let listed: BTreeSet<String> = group.events.into_iter().map(|event| event.name).collect();
    assert_eq!(listed, instance.tracefs.events_of("sched").unwrap());

    let unknown = request(&events(&[
        "nonsense",
        "sched/nonsense",
        "nonsense/*",
        "*",
        "perfetto_kprobes/x",
    ]));
    assert_eq!(unknown.events, BTreeSet::new());
    assert_eq!(
        unknown.errors.unknown_events,
        [
            "nonsense",
            "sched/nonsense",
            "nonsense/*",
            "*",
            "perfetto_kprobes/x"
        ]
    );

    let syscalls = request(&FtraceConfig {
        syscall_events: vec!["sys_read".into(), "sys_nonsense".into()],
        ..FtraceConfig::default()
    });
    let number = syscalls::number("sys_read").unwrap();
    assert_eq!(syscalls.syscalls, SyscallSet::Only(BTreeSet::from([number])));
    assert_eq!(syscalls.events.len(), 2);
    assert_eq!(syscalls.warnings.len(), 1);
    assert_eq!(request(&events(&["raw_syscalls/*"])).syscalls, SyscallSet::All);
    let unknown = request(&FtraceConfig {
        syscall_events: vec!["sys_nonsense".into()],
        ..events(&["raw_syscalls/*", "sched/sched_switch"])
    });
    assert_eq!(unknown.syscalls, SyscallSet::None);
    assert_eq!(
        unknown.events,
        BTreeSet::from([EventName::new("sched", "sched_switch")])
    );

    let category = request(&FtraceConfig {
        atrace_categories: vec!["sched".into()],
        ..FtraceConfig::default()
    });
    for event in ["sched/sched_switch", "task/task_newtask", "ftrace/print"] {
        assert!(
            category.events.iter().any(|listed| listed.to_string() == event),
            "{event}"
        );
    }
    let userspace = request(&FtraceConfig {
        atrace_categories: vec!["sched".into()],
        atrace_userspace_only: Some(true),
        ..FtraceConfig::default()
    });
    assert_eq!(
        userspace.events,
        BTreeSet::from([EventName::new("ftrace", "print")])
    );
}

#[test]
fn atrace_belongs_to_the_top_instance() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let config = FtraceConfig {
        atrace_apps: vec!["*".into()],
        ..FtraceConfig::default()
    };
    let request = Request::new(&config, &instance.tracefs, InstanceRole::Secondary);
    assert!(matches!(request, Err(RequestError::AtraceInInstance)));
}

#[test]
fn a_probe_of_both_ends_is_a_slice() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let probe = |name: &str, kind| KprobeEvent {
        probe: Some(name.into()),
        r#type: Some(kind),
        ..KprobeEvent::default()
    };
    let config = FtraceConfig {
        kprobe_events: vec![
            probe("vfs_read", ConfigKprobeType::KPROBE_TYPE_BOTH),
            probe("vfs_open", ConfigKprobeType::KPROBE_TYPE_KRETPROBE),
            probe("a b; rm", ConfigKprobeType::KPROBE_TYPE_KPROBE),
            probe("untyped", ConfigKprobeType::KPROBE_TYPE_UNKNOWN),
        ],
        ..FtraceConfig::default()
    };
    let request = Request::new(&config, &instance.tracefs, InstanceRole::Top).unwrap();
    let expected = [
        (EventName::new(KPROBE_GROUP, "vfs_read"), KprobeType::Begin),
        (EventName::new(KRETPROBE_GROUP, "vfs_read"), KprobeType::End),
        (EventName::new(KRETPROBE_GROUP, "vfs_open"), KprobeType::Instant),
    ];
    assert_eq!(request.kprobes, BTreeMap::from(expected));
    assert_eq!(request.errors.failed_events, ["perfetto_kprobes/a b; rm"]);
    assert_eq!(request.warnings.len(), 1);
}

fn any_syscall_set() -> impl Strategy<Value = SyscallSet> {
    prop_oneof![
        Just(SyscallSet::None),
        Just(SyscallSet::All),
        prop::collection::btree_set(0u16..500, 1..5).prop_map(SyscallSet::Only),
    ]
}

proptest! {
    #[test]
    fn every_session_gets_its_system_calls(sets in prop::collection::vec(any_syscall_set(), 0..5)) {
        let union = SyscallSet::union(sets.clone());
        let has = |set: &SyscallSet, number| match set {
            SyscallSet::None => false,
            SyscallSet::Only(numbers) => numbers.contains(&number),
            SyscallSet::All => true,
        };
        for number in 0..500 {
            prop_assert_eq!(has(&union, number), sets.iter().any(|set| has(set, number)));
        }
    }
}
