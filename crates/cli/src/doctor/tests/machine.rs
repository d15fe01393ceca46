//! Checks of the kernel, the user, containers, memory, disk, limits, the clock, and ports.

use ferretto_ipc::address::MAX_UNIX_NAME;

use super::*;

#[test]
fn users_are_reported_with_their_privileges() {
    let mut fake = Fake::healthy();
    assert_ok(&found(&fake, "kernel"), "Linux 6.12.1 on ");
    assert_eq!(found(&fake, "user").what, "root");
    fake.user(0, "00000000a80425fb");
    assert_eq!(found(&fake, "user").what, "root, but without CAP_SYS_ADMIN");
    fake.user(1000, "0000000000200000");
    assert_eq!(found(&fake, "user").what, "maria, with CAP_SYS_ADMIN");
    fake.user(4711, "0");
    assert_eq!(found(&fake, "user").what, "user 4711, without privileges");
}

#[test]
fn a_container_is_a_note_when_it_stands_in_the_way() {
    let docker = "docker run --privileged --pid=host -v /sys/kernel/tracing:/sys/kernel/tracing …";
    assert_eq!(all(&Fake::healthy(), "container"), []);

    let mut fake = Fake::healthy();
    fake.write("/.dockerenv", "");
    assert_ok(
        &found(&fake, "container"),
        "a container (docker) that shares the machine's processes",
    );
    fake.user(0, "00000000a80425fb");
    assert_note(
        &found(&fake, "container"),
        "without CAP_SYS_ADMIN",
        "cannot be mounted",
        &[docker],
    );
    fake.link_to("/proc/self/ns/pid", "pid:[4026532601]");
    assert_note(
        &found(&fake, "container"),
        "(docker) with processes of its own",
        "numbers",
        &[docker],
    );

    let mut fake = Fake::healthy();
    fake.write("/run/systemd/container", "lxc\n");
    fake.write("/proc/self/uid_map", "         0     100000      65536\n");
    assert_note(
        &found(&fake, "container"),
        "(lxc) with users of its own",
        "tracefs above all",
        &[],
    );

    let mut fake = Fake::healthy();
    fake.link_to("/proc/self/ns/pid", "pid:[4026532601]");
    assert_note(
        &found(&fake, "container"),
        "this is a container with",
        "numbers",
        &[],
    );

    let mut fake = Fake::healthy();
    fake.write("/proc/1/cgroup", "0::/kubepods/burstable/pod1\n");
    assert_ok(&found(&fake, "container"), "(kubepods)");
    let mut fake = Fake::healthy();
    fake.write("/run/.containerenv", "");
    assert_ok(&found(&fake, "container"), "(podman)");
}

