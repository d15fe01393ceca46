//! The running kernel's own pages, with every event that it has.

use super::super::super::fixtures::{live_table, tracefs};
use super::super::super::test_instance::all_events;
use super::super::super::typed;
use super::*;
use crate::test_processes::spawn;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ring buffers of our own, beside those of others.
struct Instance(PathBuf);

impl Instance {
    fn create(tracefs: &Path) -> io::Result<Self> {
        let path = tracefs.join(format!("instances/ferretto-decode-test-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn cpus(&self) -> Vec<PathBuf> {
        let cpus = fs::read_dir(self.0.join("per_cpu")).unwrap();
        cpus.map(|cpu| cpu.unwrap().path()).collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure has no remedy, and a panic here would hide the test's own.
        let _ = fs::remove_dir(&self.0);
    }
}

/// How many events are in a CPU's buffer.
fn entries(cpu: &Path) -> usize {
    let stats = fs::read_to_string(cpu.join("stats")).unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("entries: "));
    count.unwrap().trim().parse().unwrap()
}

/// All pages that are in a CPU's buffer.
fn drain(cpu: &Path, page_size: usize) -> Vec<u8> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(cpu.join("trace_pipe_raw"))
        .unwrap();
    let mut pages = Vec::new();
    let mut page = vec![0; page_size];
    loop {
        match file.read(&mut page) {
            Ok(0) => return pages,
            Ok(len) => pages.extend_from_slice(&page[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return pages,
            Err(error) => panic!("{}: {error}", cpu.display()),
        }
    }
}

#[test]
fn every_event_of_the_running_kernel_is_decoded() {
    let instance = tracefs().map(|root| (Instance::create(&root), root));
    let Some((Ok(instance), root)) = instance else {
        println!("skipped: no tracefs, or no right to make an instance in it");
        return;
    };
    let _events = all_events();
    let table = live_table(&root);
    let page_size = table.layout().page_size();
    instance.write("tracing_on", "0");
    // Every event of a busy machine has to fit.
    instance.write("buffer_size_kb", "8192");
    instance.write("events/enable", "1");
    instance.write("tracing_on", "1");
    for _ in 0..3 {
        assert!(
            spawn(&mut Command::new("true"))
                .unwrap()
                .wait()
                .unwrap()
                .success()
        );
    }
    instance.write("trace_marker", "seen");
    instance.write("tracing_on", "0");
    instance.write("events/enable", "0");

    let mut kinds = BTreeSet::new();
    for cpu in instance.cpus() {
        let in_buffer = entries(&cpu);
        let pages = drain(&cpu, page_size);
        let config = DecodeConfig {
            sched_encoding: SchedEncoding::Verbose,
            ..everything(&table)
        };
        let mut session = Session::new(&table, config);
        let mut packets: Vec<Vec<u8>> = Vec::new();
        let read = CpuRead {
            page_size,
            ..read_of(&pages)
        };
        BundleWriter::default().encode(&table, &mut session, &read, None, &mut packets);
        assert_eq!(
            session.parse_errors().iter().collect::<Vec<_>>(),
            [] as [&ParseStatus; 0]
        );

        let mut events = 0;
        for packet in &packets {
            let bundle = Reader::new(packet)
                .next()
                .unwrap()
                .unwrap()
                .value
                .as_bytes()
                .unwrap();
            for event in Reader::new(bundle)
                .map(Result::unwrap)
                .filter(|field| field.number == write::FtraceEventBundle::EVENT)
            {
                events += 1;
                kinds.extend(Reader::new(event.value.as_bytes().unwrap()).map(|field| field.unwrap().number));
            }
        }
        assert_eq!(
            events,
            in_buffer,
            "as many as the kernel counts in {}",
            cpu.display()
        );
        println!("{events} events in {}", cpu.display());
    }
    assert!(kinds.contains(&typed::find("ftrace", "print").unwrap().number));
    assert!(kinds.contains(&typed::find("raw_syscalls", "sys_enter").unwrap().number));
    assert!(kinds.iter().any(|number| *number >= FIRST_SELF_DESCRIBED));
}
