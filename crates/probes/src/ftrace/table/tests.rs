use super::super::field::Origin;
use super::super::fixtures::{
    FORMATS, descriptor_fields, format_of, live_table, read_at_once, table, tracefs, untyped_table,
};
use super::super::format::check_record_header;
use super::*;
use ferretto_proto::messages::{Message, ftrace_event_bundle::GenericEventDescriptor};
use std::collections::BTreeSet;

fn reads(plan: &EventPlan) -> Vec<(&str, u32, Read)> {
    plan.fields
        .iter()
        .map(|field| (field.name.as_str(), field.number, field.read))
        .collect()
}

#[test]
fn known_events_get_the_fields_of_their_message() {
    let table = table();
    let plan = table.find("sched", "sched_waking").unwrap();
    assert_eq!((plan.id, plan.size, plan.common_pid), (375, 36, Some(4)));
    assert_eq!(plan.encoding, Encoding::Typed { number: 20 });
    // `success` was in kernels before 4.13.
    let expected = [
        ("comm", 1, Read::FixedString),
        ("pid", 2, Read::Pid),
        ("prio", 3, Read::I32),
        ("target_cpu", 5, Read::I32),
    ];
    assert_eq!(reads(plan), expected);

    let plan = table.find("workqueue", "workqueue_queue_work").unwrap();
    let name = Read::DynamicString(Origin::Event);
    let expected = [
        ("work", 1, Read::Address64),
        ("function", 2, Read::Address64),
        ("req_cpu", 4, Read::I32),
        ("cpu", 5, Read::I32),
        ("workqueue", 6, name),
    ];
    assert_eq!(reads(plan), expected);

    let plan = table.find("ftrace", "print").unwrap();
    assert_eq!(reads(plan), [("buf", 2, Read::TrailingString)]);

    let plan = table.find("power", "suspend_resume").unwrap();
    let expected = [
        ("action", 1, Read::StringPointer64),
        ("val", 2, Read::I32),
        ("start", 3, Read::U8),
    ];
    assert_eq!(reads(plan), expected);
}

#[test]
fn functions_that_the_kernel_declares_as_integers_become_symbols() {
    let table = table();
    let plan = table.find("ftrace", "funcgraph_entry").unwrap();
    assert_eq!(
        plan.fields
            .iter()
            .find(|field| field.name == "func")
            .unwrap()
            .read,
        Read::Address64
    );
}

#[test]
fn system_calls_have_six_arguments() {
    let table = table();
    let plan = table.find("raw_syscalls", "sys_enter").unwrap();
    assert_eq!(
        plan.encoding,
        Encoding::SysEnter {
            number: 329,
            arguments: (16, Width::Eight)
        }
    );
    assert_eq!((reads(plan), plan.size), (vec![("id", 1, Read::U64)], 64));
}

#[test]
fn fields_of_a_type_that_does_not_fit_are_left_out() {
    let mut table = Table::new(PageLayout::sixty_four_bit(4096), PrintkFormats::default());
    let odd = format_of("sched", "sched_waking").replace(
        "int prio;\toffset:28;\tsize:4;\tsigned:1",
        "const char * prio;\toffset:28;\tsize:8;\tsigned:0",
    );
    table.add("sched", "sched_waking", &odd).unwrap();
    let names: Vec<_> = table
        .find("sched", "sched_waking")
        .unwrap()
        .fields
        .iter()
        .map(|field| field.name.clone())
        .collect();
    assert_eq!(names, ["comm", "pid", "target_cpu"]);
}

#[test]
fn unknown_events_are_described() {
    let table = untyped_table();
    let plan = table.find("other_block", "block_bio_queue").unwrap();
    let Encoding::Generic(described) = &plan.encoding else {
        panic!("{:?}", plan.encoding)
    };
    assert!(plan.is_generic());
    let descriptor = GenericEventDescriptor::decode_from_slice(&described.descriptor).unwrap();
    assert_eq!(descriptor.field_id, Some(described.number as i32));
    assert_eq!(descriptor.group_name.as_deref(), Some("other_block"));

    let message = descriptor_fields(descriptor.event_descriptor.as_deref().unwrap());
    let (int64, uint64, string) = (3, 4, 9);
    let expected = [
        ("dev", 1, uint64),
        ("sector", 2, uint64),
        ("nr_sector", 3, uint64),
        ("rwbs", 4, string),
        ("comm", 5, string),
    ];
    assert_eq!(message.0, "block_bio_queue");
    let fields: Vec<_> = message
        .1
        .iter()
        .map(|(name, number, ty)| (name.as_str(), *number, *ty))
        .collect();
    assert_eq!(fields, expected);

    let plan = table.find("other_timer", "hrtimer_expire_entry").unwrap();
    let Encoding::Generic(described) = &plan.encoding else {
        panic!("{:?}", plan.encoding)
    };
    let descriptor = GenericEventDescriptor::decode_from_slice(&described.descriptor).unwrap();
    let message = descriptor_fields(descriptor.event_descriptor.as_deref().unwrap());
    assert_eq!(
        message.1.iter().map(|(_, _, ty)| *ty).collect::<Vec<_>>(),
        [uint64, int64, uint64]
    );
}

