//! Checks of tracefs, ftrace, events, symbols, processes, and counters.

use super::super::fake::TRACEFS;
use super::*;

const NO_KERNEL_EVENTS: &str = "no kernel events";

/// Root's healthy machine without a running service; recordings start their own.
fn alone() -> Fake {
    Fake::healthy().without_service()
}

/// The same machine, used by a user to whom root gave tracefs.
fn maria_with_tracefs() -> Fake {
    let mut fake = alone();
    fake.user(1000, "0");
    fake
}

#[test]
fn where_it_is_not_mounted_the_command_depends_on_who_would_mount_it() {
    let mut fake = alone();
    fake.remove(TRACEFS);
    fake.write("/proc/self/mounts", "");
    assert_ok(
        &found(&fake, "tracefs"),
        "`ferretto` mounts it at /sys/kernel/tracing",
    );

    let mount = "mount -t tracefs nodev /sys/kernel/tracing";
    fake.user(1000, "0");
    assert_note(
        &found(&fake, "tracefs"),
        "not mounted",
        NO_KERNEL_EVENTS,
        &[&format!("sudo {mount}")],
    );
    fake.user(0, "00000000a80425fb");
    assert_note(
        &found(&fake, "tracefs"),
        "outside of the container",
        NO_KERNEL_EVENTS,
        &[mount],
    );

    fake.write("/proc/self/mounts", "t /mnt/t tracefs rw 0 0\n");
    assert_note(
        &found(&fake, "tracefs"),
        "mounted at /mnt/t, where nobody looks",
        NO_KERNEL_EVENTS,
        &[mount],
    );

    // The probes of a running service do not mount tracefs.
    let mut fake = Fake::healthy();
    fake.answer = crate::doctor::fake::service(&["linux.process_stats"]);
    fake.remove(TRACEFS);
    assert_note(
        &found(&fake, "tracefs"),
        "not mounted",
        NO_KERNEL_EVENTS,
        &[mount],
    );
    // They may use a tracefs in another container.
    let mut fake = Fake::healthy();
    fake.remove(TRACEFS);
    assert_ok(
        &found(&fake, "tracefs"),
        "traced_probes (pid 101) records kernel events",
    );
}

#[test]
fn where_the_kernel_has_none_or_is_locked_no_command_helps() {
    let mut fake = alone();
    fake.remove(TRACEFS);
    fake.write("/proc/filesystems", "nodev\tproc\n");
    assert_note(&found(&fake, "tracefs"), "CONFIG_TRACING", NO_KERNEL_EVENTS, &[]);
    let mut fake = alone();
    fake.write(
        "/sys/kernel/security/lockdown",
        "none integrity [confidentiality]\n",
    );
    assert_note(
        &found(&fake, "tracefs"),
        "lockdown=integrity",
        NO_KERNEL_EVENTS,
        &[],
    );
    assert_eq!(all(&fake, "events"), []);
    // Securityfs is not mounted. Tracefs is mounted, and empty.
    let mut fake = alone();
    fake.remove("/sys/kernel/security/lockdown");
    fake.remove(TRACEFS);
    assert_note(
        &found(&fake, "tracefs"),
        "lockdown=integrity",
        NO_KERNEL_EVENTS,
        &[],
    );
}

