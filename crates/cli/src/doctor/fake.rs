//! A machine made of text, for the tests of checks. It is healthy at first; each test breaks something.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use ferretto_ipc::Address;
use ferretto_ipc::socket_names::SocketNameError;
use ferretto_ipc::transport::PeerCredentials;
use ferretto_proto::messages::tracing_service_state::{DataSource, Producer};
use ferretto_proto::messages::{DataSourceDescriptor, TracingServiceState};

use crate::machine::{Access, Answer, Machine, Owner};

pub(super) const TRACEFS: &str = "/sys/kernel/tracing";
pub(super) const CONSUMER: &str = "/run/perfetto/traced-consumer.sock";
pub(super) const PRODUCER: &str = "/run/perfetto/traced-producer.sock";
/// The pids of the healthy machine's service and probes.
pub(super) const TRACED: i32 = 100;
pub(super) const PROBES: i32 = 101;

/// The machine.
pub(super) struct Fake {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    owners: BTreeMap<String, Owner>,
    /// Files and folders that belong to others, with their contents.
    closed: BTreeSet<String>,
    /// Files that this user may only read.
    read_only: BTreeSet<String>,
    pub(super) free_space: u64,
    pub(super) variables: BTreeMap<&'static str, String>,
    pub(super) consumer_address: Result<Address, SocketNameError>,
    pub(super) producer_addresses: Result<Vec<Address>, SocketNameError>,
    pub(super) answer: Answer,
}