#[test]
fn numbers_of_unknown_events_are_distinct_and_stay() {
    let mut table = table();
    let number = |table: &Table, name: &str| {
        table
            .plans()
            .find(|plan| plan.name == name)
            .and_then(|plan| match &plan.encoding {
                Encoding::Generic(described) => Some(described.number),
                _ => None,
            })
    };
    let before = number(&table, "rcu_utilization");
    let generic: Vec<_> = table
        .plans()
        .filter(|plan| plan.is_generic())
        .map(|plan| number(&table, &plan.name))
        .collect();
    assert_eq!(generic.iter().collect::<BTreeSet<_>>().len(), generic.len());
    assert!(
        generic
            .iter()
            .all(|number| number.is_some_and(|number| number >= FIRST_SELF_DESCRIBED))
    );
    table
        .add("rcu", "rcu_utilization", "not looked at again")
        .unwrap();
    assert_eq!(number(&table, "rcu_utilization"), before);
}

#[test]
fn removed_events_are_gone_and_their_ids_free() {
    let mut table = table();
    assert!(table.switch().is_some());
    let id = table.find("sched", "sched_switch").unwrap().id;
    table.remove("sched", "sched_switch");
    assert!(
        table.plan(id).is_none() && table.find("sched", "sched_switch").is_none() && table.switch().is_none()
    );

    let probe = |name: &str| {
        format_of("rcu", "rcu_utilization")
            .replace("rcu_utilization", name)
            .replace("ID: ", "ID: 20")
    };
    let first = table
        .add_kprobe("perfetto_kprobes", "first", &probe("first"))
        .unwrap();
    let second = table
        .add_kprobe("perfetto_kprobes", "second", &probe("second"))
        .unwrap();
    assert_eq!(first, second, "the kernel gave the id out again");
    assert!(table.find("perfetto_kprobes", "first").is_none());
    assert_eq!(table.plan(second).unwrap().encoding, Encoding::Kprobe);
}

#[test]
fn broken_formats_name_the_event() {
    let mut table = Table::new(PageLayout::sixty_four_bit(4096), PrintkFormats::default());
    let error = table.add("sched", "sched_switch", "").unwrap_err().to_string();
    assert!(
        error.contains("sched/sched_switch") && error.contains("common_type"),
        "{error}"
    );
}

#[test]
fn the_running_kernels_formats_are_understood() {
    let Some(root) = tracefs() else {
        println!("skipped: tracefs is not mounted or not readable");
        return;
    };
    check_record_header(&read_at_once(&root.join("events/header_event"))).unwrap();
    let table = live_table(&root);
    assert!(
        table.switch().is_some(),
        "sched_switch is not as the compact encoding expects"
    );
    assert!(
        table.waking().is_some(),
        "sched_waking is not as the compact encoding expects"
    );

    let mut dropped = Vec::new();
    let mut typed_here = 0;
    for plan in table.plans().filter(|plan| !plan.is_generic()) {
        let event = typed::find(&plan.group, &plan.name).unwrap();
        let file = root.join(format!("events/{}/{}/format", plan.group, plan.name));
        let format = EventFormat::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        typed_here += 1;
        for field in event.fields() {
            // Kernels lack some fields of the schema, which has those of many kernels.
            let of_kernel = format
                .fields
                .iter()
                .find(|known| known.name() == Some(field.name));
            let is_readable = of_kernel.is_some_and(|known| known.kind().is_some());
            if is_readable && !plan.fields.iter().any(|read| read.name == field.name) {
                dropped.push(format!("{}/{} {}", plan.group, plan.name, field.name));
            }
        }
    }
    println!("{typed_here} events of this kernel have a message of their own");
    assert!(
        typed_here > 50,
        "only {typed_here} events have a message of their own"
    );
    // The arguments of system calls have an encoding of their own.
    dropped.retain(|field| field != "raw_syscalls/sys_enter args");
    assert_eq!(
        dropped, [""; 0],
        "fields that this kernel has and that are not recorded"
    );
}

#[test]
fn every_event_of_the_test_data_is_planned_within_its_size() {
    let table = table();
    assert_eq!(table.plans().count(), FORMATS.len());
    for plan in table.plans() {
        for field in &plan.fields {
            assert!(
                field.offset + field.size <= plan.size,
                "{}.{}",
                plan.name,
                field.name
            );
        }
    }
}