#[test]
fn a_user_without_access_is_told_who_has_it() {
    let chown = "sudo chown -R $USER /sys/kernel/tracing";
    let fake = Fake::of_maria().without_service();
    assert_note(
        &found(&fake, "tracefs"),
        "belongs to root (mode 0700)",
        NO_KERNEL_EVENTS,
        &[chown],
    );
    assert_ok(
        &found(&Fake::of_maria(), "tracefs"),
        "not for this user, but traced_probes (pid 101)",
    );

    let mut fake = Fake::of_maria().without_service();
    fake.own_by_group(TRACEFS, 500, 0o750);
    let join = "sudo usermod -aG traced-consumer $USER";
    assert_note(
        &found(&fake, "tracefs"),
        "belongs to root (mode 0750)",
        NO_KERNEL_EVENTS,
        &[join],
    );

    let mut fake = Fake::of_maria().without_service();
    fake.write("/proc/self/uid_map", "0 1000 1\n");
    assert_note(&found(&fake, "tracefs"), "belongs to root", NO_KERNEL_EVENTS, &[]);

    let mut fake = maria_with_tracefs();
    assert_ok(&found(&fake, "tracefs"), "to read and write");
    fake.protect(TRACEFS);
    assert_note(
        &found(&fake, "tracefs"),
        "only to be read by this user, it belongs to root",
        NO_KERNEL_EVENTS,
        &[chown],
    );
    let mut fake = Fake::healthy();
    fake.protect(TRACEFS);
    assert_ok(&found(&fake, "tracefs"), "but traced_probes (pid 101) records");

    let mut fake = alone();
    fake.protect(TRACEFS);
    fake.write(
        "/proc/self/mounts",
        "t /sys/kernel/tracing tracefs ro,relatime 0 0\n",
    );
    let mend = "mount -o remount,rw /sys/kernel/tracing";
    assert_note(
        &found(&fake, "tracefs"),
        "mounted read-only",
        NO_KERNEL_EVENTS,
        &[mend],
    );
}

#[test]
fn debugfs_which_is_closed_to_users_is_no_tracefs() {
    let mut fake = alone();
    fake.user(1000, "0");
    fake.remove(TRACEFS);
    fake.write("/proc/self/mounts", "d /sys/kernel/debug debugfs rw 0 0\n");
    fake.close("/sys/kernel/debug");
    assert_note(
        &found(&fake, "tracefs"),
        "not mounted",
        NO_KERNEL_EVENTS,
        &["sudo mount -t tracefs nodev /sys/kernel/tracing"],
    );
    let mut fake = alone();
    fake.remove(TRACEFS);
    for file in [
        "tracing_on",
        "current_tracer",
        "set_event",
        "trace_clock",
        "buffer_size_kb",
    ] {
        fake.write(&format!("/sys/kernel/debug/tracing/{file}"), "");
    }
    assert_ok(
        &found(&fake, "tracefs"),
        "/sys/kernel/debug/tracing, for this user",
    );
}

#[test]
fn other_users_of_ftrace_are_reported() {
    assert_eq!(found(&alone(), "ftrace").what, "free");

    let mut fake = maria_with_tracefs();
    fake.write(&format!("{TRACEFS}/current_tracer"), "function_graph\n");
    assert_note(
        &found(&fake, "ftrace"),
        "the tracer `function_graph` is on",
        "no kernel events as long",
        &["echo nop | sudo tee /sys/kernel/tracing/current_tracer"],
    );

    let mut fake = alone();
    fake.write(
        &format!("{TRACEFS}/set_event"),
        "sched:sched_switch\nirq:irq_handler_entry\n",
    );
    assert_note(
        &found(&fake, "ftrace"),
        "2 events (sched/sched_switch, irq/irq_handler_entry) are on",
        "gets none while",
        &["echo 0 > /sys/kernel/tracing/events/enable"],
    );

    let mut fake = alone();
    fake.process(55, "trace-cmd");
    fake.open(55, 3, "/sys/kernel/tracing/per_cpu/cpu0/trace_pipe_raw");
    assert_note(
        &found(&fake, "ftrace"),
        "trace-cmd (pid 55) reads",
        "missing from recordings",
        &["kill 55"],
    );
    fake.remove("/proc/55");
    fake.open(55, 3, "/sys/kernel/tracing/instances/x/trace_pipe");
    fake.open(55, 4, "/home/maria/trace_pipe");
    fake.write(&format!("{TRACEFS}/instances/x/tracing_on"), "1");
    assert_ok(
        &found(&fake, "ftrace"),
        "free; others have 1 instance (x) to themselves",
    );
}

