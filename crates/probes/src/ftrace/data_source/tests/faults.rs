//! A missing or refused feature of the kernel costs only the parts that depend on it.

use super::*;
use crate::ftrace::format::PageLayout;
use crate::ftrace::test_instance::Mirror;
use std::fs;

/// Records from an instance whose files the test can take away.
fn mirrored() -> Option<(Recorder, Mirror)> {
    let instance = TestInstance::new()?;
    let mirror = Mirror::of(&instance);
    Some((Recorder::through(mirror.top(), instance), mirror))
}

fn told(recorder: &mut Recorder) -> Vec<String> {
    let incidents = recorder.controller.take_incidents().into_iter();
    incidents
        .inspect(|incident| assert_eq!(incident.weight, Weight::Trouble))
        .map(|incident| incident.text)
        .collect()
}

/// Makes every CPU record something, and returns the number of messages.
fn mark_on_all_cpus(recorder: &Recorder) -> usize {
    let cpus = recorder.instance.tracefs.cpus().unwrap();
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    for &cpu in &cpus {
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu as usize);
        rustix::thread::sched_setaffinity(None, &only).unwrap();
        recorder
            .marker()
            .write_all(format!("on {cpu}\n").as_bytes())
            .unwrap();
    }
    rustix::thread::sched_setaffinity(None, &before).unwrap();
    cpus.len()
}

#[test]
fn a_cpu_whose_buffer_cannot_be_opened_costs_only_that_cpu() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    mirror.take_away("per_cpu/cpu0/trace_pipe_raw");
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    let told = told(&mut recorder);
    assert!(
        told.len() == 1 && told[0].starts_with("CPU 0 is not recorded: cannot open "),
        "{told:?}"
    );
    let cpus = mark_on_all_cpus(&recorder);
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(FIRST).len(), cpus - 1);
    // The trace says so, and has the counters of the others.
    let stats = recorder.stats(FIRST);
    assert!(stats.iter().any(|stats| {
        let told = stats.atrace_errors.as_deref().unwrap_or_default();
        told.contains("CPU 0 is not recorded")
    }));
    assert_eq!(stats.last().unwrap().cpu_stats.len(), cpus - 1);
}

#[test]
fn a_later_session_gets_the_cpu_that_could_not_be_opened() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    let file = mirror.take_away("per_cpu/cpu0/trace_pipe_raw");
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    assert_eq!(told(&mut recorder).len(), 1);
    let real = recorder
        .instance
        .tracefs
        .root()
        .join("per_cpu/cpu0/trace_pipe_raw");
    std::os::unix::fs::symlink(real, file).unwrap();
    recorder.start(SECOND, &config);
    assert_eq!(told(&mut recorder), Vec::<String>::new());
    let cpus = mark_on_all_cpus(&recorder);
    recorder.stop(SECOND);
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(SECOND).len(), cpus);
}

#[test]
fn a_cpu_whose_buffer_cannot_be_read_costs_only_that_cpu() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    // It can be opened, but not read.
    fs::create_dir(mirror.take_away("per_cpu/cpu0/trace_pipe_raw")).unwrap();
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    let cpus = mark_on_all_cpus(&recorder);
    recorder.drain();
    recorder.drain();
    let told = told(&mut recorder);
    assert!(
        told.len() == 1 && told[0].contains("buffer of CPU 0 cannot be read"),
        "once: {told:?}"
    );
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(FIRST).len(), cpus - 1);
}

#[test]
fn without_any_buffer_there_is_no_session() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    for cpu in recorder.instance.tracefs.cpus().unwrap() {
        mirror.take_away(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
    }
    let config = recorder.config(&["ftrace/print"]);
    let now = boot_time();
    recorder.controller.setup_session(FIRST, &config, now).unwrap();
    let error = recorder
        .controller
        .start_session(FIRST, now, &mut Vec::new())
        .unwrap_err();
    assert!(error.to_string().contains("trace_pipe_raw"), "{error}");
    let errors = recorder.controller.stop_session(FIRST, now);
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn pages_that_the_kernel_does_not_describe_have_the_usual_layout() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    let described =
        PageLayout::parse(&recorder.instance.tracefs.read("events/header_page").unwrap()).unwrap();
    mirror.take_away("events/header_page");
    let config = recorder.config(&["ftrace/print"]);
    let warnings = recorder.start(FIRST, &config);
    assert!(
        warnings.len() == 1 && warnings[0].contains("header_page"),
        "{warnings:?}"
    );
    let instance = &recorder.controller.instances[&recorder.instance.name];
    assert_eq!(*instance.table.layout(), described);
    recorder.marker().write_all(b"read all the same\n").unwrap();
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(FIRST), ["read all the same\n"]);
}

#[test]
fn without_a_watermark_buffers_are_drained_by_time() {
    let Some((mut recorder, mirror)) = mirrored() else {
        return;
    };
    fs::create_dir(mirror.take_away("buffer_percent")).unwrap();
    let config = FtraceConfig {
        drain_buffer_percent: Some(50),
        ..recorder.config(&["ftrace/print"])
    };
    let now = boot_time();
    recorder.controller.setup_session(FIRST, &config, now).unwrap();
    let sink = recorder.sinks.entry(FIRST).or_default();
    let warnings = recorder.controller.start_session(FIRST, now, sink).unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("drain_buffer_percent has no effect"),
        "{warnings:?}"
    );
    assert_eq!(recorder.controller.period_ms(), DEFAULT_PERIOD_MS);
    recorder.stop(FIRST);
}

#[test]
fn watched_buffers_are_closed_with_their_session() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = FtraceConfig {
        drain_buffer_percent: Some(50),
        ..recorder.config(&["ftrace/print"])
    };
    recorder.start(FIRST, &config);
    // While a process has a buffer open, the instance cannot be removed and its tracer cannot be changed.
    let root = recorder.instance.tracefs.root().to_owned();
    let busy = fs::remove_dir(&root).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    let _closed_at_once = nobody_starts();
    recorder.stop(FIRST);
    fs::remove_dir(&root).unwrap();
}

#[test]
fn constant_strings_are_known_in_instances_too() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let formats = recorder.instance.top.read("printk_formats").unwrap_or_default();
    let known = formats.lines().find_map(|line| {
        let (address, string) = line.split_once(" : ")?;
        let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        (address != 0).then(|| (address, string.trim_matches('"').to_owned()))
    });
    let Some((address, string)) = known else {
        println!("skipped: this kernel has no constant strings, or hides their addresses");
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    let instance = &recorder.controller.instances[&recorder.instance.name];
    assert_eq!(instance.table.printk_formats().lookup(address), string);
    recorder.stop(FIRST);
}
