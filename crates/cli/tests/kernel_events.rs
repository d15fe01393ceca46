//! Kernel events of as many groups as a script can provoke, recorded by upstream's probes and ours at the same time: each event, with each of
//! its fields, is the same to upstream's trace processor.
//!
//! Each side records from an instance of tracefs of its own. The kernel writes every event into both, and only those of the script's
//! processes, so that the two recordings can be compared event for event.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::trace::{LOSSES, Rows, TraceProcessor};
use crate::support::tracefs::{Instance, Tracefs};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use ferretto_probes::ftrace::field::FieldKind;
use ferretto_probes::ftrace::format::EventFormat;
use ferretto_probes::ftrace::typed;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, Trace};
use rustix::process::{Pid, Signal, kill_process};

const TRACEFS: &str = "/sys/kernel/tracing";

/// Groups that the script cannot provoke, or that only repeat others: each event that is recorded costs both probes some milliseconds. The
/// events of `lock` are about the recording itself.
const NOT_RECORDED: &[&str] = &[
    "ftrace", "lock", "syscalls", "initcall", "btrfs", "xfs", "kvm", "kvmmmu", "mei", "damon",
];

/// Waits for a line, then provokes kernel events. Steps that a machine does not allow are left out.
const SCRIPT: &str = r#"
read go
d=$(mktemp -d)
exec 2>/dev/null
# Files, on a file system of their own.
dd if=/dev/zero of=$d/image bs=1M count=8
mkfs.ext4 -q $d/image; mkdir $d/mounted; mount -o loop $d/image $d/mounted
mkdir $d/mounted/folder; dd if=/dev/zero of=$d/mounted/folder/file bs=64k count=16
sync -f $d/mounted; cat $d/mounted/folder/file >/dev/null
flock $d/mounted/folder/file true
truncate -s 0 $d/mounted/folder/file; rm -r $d/mounted/folder; umount $d/mounted
# Control groups.
for root in /sys/fs/cgroup /sys/fs/cgroup/pids; do
  mkdir $root/ferretto-$$ && sh -c "echo \$\$ >$root/ferretto-$$/cgroup.procs"; rmdir $root/ferretto-$$
done
# Sockets, also to nobody.
exec 3<>/dev/tcp/127.0.0.1/$PORT && echo hello >&3; exec 3>&-
exec 3<>/dev/tcp/127.0.0.1/9; exec 3<>/dev/tcp/::1/9
exec 3<>/dev/udp/127.0.0.1/9 && echo hello >&3 && echo hello >&3; exec 3>&-
# Signals, timers, processes, names, scores, the kernel's log.
kill -CONT $$
timeout 0.05 sleep 10
timeout 1 sh -c 'kill -9 $$'
echo 10 >/proc/self/oom_score_adj
echo renamed >/proc/self/comm
echo 'ferretto provokes kernel events' >/dev/kmsg
chrt --fifo 1 true; taskset -c 0 true; nice true
rm -r $d
"#;

/// An instance of tracefs that records the processes of one script only.
fn instance_of(script: u32) -> Option<Instance> {
    let instance = Instance::new()?;
    instance.write("options/event-fork", "1");
    instance.write("set_event_pid", &script.to_string());
    Some(instance)
}

fn config_of(instance: &Instance, groups: &BTreeSet<String>) -> String {
    let events: String = groups
        .iter()
        .map(|group| format!("ftrace_events: \"{group}/*\" "))
        .collect();
    format!(
        "buffers {{ size_kb: 131072 fill_policy: DISCARD }}
            data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{
                instance_name: \"{}\" buffer_size_kb: 16384 drain_period_ms: 250 symbolize_ksyms: true {events}
            }} }} }}",
        instance.name()
    )
}

/// The thread of an event, and its fields.
type Event = (String, BTreeMap<String, String>);

