//! Test data: format files and raw pages of a real kernel (Linux 6.18, x86-64), with the kernel's own rendering of the
//! same events as text. Used by the tests of this folder only.

use super::format::PageLayout;
use super::printk_formats::PrintkFormats;
use super::table::Table;
use ferretto_proto::write::{DescriptorProto, FieldDescriptorProto};
use ferretto_wire::{Reader, Value};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// One page of the machine that the pages were recorded on.
pub(super) const PAGE_SIZE: usize = 4096;

pub(super) const HEADER_PAGE: &str = include_str!("testdata/header_page");
pub(super) const HEADER_EVENT: &str = include_str!("testdata/header_event");

/// A shell that starts programs on CPU 0: `sched_switch`, `sched_waking`, threads that come, go and change their name.
pub(super) const SCHED: Recording = Recording {
    pages: include_bytes!("testdata/sched.pages"),
    text: include_str!("testdata/sched.txt"),
};

/// Softirqs, work items, system calls, idle states, and events that the trace format has no message for.
pub(super) const MIXED: Recording = Recording {
    pages: include_bytes!("testdata/mixed.pages"),
    text: include_str!("testdata/mixed.txt"),
};

macro_rules! formats {
    ($($group:literal / $name:literal),* $(,)?) => {
        /// Group, name and format file of each event in the recordings, and of a few others.
        pub(super) const FORMATS: &[(&str, &str, &str)] =
            &[$(($group, $name, include_str!(concat!("testdata/formats/", $group, ".", $name)))),*];
    };
}

formats! {
    "sched" / "sched_switch", "sched" / "sched_waking", "sched" / "sched_process_exit", "sched" / "sched_process_exec",
    "sched" / "sched_process_fork", "task" / "task_rename", "task" / "task_newtask", "ftrace" / "print",
    "ftrace" / "funcgraph_entry", "irq" / "softirq_entry", "irq" / "softirq_exit", "irq" / "softirq_raise",
    "irq" / "irq_handler_entry", "irq" / "irq_handler_exit", "workqueue" / "workqueue_queue_work",
    "workqueue" / "workqueue_activate_work", "workqueue" / "workqueue_execute_start",
    "workqueue" / "workqueue_execute_end", "raw_syscalls" / "sys_enter", "raw_syscalls" / "sys_exit",
    "timer" / "hrtimer_expire_entry", "power" / "cpu_idle", "power" / "suspend_resume",
    "ext4" / "ext4_sync_file_enter", "ext4" / "ext4_sync_file_exit", "rcu" / "rcu_utilization",
    "block" / "block_bio_queue",
}

pub(super) fn format_of(group: &str, name: &str) -> &'static str {
    let found = FORMATS.iter().find(|(g, n, _)| (*g, *n) == (group, name));
    found
        .unwrap_or_else(|| panic!("no format file of {group}/{name} among the test data"))
        .2
}

/// A table with every event of the test data.
pub(super) fn table() -> Table {
    table_with_groups(str::to_owned)
}

/// A table with every event of the test data, in groups that the trace format has no messages for: `other_sched` for `sched`.
pub(super) fn untyped_table() -> Table {
    table_with_groups(|group| format!("other_{group}"))
}

fn table_with_groups(renamed: impl Fn(&str) -> String) -> Table {
    let layout = PageLayout::parse(HEADER_PAGE).unwrap();
    let mut table = Table::new(
        layout,
        PrintkFormats::parse(include_str!("testdata/printk_formats")),
    );
    for (group, name, format) in FORMATS {
        table.add(&renamed(group), name, format).unwrap();
    }
    table
}

pub(super) struct Recording {
    pub(super) pages: &'static [u8],
    text: &'static str,
}

impl Recording {
    /// The kernel's text for the same pages.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.text.lines().map(Line::parse).collect()
    }

    pub(super) fn lines_of(&self, event: &str) -> Vec<Line> {
        self.lines()
            .into_iter()
            .filter(|line| line.event == event)
            .collect()
    }
}