impl Fake {
    /// Makes root's machine, with a service and probes, and no faults.
    pub(super) fn healthy() -> Fake {
        let mut fake = Fake::empty();
        fake.user(0, "000001ffffffffff");
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.12.1\n"),
            ("/proc/self/uid_map", "         0          0 4294967295\n"),
            (
                "/proc/self/mounts",
                "nodev /sys/kernel/tracing tracefs rw,relatime 0 0\nproc /proc proc rw 0 0\n",
            ),
            ("/proc/self/cgroup", "0::/user.slice\n"),
            (
                "/proc/self/limits",
                "Limit  Soft Limit  Hard Limit  Units\nMax file size  unlimited  unlimited  bytes\nMax open files  1024  524288  files\nMax address space  unlimited  unlimited  bytes\n",
            ),
            ("/proc/filesystems", "nodev\tproc\nnodev\ttracefs\n\text4\n"),
            (
                "/proc/meminfo",
                "MemTotal:  8000000 kB\nMemAvailable:    4194304 kB\n",
            ),
            ("/proc/vmstat", ""),
            ("/proc/stat", ""),
            ("/proc/diskstats", ""),
            ("/proc/buddyinfo", ""),
            ("/proc/pressure/cpu", ""),
            ("/proc/kallsyms", ""),
            (
                "/proc/cpuinfo",
                "processor : 0\nflags : fpu tsc constant_tsc nonstop_tsc\n",
            ),
            ("/proc/sys/kernel/kptr_restrict", "1\n"),
            ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("/proc/1/status", "Name:\tinit\n"),
            ("/proc/1/comm", "init\n"),
            ("/proc/net/tcp", "  sl  local_address rem_address   st\n"),
            (
                "/etc/passwd",
                "root:x:0:0::/root:/bin/sh\nmaria:x:1000:1000::/home/maria:/bin/sh\n",
            ),
            ("/etc/group", "root:x:0:\ntraced-consumer:x:500:\n"),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                match std::env::consts::ARCH {
                    "aarch64" => "arch_sys_counter\n",
                    _ => "tsc\n",
                },
            ),
            ("/sys/devices/system/cpu/cpu0/cpufreq/x", ""),
            ("/sys/devices/system/cpu/cpu0/cpuidle/x", ""),
            ("/sys/class/thermal/thermal_zone0/x", ""),
            (
                "/sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            ),
            ("./x", ""),
            ("/tmp/x", ""),
        ] {
            fake.write(path, text);
        }
        for (file, text) in [
            ("tracing_on", "1\n"),
            ("current_tracer", "nop\n"),
            ("set_event", ""),
            ("trace_clock", "local [boot] mono\n"),
            ("buffer_size_kb", "7 (expanded: 1408)\n"),
            ("per_cpu/cpu0/stats", ""),
            ("per_cpu/cpu1/stats", ""),
            ("events/enable", "0\n"),
            ("events/header_page", ""),
        ] {
            fake.write(&format!("{TRACEFS}/{file}"), text);
        }
        for event in [
            "sched/sched_switch",
            "sched/sched_waking",
            "sched/sched_process_free",
            "task/task_newtask",
            "task/task_rename",
            "power/cpu_frequency",
            "power/cpu_idle",
            "power/suspend_resume",
            "irq/irq_handler_entry",
            "raw_syscalls/sys_enter",
            "ftrace/print",
        ] {
            fake.write(&format!("{TRACEFS}/events/{event}/format"), "");
        }
        fake.own(TRACEFS, 0, 0o700);
        fake.links
            .insert("/proc/self/ns/pid".into(), "pid:[4026531836]".into());
        fake.process(TRACED, "traced");
        fake.process(PROBES, "traced_probes");
        fake.own("/run/perfetto", 0, 0o755);
        fake.listen(TRACED, CONSUMER, 11);
        fake.listen(TRACED, PRODUCER, 12);
        fake.answer = service(&[
            "linux.ftrace",
            "linux.process_stats",
            "linux.sys_stats",
            "linux.perf",
            "org.example",
        ]);
        fake
    }

    /// Makes the same machine, used by a user without privileges.
    pub(super) fn of_maria() -> Fake {
        let mut fake = Fake::healthy();
        fake.user(1000, "0000000000000000");
        fake.close(TRACEFS);
        fake
    }

    /// Makes an empty machine, without even `/proc`.
    pub(super) fn empty() -> Fake {
        Fake {
            files: BTreeMap::new(),
            links: BTreeMap::new(),
            owners: BTreeMap::new(),
            closed: BTreeSet::new(),
            read_only: BTreeSet::new(),
            free_space: 100 << 30,
            variables: BTreeMap::new(),
            consumer_address: Ok(Address::Unix(CONSUMER.into())),
            producer_addresses: Ok(vec![Address::Unix(PRODUCER.into())]),
            answer: Answer::Absent,
        }
    }

    /// Removes the service and the probes.
    pub(super) fn without_service(mut self) -> Fake {
        self.answer = Answer::Absent;
        self.remove("/run/perfetto");
        self.remove("/proc/net/unix");
        self.remove(&format!("/proc/{TRACED}"));
        self.remove(&format!("/proc/{PROBES}"));
        self
    }

    pub(super) fn user(&mut self, uid: u32, capabilities: &str) {
        let status = format!(
            "Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\nGroups:\t{uid} 24 \nCapEff:\t{capabilities}\n"
        );
        self.write("/proc/self/status", &status);
    }

    pub(super) fn write(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), text.to_owned());
    }

    /// Removes a file, or a folder with its contents.
    pub(super) fn remove(&mut self, path: &str) {
        self.files.retain(|file, _| !is_in(file, path));
        self.links.retain(|link, _| !is_in(link, path));
        self.owners.retain(|file, _| !is_in(file, path));
    }

    pub(super) fn link_to(&mut self, path: &str, to: &str) {
        self.links.insert(path.to_owned(), to.to_owned());
    }

    pub(super) fn own(&mut self, path: &str, uid: u32, mode: u32) {
        self.owners.insert(path.to_owned(), Owner { uid, gid: uid, mode });
    }

    pub(super) fn own_by_group(&mut self, path: &str, gid: u32, mode: u32) {
        self.owners.insert(path.to_owned(), Owner { uid: 0, gid, mode });
    }

    /// Takes away this user's access to a path.
    pub(super) fn close(&mut self, path: &str) {
        self.closed.insert(path.to_owned());
    }

    /// Lets this user only read a path.
    pub(super) fn protect(&mut self, path: &str) {
        self.read_only.insert(path.to_owned());
    }

    /// Adds a process of this name.
    pub(super) fn process(&mut self, pid: i32, name: &str) {
        self.write(&format!("/proc/{pid}/comm"), &format!("{name}\n"));
        self.write(&format!("/proc/{pid}/status"), "");
    }

    /// Makes a process hold a file open.
    pub(super) fn open(&mut self, pid: i32, fd: u32, name: &str) {
        self.link_to(&format!("/proc/{pid}/fd/{fd}"), name);
    }

    /// Makes a process listen on a Unix socket.
    pub(super) fn listen(&mut self, pid: i32, path: &str, inode: u32) {
        let table = self
            .files
            .entry("/proc/net/unix".to_owned())
            .or_insert_with(|| "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned());
        table.push_str(&format!(
            "0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {path}\n"
        ));
        self.open(pid, inode, &format!("socket:[{inode}]"));
        self.own(path, 0, 0o666);
    }

    /// Makes a process listen on a TCP port, at an address in the kernel's spelling.
    pub(super) fn listen_tcp(&mut self, pid: i32, table: &str, address: &str, port: u16, inode: u32) {
        let table = self
            .files
            .entry(format!("/proc/net/{table}"))
            .or_insert_with(|| "sl\n".to_owned());
        table.push_str(&format!(
            "   0: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 {inode} 1 0 100 0 0 10 0\n"
        ));
        self.open(pid, inode, &format!("socket:[{inode}]"));
    }

    fn is_closed(&self, path: &str) -> bool {
        self.closed.iter().any(|closed| is_in(path, closed))
    }

    fn exists(&self, path: &str) -> bool {
        let within = |name: &String| is_in(name, path);
        self.files
            .keys()
            .chain(self.links.keys())
            .chain(self.owners.keys())
            .any(within)
    }

    fn reach(&self, path: &str) -> io::Result<()> {
        match (self.exists(path), self.is_closed(path)) {
            (_, true) => Err(ErrorKind::PermissionDenied.into()),
            (false, false) => Err(ErrorKind::NotFound.into()),
            (true, false) => Ok(()),
        }
    }
}