/// The events of a trace by CPU and name.
fn events(processor: &TraceProcessor, trace: &Path) -> BTreeMap<(String, String), Vec<Event>> {
    let [losses, rows] = processor.query(
        trace,
        [
            LOSSES,
            "select e.cpu, e.name, t.tid,
                group_concat(a.key || '=' || replace(replace(coalesce(a.display_value, ''), char(10), '|'), char(9), '|'), char(31))
            from ftrace_event e join thread t using (utid) left join args a using (arg_set_id)
            group by e.id",
        ],
    );
    assert_eq!(losses, Rows::new());
    let mut events: BTreeMap<(String, String), Vec<Event>> = BTreeMap::new();
    for row in rows {
        let [cpu, name, tid, fields] = row.try_into().unwrap();
        let fields = fields.split('\u{1f}').filter_map(|field| field.split_once('='));
        let fields = fields.map(|(key, value)| (key.to_owned(), value.to_owned()));
        events
            .entry((cpu, name))
            .or_default()
            .push((tid, fields.collect()));
    }
    events
}

/// The events of the script's processes. The two instances do not begin and end to record a thread at the same instant when it is switched in or
/// out, so each may have events of other threads that the other instance lacks.
fn of_script(
    mut events: BTreeMap<(String, String), Vec<Event>>,
    script: u32,
) -> BTreeMap<(String, String), Vec<Event>> {
    let started = events.iter().filter(|((_, name), _)| name == "task_newtask");
    let started =
        started.flat_map(|(_, events)| events.iter().filter_map(|(_, fields)| fields.get("pid").cloned()));
    let threads: BTreeSet<String> = started.chain([script.to_string()]).collect();
    for events in events.values_mut() {
        events.retain(|(tid, _)| threads.contains(tid));
    }
    events.retain(|_, events| !events.is_empty());
    events
}

/// The kernel's description of its events' fields.
struct Kernel(BTreeMap<String, (String, EventFormat)>);

impl Kernel {
    fn new(groups: &BTreeSet<String>) -> Kernel {
        let mut formats = BTreeMap::new();
        for group in groups {
            for event in std::fs::read_dir(Path::new(TRACEFS).join("events").join(group))
                .unwrap()
                .flatten()
            {
                if let Ok(format) = std::fs::read_to_string(event.path().join("format")) {
                    let name = event.file_name().into_string().unwrap();
                    formats.insert(name, (group.clone(), EventFormat::parse(&format).unwrap()));
                }
            }
        }
        Kernel(formats)
    }

    fn group(&self, event: &str) -> &str {
        &self.0[event].0
    }

    fn kind(&self, event: &str, field: &str) -> Option<FieldKind> {
        let (_, format) = self.0.get(event)?;
        let field = format.fields.iter().find(|known| known.name() == Some(field))?;
        field.kind()
    }

    /// Whether the value of the field may differ between the two recordings. Such fields are interned ids; constant strings, which upstream cannot
    /// resolve in instances; and what the kernel looks up anew for each instance: the state of a thread that ends, the current tick, counters of
    /// the whole machine, and an inode's state, which another CPU may change at any time.
    fn may_differ(&self, event: &str, field: &str) -> bool {
        let kind = self.kind(event, field);
        matches!(
            kind,
            Some(FieldKind::KernelAddress(_) | FieldKind::StringPointer(_))
        ) || match (event, field) {
            ("sched_switch", "prev_state") | ("timer_start" | "timer_expire_entry", "now") => true,
            ("global_dirty_state", field) => field.starts_with("nr_"),
            (event, "state" | "dirtied_when") => self.group(event) == "writeback",
            _ => false,
        }
    }

    /// Whether upstream drops the field of a typed event, because the kernel's integer has another width or sign than the message's.
    fn is_another_integer(&self, event: &str, field: &str) -> bool {
        let Some(typed) = typed::find(self.group(event), event) else {
            return false;
        };
        let wanted = typed.fields().find(|known| known.name == field);
        let kind = self.kind(event, field);
        let read = wanted.and_then(|wanted| kind?.read_as(wanted.proto_type));
        matches!(kind, Some(FieldKind::Unsigned(_) | FieldKind::Signed(_))) && read.is_some()
    }
}