/// One event as the kernel prints it: `1234 d..2.  1487.876103: sched_switch: prev_comm=…`, without the thread's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) tid: i32,
    pub(super) microseconds: u64,
    pub(super) event: String,
    pub(super) text: String,
}

impl Line {
    fn parse(line: &str) -> Self {
        let (head, rest) = line.split_once(": ").unwrap();
        let mut words = head.split_whitespace();
        let tid = words.next().unwrap().parse().unwrap();
        let time = words.next_back().unwrap().replace('.', "");
        let (event, text) = rest.split_once(": ").unwrap_or((rest.trim_end_matches(':'), ""));
        Self {
            tid,
            microseconds: time.parse().unwrap(),
            event: event.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The value behind `name=`.
    pub(super) fn value(&self, name: &str) -> &str {
        let marker = format!(" {name}=");
        let text = &self.text;
        let start = match text.strip_prefix(&marker[1..]) {
            Some(_) => marker.len() - 1,
            None => {
                text.find(&marker)
                    .unwrap_or_else(|| panic!("no {name} in {text:?}"))
                    + marker.len()
            }
        };
        text[start..].split_whitespace().next().unwrap_or_default()
    }
}

/// The kernel prints microseconds, rounded.
pub(super) fn to_microseconds(nanoseconds: u64) -> u64 {
    (nanoseconds + 500) / 1000
}

/// Name of the message and name, number and type of each field, from an encoded `google.protobuf.DescriptorProto`.
pub(super) fn descriptor_fields(descriptor: &[u8]) -> (String, Vec<(String, u32, u64)>) {
    let text = |value: Value<'_>| String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap();
    let (mut message, mut fields) = (String::new(), Vec::new());
    for field in Reader::new(descriptor).map(Result::unwrap) {
        if field.number == DescriptorProto::NAME {
            message = text(field.value);
            continue;
        }
        let (mut name, mut number, mut ty) = (String::new(), 0, 0);
        for field in Reader::new(field.value.as_bytes().unwrap()).map(Result::unwrap) {
            match field.number {
                FieldDescriptorProto::NAME => name = text(field.value),
                FieldDescriptorProto::NUMBER => number = field.value.as_varint().unwrap() as u32,
                FieldDescriptorProto::TYPE => ty = field.value.as_varint().unwrap(),
                other => panic!("field {other} is none of a field descriptor that we write"),
            }
        }
        fields.push((name, number, ty));
    }
    (message, fields)
}

/// Where tracefs is mounted, if it is and we may look.
pub(super) fn tracefs() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("tracefs"))?;
    let root = PathBuf::from(mount.split(' ').nth(1)?);
    File::open(root.join("events/header_page"))
        .is_ok()
        .then_some(root)
}

/// The kernel gives these files to the first `read` only.
pub(super) fn read_at_once(path: &Path) -> String {
    let mut buffer = vec![0; 4096];
    let len = File::open(path).unwrap().read(&mut buffer).unwrap();
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

/// A table of all events that the running kernel has.
pub(super) fn live_table(tracefs: &Path) -> Table {
    let layout = PageLayout::parse(&read_at_once(&tracefs.join("events/header_page"))).unwrap();
    let printk_formats = fs::read_to_string(tracefs.join("printk_formats")).unwrap_or_default();
    let mut table = Table::new(layout, PrintkFormats::parse(&printk_formats));
    for group in fs::read_dir(tracefs.join("events")).unwrap().flatten() {
        for event in fs::read_dir(group.path()).into_iter().flatten().flatten() {
            let Ok(format) = fs::read_to_string(event.path().join("format")) else {
                continue;
            };
            let (group, name) = (
                group.file_name().into_string().unwrap(),
                event.file_name().into_string().unwrap(),
            );
            table.add(&group, &name, &format).unwrap();
        }
    }
    table
}