#[test]
fn changes_that_a_crash_left_are_reported() {
    let mut fake = alone();
    fake.process(55, "traced_probes");
    fake.write("/run/ferretto/ftrace-55-0.journal", "");
    assert_ok(&found(&fake, "ftrace"), "free");
    fake.remove("/proc/55");
    let [free, left] = &all(&fake, "ftrace")[..] else {
        panic!("not two findings");
    };
    assert_ok(free, "free");
    assert_note(
        left,
        "(pid 55) left it changed",
        "nobody reads",
        &["ferretto traced_probes --cleanup-after-crash"],
    );
    let mut fake = maria_with_tracefs();
    for other in ["ftrace-x-0.journal", "x-55-0.journal", "ftrace-55-0.journal.old"] {
        fake.write(&format!("/run/user/1000/ferretto/{other}"), "");
    }
    assert_ok(&found(&fake, "ftrace"), "free");
    fake.write("/tmp/ferretto-1000/ftrace-56-3.journal", "");
    assert_eq!(all(&fake, "ftrace").len(), 2);
}

#[test]
fn the_services_own_recording_is_no_finding() {
    let mut fake = Fake::healthy();
    fake.write(&format!("{TRACEFS}/current_tracer"), "function_graph\n");
    fake.write(&format!("{TRACEFS}/set_event"), "sched:sched_switch\n");
    fake.open(PROBES, 9, "/sys/kernel/tracing/per_cpu/cpu0/trace_pipe_raw");
    assert_eq!(all(&fake, "ftrace").len(), 2, "nobody records");
    let Answer::Service { state, .. } = &mut fake.answer else {
        panic!("no service");
    };
    state.num_sessions_started = Some(1);
    assert_ok(&found(&fake, "ftrace"), "in use by traced_probes (pid 101)");
    // Another process reads the buffer, or has turned ftrace off.
    fake.process(555, "cat");
    fake.open(555, 3, "/sys/kernel/tracing/trace_pipe");
    assert_note(
        &found(&fake, "ftrace"),
        "cat (pid 555) reads",
        "missing from recordings",
        &["kill 555"],
    );
    fake.remove("/proc/555");
    fake.write(&format!("{TRACEFS}/tracing_on"), "0\n");
    assert_note(
        &found(&fake, "ftrace"),
        "somebody turned it off while traced_probes (pid 101) records",
        "no kernel events",
        &["echo 1 > /sys/kernel/tracing/tracing_on"],
    );
    fake.write(&format!("{TRACEFS}/tracing_on"), "1\n");
    assert!(found(&fake, "service").what.ends_with("1 session recording"));
}

#[test]
fn buffers_are_as_large_as_the_first_user_finds_them() {
    let mut fake = alone();
    assert_ok(&found(&fake, "buffers"), "1408 KiB for each of 2 CPUs");
    fake.write(&format!("{TRACEFS}/buffer_size_kb"), "512\n");
    assert_ok(&found(&fake, "buffers"), "512 KiB for each of 2 CPUs");
    fake.write(
        &format!("{TRACEFS}/trace_clock"),
        "[local] global mono boottime\n",
    );
    assert_note(&found(&fake, "buffers"), "without the clock `boot`", "drift", &[]);
}

#[test]
fn missing_events_are_reported_with_their_purpose() {
    let mut fake = alone();
    assert_ok(&found(&fake, "events"), "6 groups");
    fake.remove(&format!("{TRACEFS}/events/raw_syscalls"));
    fake.remove(&format!("{TRACEFS}/events/sched/sched_switch"));
    assert_note(
        &found(&fake, "events"),
        "sched/sched_switch, raw_syscalls/sys_enter",
        "do not show which thread ran when, system calls",
        &[],
    );
}