/// Whether a path is this folder or inside it.
fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Makes the answer of a service with one producer that offers these data sources.
pub(super) fn service(data_sources: &[&str]) -> Answer {
    let state = TracingServiceState {
        tracing_service_version: Some("Perfetto v58.2".into()),
        num_sessions: Some(0),
        num_sessions_started: Some(0),
        producers: vec![Producer {
            id: Some(1),
            name: Some("perfetto.traced_probes".into()),
            pid: Some(PROBES),
            uid: Some(0),
            ..Default::default()
        }],
        data_sources: data_sources
            .iter()
            .map(|name| DataSource {
                ds_descriptor: DataSourceDescriptor {
                    name: Some((*name).into()),
                    ..Default::default()
                }
                .into(),
                producer_id: Some(1),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    Answer::Service {
        state: Box::new(state),
        listener: Some(PeerCredentials {
            uid: 0,
            pid: Some(TRACED),
        }),
    }
}

impl Machine for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        self.reach(path)?;
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| ErrorKind::IsADirectory.into())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.reach(folder)?;
        let names: BTreeSet<String> = self
            .files
            .keys()
            .chain(self.links.keys())
            .chain(self.owners.keys())
            .filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/')?.split('/').next())
            .map(str::to_owned)
            .collect();
        Ok(names.into_iter().collect())
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.reach(path)?;
        self.links
            .get(path)
            .cloned()
            .ok_or_else(|| ErrorKind::InvalidInput.into())
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        // Examining a folder needs no access to its contents.
        let parent = PathBuf::from(path)
            .parent()
            .map(|parent| parent.display().to_string());
        if parent.is_some_and(|parent| self.is_closed(&parent)) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        match self.exists(path) {
            true => Ok(self.owners.get(path).copied().unwrap_or(Owner {
                uid: 0,
                gid: 0,
                mode: 0o644,
            })),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    fn allows(&self, path: &str, access: Access) -> io::Result<()> {
        self.reach(path)?;
        match access {
            Access::Write if self.read_only.iter().any(|kept| is_in(path, kept)) => {
                Err(ErrorKind::PermissionDenied.into())
            }
            _ => Ok(()),
        }
    }

    fn free_space(&self, folder: &str) -> io::Result<u64> {
        self.reach(folder)?;
        Ok(self.free_space)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn consumer_address(&self) -> Result<Address, SocketNameError> {
        self.consumer_address.clone()
    }

    fn producer_addresses(&self) -> Result<Vec<Address>, SocketNameError> {
        self.producer_addresses.clone()
    }

    fn program(&self) -> String {
        "ferretto".to_owned()
    }

    fn ask(&self, _: &Address) -> Answer {
        self.answer.clone()
    }
}