#[test]
fn little_memory_is_a_note_for_the_machine_and_for_control_groups() {
    let mut fake = Fake::healthy();
    assert_ok(&found(&fake, "memory"), "4.0 GiB available for");
    for (cgroup, folder, limit, used) in [
        (
            "0::/user.slice\n",
            "/sys/fs/cgroup/user.slice",
            "memory.max",
            "memory.current",
        ),
        (
            "5:memory:/user.slice\n2:cpu:/\n",
            "/sys/fs/cgroup/memory/user.slice",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    ] {
        let mut fake = Fake::healthy();
        fake.write("/proc/self/cgroup", cgroup);
        fake.write(&format!("{folder}/{used}"), "1073741824\n");
        fake.write(&format!("{folder}/{limit}"), "max\n");
        assert_ok(&found(&fake, "memory"), "4.0 GiB available for");
        fake.write(&format!("{folder}/{limit}"), "3221225472\n");
        assert_ok(&found(&fake, "memory"), "2.0 GiB available in this control group");
        fake.write(&format!("{folder}/{limit}"), "1073741824\n");
        assert_note(
            &found(&fake, "memory"),
            "0 B available in this control group",
            "killed",
            &[],
        );
    }
    // The limit of an ancestor group applies as well.
    fake.write("/proc/self/cgroup", "0::/user.slice/user-0.slice/x\n");
    fake.write("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
    fake.write("/sys/fs/cgroup/user.slice/memory.current", "536870912\n");
    assert_ok(
        &found(&fake, "memory"),
        "512.0 MiB available in this control group",
    );
    fake.write("/proc/meminfo", "MemAvailable: 200000 kB\n");
    assert_note(&found(&fake, "memory"), "195.3 MiB", "killed", &[]);
    fake.write("/proc/meminfo", "garbage\n");
    assert_ok(
        &found(&fake, "memory"),
        "512.0 MiB available in this control group",
    );
    fake.remove("/sys/fs/cgroup");
    assert_ok(&found(&fake, "memory"), "nothing here tells how much");
}

#[test]
fn a_recording_needs_a_place_for_its_file() {
    let mut fake = Fake::healthy();
    assert_ok(&found(&fake, "disk"), "100.0 GiB left");
    fake.free_space = 5 << 20;
    assert_note(&found(&fake, "disk"), "5.0 MiB left", "ends early", &[]);
    fake.protect(".");
    assert_note(
        &found(&fake, "disk"),
        "may not write into the present folder",
        "(-o)",
        &["cd"],
    );
}

#[test]
fn without_a_place_for_sockets_a_service_of_ones_own_cannot_start() {
    let mend = ["export TMPDIR=$(mktemp -d -p /dev/shm)"];
    let mut fake = Fake::of_maria().without_service();
    assert_eq!(all(&fake, "sockets"), []);
    for breakage in [Fake::close, Fake::protect, Fake::remove] {
        let mut fake = Fake::of_maria().without_service();
        breakage(&mut fake, "/tmp");
        let finding = found(&fake, "sockets");
        assert_eq!(
            (finding.mark, finding.mend.as_slice()),
            (Mark::Problem, &mend.map(String::from)[..])
        );
        assert!(
            finding.what.contains("to make its sockets in: /tmp: "),
            "{finding:?}"
        );
        assert_eq!(worst(&examine(&fake)), Mark::Problem);
    }
    // A running service needs no new sockets.
    let mut with_service = Fake::of_maria();
    with_service.remove("/tmp");
    assert_eq!(all(&with_service, "sockets"), []);

    let longest = MAX_UNIX_NAME - "/ferretto-XXXXXX/consumer".len();
    // In a folder with a longer name no sockets are made.
    fake.remove("/tmp");
    for (length, problems) in [(longest, 0), (longest + 1, 1)] {
        let folder = format!("/{}", "x".repeat(length - 1));
        fake.write(&format!("{folder}/x"), "");
        fake.variables.insert("TMPDIR", folder);
        assert_eq!(all(&fake, "sockets").len(), problems, "{length}");
    }
    assert!(found(&fake, "sockets").what.contains(" in: /tmp: "));
}

#[test]
fn low_limits_are_reported_with_the_commands_that_raise_them() {
    let mut fake = Fake::healthy();
    assert_ok(&found(&fake, "limits"), "524288 open files, files of any size");
    fake.write(
        "/proc/self/limits",
        "Max open files  unlimited  unlimited  files\n",
    );
    assert_ok(&found(&fake, "limits"), "any number of open files");
    fake.write(
        "/proc/self/limits",
        "Max file size  1048576  unlimited  bytes\nMax open files  256  256  files\nMax address space  1073741824  unlimited  bytes\n",
    );
    let [files, size, memory] = &all(&fake, "limits")[..] else {
        panic!("not three limits");
    };
    assert_note(
        files,
        "256 files",
        "turns producers away",
        &["sudo prlimit --pid $$ --nofile=65536:65536"],
    );
    assert_note(size, "1.0 MiB", "ends there", &["ulimit -f unlimited"]);
    assert_note(memory, "1.0 GiB of memory", "refused", &["ulimit -v unlimited"]);
    fake.remove("/proc/self/limits");
    assert_eq!(all(&fake, "limits"), []);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_clock_that_the_kernel_must_be_asked_for_is_a_note() {
    const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";
    let costs = "ask the kernel";
    let mut fake = Fake::healthy();
    assert_ok(&found(&fake, "clock"), "tsc: ");
    fake.write(&format!("{SOURCES}/current_clocksource"), "hpet\n");
    assert_note(
        &found(&fake, "clock"),
        "hpet: the kernel does not trust",
        costs,
        &[],
    );
    fake.write(
        &format!("{SOURCES}/available_clocksource"),
        "kvm-clock hpet acpi_pm\n",
    );
    let mend = format!("echo kvm-clock > {SOURCES}/current_clocksource");
    assert_note(&found(&fake, "clock"), "hpet: ", costs, &[&mend]);
    fake.write(&format!("{SOURCES}/current_clocksource"), "kvm-clock\n");
    assert_ok(&found(&fake, "clock"), "kvm-clock: ");
    for flags in ["constant_tsc", "nonstop_tsc", ""] {
        fake.write("/proc/cpuinfo", &format!("flags : tsc {flags}\n"));
        assert_note(&found(&fake, "clock"), "changes its speed or stops", costs, &[]);
    }
    fake.remove(SOURCES);
    assert_note(&found(&fake, "clock"), "does not tell", costs, &[]);
}

#[test]
fn the_process_with_a_port_of_the_ui_is_named() {
    let mut fake = Fake::of_maria();
    assert_ok(&found(&fake, "ui"), "ports 9001 and 8037 are free");
    // Another port, another address, and a socket that does not listen.
    fake.listen_tcp(7, "tcp", "0100007F", 9002, 30);
    fake.listen_tcp(7, "tcp", "0202000A", 9001, 31);
    fake.listen_tcp(7, "tcp6", "00000000000000000000000001000000", 9001, 32);
    fake.write(
        "/proc/net/tcp6",
        "sl\n  0: 00000000000000000000000000000000:2329 0:0 01 0:0 0:0 0 1000 0 33\n",
    );
    assert_ok(&found(&fake, "ui"), "ports 9001 and 8037 are free");

    fake.process(7, "trace_processor");
    fake.listen_tcp(7, "tcp", "0100007F", 9001, 34);
    let [free, taken] = &all(&fake, "ui")[..] else {
        panic!("not two findings");
    };
    assert_ok(free, "port 8037 is free");
    assert_note(
        taken,
        "port 9001 is taken by trace_processor (pid 7)",
        "has to wait",
        &["kill 7"],
    );

    for (table, address) in [
        ("tcp", "00000000"),
        ("tcp6", "00000000000000000000000000000000"),
        ("tcp6", "0000000000000000FFFF00000100007F"),
    ] {
        let mut fake = Fake::of_maria();
        fake.listen_tcp(7, table, address, 8037, 35);
        // The process belongs to another user, so its descriptors are hidden.
        fake.close("/proc/7");
        let [_, taken] = &all(&fake, "ui")[..] else {
            panic!("not two findings");
        };
        assert_note(
            taken,
            "port 8037 is taken by a process of maria",
            "cannot record",
            &["sudo ss -ltnp 'sport = :8037'"],
        );
    }
}

#[test]
fn the_bridge_is_where_it_belongs() {
    let mut fake = Fake::healthy();
    fake.process(8, "websocket_bridg");
    fake.listen_tcp(8, "tcp", "0100007F", 8037, 36);
    let [_, bridge] = &all(&fake, "ui")[..] else {
        panic!("not two findings");
    };
    assert_ok(
        bridge,
        "websocket_bridg (pid 8) listens on port 8037: the UI can record",
    );
    fake.process(8, "ferretto");
    fake.write("/proc/8/cmdline", "ferretto\0websocket_bridge\0");
    assert_ok(&all(&fake, "ui")[1], "websocket_bridge (pid 8)");
    fake.write("/proc/8/cmdline", "ferretto\0open\0x\0");
    fake.listen_tcp(8, "tcp", "0100007F", 9001, 37);
    let [open, on_bridge] = &all(&fake, "ui")[..] else {
        panic!("not two findings");
    };
    // Root needs no sudo to kill maria's process.
    assert_note(open, "9001 is taken by open (pid 8)", "wait", &["kill 8"]);
    assert_note(
        on_bridge,
        "8037 is taken by open (pid 8)",
        "cannot record",
        &["kill 8"],
    );
}