#[test]
fn addresses_are_shown_as_the_kernel_shows_them() {
    const PRIVILEGED: &str = "000001ffffffffff";
    let settings = |restrict: &str, paranoid: &str, capabilities: &str| {
        let mut fake = alone();
        fake.user(1000, capabilities);
        fake.write("/proc/sys/kernel/kptr_restrict", restrict);
        fake.write("/proc/sys/kernel/perf_event_paranoid", paranoid);
        fake
    };
    for (restrict, paranoid, capabilities) in [
        ("0", "1", "0"),
        ("0", "2", PRIVILEGED),
        ("1", "4", PRIVILEGED),
        ("2", "2", PRIVILEGED),
    ] {
        assert_ok(
            &found(&settings(restrict, paranoid, capabilities), "symbols"),
            "can be looked up",
        );
    }
    let mend = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1";
    for (restrict, paranoid) in [("0", "2"), ("1", "-1"), ("2", "-1")] {
        let finding = found(&settings(restrict, paranoid, "0"), "symbols");
        let text = format!("kptr_restrict is {restrict}, perf_event_paranoid {paranoid}");
        assert_note(&finding, &text, "stay numbers", &[mend]);
    }
    let mut fake = settings("2", "2", PRIVILEGED);
    fake.protect("/proc/sys");
    assert_note(
        &found(&fake, "symbols"),
        "kptr_restrict is 2",
        "stay numbers",
        &[mend],
    );
    fake.remove("/proc/kallsyms");
    assert_note(&found(&fake, "symbols"), "CONFIG_KALLSYMS", "stay numbers", &[]);
    assert_ok(
        &found(&Fake::of_maria(), "symbols"),
        "traced_probes (pid 101) looks them up",
    );
    assert_eq!(all(&Fake::of_maria().without_service(), "symbols"), []);
}

#[test]
fn probes_see_what_is_hidden_from_root_only_through_a_list_that_they_have_opened_in_time() {
    let mut fake = Fake::healthy();
    fake.write("/proc/sys/kernel/kptr_restrict", "2\n");
    fake.open(PROBES, 7, "/proc/kallsyms");
    assert_ok(&found(&fake, "symbols"), "traced_probes (pid 101) looks them up");
    fake.open(PROBES, 7, "/dev/null");
    assert_note(
        &found(&fake, "symbols"),
        "traced_probes (pid 101) does not see addresses of kernel functions (kptr_restrict is 2)",
        "stay numbers",
        &["sysctl kernel.kptr_restrict=1"],
    );
    let mut fake = Fake::of_maria();
    fake.write("/proc/sys/kernel/kptr_restrict", "2\n");
    fake.close(&format!("/proc/{PROBES}/fd"));
    assert_ok(
        &found(&fake, "symbols"),
        "if root started it (kptr_restrict is 2)",
    );
}

#[test]
fn hidden_processes_are_a_note_unless_somebody_else_sees_them() {
    let mut fake = maria_with_tracefs();
    assert_ok(&found(&fake, "processes"), "all processes");
    fake.close("/proc/1");
    let mend = "sudo mount -o remount,hidepid=0 /proc";
    assert_note(
        &found(&fake, "processes"),
        "hidepid",
        "this user's processes only",
        &[mend],
    );
    let mut fake = Fake::of_maria();
    fake.close("/proc/1");
    assert_ok(
        &found(&fake, "processes"),
        "but traced_probes (pid 101) sees them",
    );
}

#[test]
fn counters_that_are_missing_are_named() {
    let mut fake = alone();
    assert_ok(&found(&fake, "counters"), "and pressure");
    fake.remove("/sys/class/thermal");
    fake.remove("/sys/devices/system/cpu/cpu0/cpufreq");
    assert_ok(
        &found(&fake, "counters"),
        "tells no CPU frequencies, temperatures",
    );
    fake.remove("/proc/pressure");
    assert_note(&found(&fake, "counters"), "psi=1", "psi_period_ms", &[]);
    fake.remove("/proc/vmstat");
    fake.close("/proc/diskstats");
    assert_note(
        &found(&fake, "counters"),
        "/proc/vmstat, /proc/diskstats",
        "vmstat_period_ms, diskstat_period_ms",
        &["mount -t proc proc /proc"],
    );
}
