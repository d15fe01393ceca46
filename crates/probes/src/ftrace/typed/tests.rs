use super::*;
use std::collections::BTreeSet;

#[test]
fn every_line_of_the_table_is_an_event_with_all_its_fields() {
    assert!(EVENTS.is_ascii());
    assert_eq!(all().count(), EVENTS.lines().count());
    for (event, line) in all().zip(EVENTS.lines()) {
        let parsed = event
            .fields
            .split_ascii_whitespace()
            .filter_map(TypedField::parse);
        assert_eq!(
            parsed.count(),
            line.split_ascii_whitespace().count() - 1,
            "{line}"
        );
    }
}

#[test]
fn lines_are_sorted_and_numbers_are_unique() {
    let keys: Vec<_> = all().map(|event| (event.group, event.name)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    let numbers: BTreeSet<u32> = all().map(|event| event.number).collect();
    assert_eq!(numbers.len(), keys.len());
}

#[test]
fn every_event_is_found() {
    for event in all() {
        assert_eq!(in_schema(event.group, event.name), Some(event));
    }
    assert_eq!(find("sched", "sched_switch").unwrap().number, 4);
}

#[test]
fn names_before_between_and_behind_the_lines_are_none() {
    for (group, name) in [
        ("", ""),
        ("zzz", "zzz"),
        ("sched", "sched_switcha"),
        ("hyp", ""),
        ("sched", "sys_enter"),
    ] {
        assert_eq!(find(group, name), None, "{group}/{name}");
    }
}

#[test]
fn the_kernels_name_may_lack_the_group() {
    assert_eq!(
        find("mali", "tracing_mark_write").unwrap().name,
        "mali_tracing_mark_write"
    );
    assert_eq!(find("kgsl", "gpu_frequency").unwrap().name, "kgsl_gpu_frequency");
    assert_eq!(find("power", "gpu_frequency").unwrap().name, "gpu_frequency");
    assert_eq!(find("systrace", "0").unwrap().name, "zero");
}

#[test]
fn a_group_that_was_split_keeps_its_messages() {
    assert_eq!(find("smbus", "smbus_read"), find("i2c", "smbus_read"));
    assert!(find("smbus", "smbus_read").is_some());
}

#[test]
fn every_exception_is_about_an_event_of_the_schema() {
    for (group, _, name) in RENAMED {
        assert!(in_schema(group, name).is_some(), "{group}/{name}");
    }
    for (group, event, field) in ADDRESSES.iter().chain(LEFT_OUT) {
        let event = in_schema(group, event).unwrap();
        let mut fields = event
            .fields
            .split_ascii_whitespace()
            .filter_map(TypedField::parse);
        assert!(fields.any(|known| known.name == *field), "{field}");
    }
    let fields = |event: &str| find("ftrace", event).unwrap().fields().collect::<Vec<_>>();
    assert!(fields("print").iter().all(|field| field.name != "ip"));
    assert!(
        fields("funcgraph_entry")
            .iter()
            .any(|field| field.declared == Declared::AsInteger)
    );
}