#[test]
fn every_event_that_can_be_provoked_is_recorded_as_upstream_does() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    if !Tracefs::is_usable() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = Command::new("bash")
        .args(["-c", SCRIPT])
        .env("PORT", listener.local_addr().unwrap().port().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let mut script = Running(script.unwrap());
    let Some(instances) = [Side::Upstream, Side::Ours]
        .into_iter()
        .map(|side| instance_of(script.pid()).map(|instance| (side, instance)))
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let groups: BTreeSet<String> = std::fs::read_dir(Path::new(TRACEFS).join("events"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|group| !NOT_RECORDED.contains(&group.as_str()))
        .collect();
    let systems: Vec<_> = instances
        .iter()
        .map(|(side, instance)| (System::with_daemons(&programs, Side::Ours, *side), instance))
        .collect();
    let recordings: Vec<_> = systems
        .iter()
        .map(|(system, instance)| system.record(Side::Ours, &config_of(instance, &groups)))
        .collect();
    script.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(script.wait(PATIENCE).is_some(), "the script does not end");
    let traces: Vec<_> = recordings
        .into_iter()
        .map(|recording| recording.interrupt())
        .collect();
    let [upstreams, ours] =
        [&traces[0], &traces[1]].map(|trace| of_script(events(&processor, trace), script.pid()));

    let kernel = Kernel::new(&groups);
    let mut differences: Vec<String> = Vec::new();
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for ((cpu, name), theirs) in &upstreams {
        let nothing = Vec::new();
        let ours = ours.get(&(cpu.clone(), name.clone())).unwrap_or(&nothing);
        seen.entry(kernel.group(name)).or_default().insert(name);
        let written: BTreeSet<&String> = theirs.iter().flat_map(|(_, fields)| fields.keys()).collect();
        // An interrupt may come after the kernel has written an event into one instance and before it writes it into the other, so order does not count.
        let comparable = |events: &[Event]| {
            let comparable = events.iter().map(|(tid, fields)| {
                let fields = fields.iter().filter(|(field, _)| written.contains(field));
                let fields = fields.map(|(field, value)| match kernel.may_differ(name, field) {
                    true => (field.clone(), String::new()),
                    false => (field.clone(), value.clone()),
                });
                (tid.clone(), fields.collect())
            });
            let mut comparable: Vec<Event> = comparable.collect();
            comparable.sort();
            comparable
        };
        let [theirs, ours_as_theirs] = [theirs, ours].map(|events| comparable(events));
        if theirs != ours_as_theirs {
            let first = theirs
                .iter()
                .zip(&ours_as_theirs)
                .find(|(their, our)| their != our);
            let counts = (theirs.len(), ours.len());
            differences.push(format!("{name} on CPU {cpu}, {counts:?} events: {first:?}"));
        }
        let only_here: BTreeSet<&String> = ours
            .iter()
            .flat_map(|(_, fields)| fields.keys())
            .filter(|field| !written.contains(*field) && !kernel.is_another_integer(name, field))
            .collect();
        if !only_here.is_empty() {
            differences.push(format!("{name}: only here {only_here:?}"));
        }
    }
    let only_here = ours.keys().filter(|key| !upstreams.contains_key(*key));
    differences.extend(only_here.map(|(cpu, name)| format!("{name} on CPU {cpu}: only here")));
    let typed =
        |group: &str, names: &BTreeSet<&str>| names.iter().any(|name| typed::find(group, name).is_some());
    let typed_groups = seen.iter().filter(|(group, names)| typed(group, names)).count();
    let count: usize = upstreams.values().map(Vec::len).sum();
    println!(
        "{count} events of {} kinds in {} groups, {typed_groups} of them with messages: {seen:?}",
        seen.values().map(BTreeSet::len).sum::<usize>(),
        seen.len()
    );
    assert!(differences.is_empty(), "{differences:#?}");
    assert!(
        seen.len() >= 30 && typed_groups >= 12,
        "the script provoked little"
    );
}

/// The processes that `linux.process_stats` describes in a trace.
fn described_processes(trace: &Path) -> usize {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let trees = trace.packet.into_iter().filter_map(|packet| match packet.data {
        Some(Data::ProcessTree(tree)) => Some(tree.processes.len()),
        _ => None,
    });
    trees.sum()
}

#[test]
fn threads_get_no_names_from_the_proc_of_another_pid_namespace() {
    let programs = Programs::ours();
    if !Tracefs::is_usable() {
        return;
    }
    let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("skipped: no pid namespace of its own can be had here");
        return;
    }
    let mut described = Vec::new();
    for wrapper in [&[][..], &unshare] {
        let Some(instance) = Instance::new() else { return };
        let mut system = System::new(&programs);
        system.start(Side::Ours, Program::Traced);
        let probes = programs.path(Side::Ours, Program::TracedProbes);
        let pid = match wrapper.split_first() {
            None => system.start_copy(&probes, Program::TracedProbes, |_| {}),
            Some((unshare, flags)) => {
                system.start_copy(Path::new(unshare), Program::TracedProbes, |command| {
                    command.args(flags).arg(&probes);
                })
            }
        };
        let recording = system.record(
            Side::Ours,
            &format!(
                "buffers {{ size_kb: 16384 }}
                data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{
                    instance_name: \"{}\" ftrace_events: \"sched/sched_switch\"
                }} }} }}
                data_sources {{ config {{ name: \"linux.process_stats\" }} }}",
                instance.name()
            ),
        );
        // At least one process runs during the recording.
        assert!(Command::new("true").status().unwrap().success());
        described.push(described_processes(&recording.interrupt()));
        let told = system.log("traced_probes.log").contains("the machine's ids");
        assert_eq!(told, !wrapper.is_empty());
        // `unshare` does not pass signals on.
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for child in children.split_whitespace() {
            kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::TERM).unwrap();
        }
        drop(system);
    }
    assert!(described[0] > 0 && described[1] == 0, "{described:?}");
}

/// The names of the slices and counters of the probes' own work.
fn metatrace(processor: &TraceProcessor, trace: &Path) -> [BTreeSet<String>; 2] {
    let queries = processor.query(
        trace,
        [
            "select distinct s.name from slice s where s.category = 'metatrace'",
            "select distinct t.name from counter c join track t on t.id = c.track_id where t.type = 'metatrace_counter'",
            LOSSES,
        ],
    );
    assert_eq!(queries[2], Rows::new());
    let [slices, counters, _] = queries;
    [slices, counters].map(|rows| rows.into_iter().flatten().collect())
}

#[test]
fn the_probes_trace_their_own_work_as_upstreams_do() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let Some(_tracefs) = Tracefs::lock() else { return };
    // On a busy machine, ours without optimizations read the kernel's symbols for seconds before they do anything else.
    let config = r#"
        buffers { size_kb: 16384 }
        data_sources { config { name: "perfetto.metatrace" } }
        data_sources { config { name: "linux.ftrace" ftrace_config {
            ftrace_events: "sched/sched_switch" drain_period_ms: 100 symbolize_ksyms: true
        } } }
        data_sources { config { name: "linux.process_stats" process_stats_config {
            scan_all_processes_on_start: true proc_stats_poll_ms: 200
        } } }
        data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 100 } } }
        duration_ms: 8000"#;
    let [upstreams, mut ours] = [Side::Upstream, Side::Ours].map(|side| {
        // Each service has a metatrace of its own, but only upstream's service offers it as a data source.
        let system = System::with_daemons(&programs, Side::Ours, side);
        let trace = system.record(Side::Ours, config).finish();
        metatrace(&processor, &trace)
    });
    assert!(upstreams.iter().all(|names| names.len() >= 2), "{upstreams:?}");
    // Releases after the reference and after this trace processor added this counter.
    ours[1].remove("Counter 11");
    ours[1].remove("FTRACE_SESSIONS");
    assert_eq!(ours, upstreams);
}
