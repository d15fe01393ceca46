//! Tests of the module.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::test_files::TempDir;
use proptest::prelude::*;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

#[test]
fn a_setting_is_found_by_its_file() {
    let settings = [
        Setting::TracingOn,
        Setting::TraceClock,
        Setting::BufferSizeKb,
        Setting::CpuBufferSizeKb(17),
        Setting::BufferPercent,
        Setting::CurrentTracer,
        Setting::EventPids,
        Setting::CpuMask,
        Setting::Option("event-fork".to_owned()),
        Setting::FunctionFilter,
        Setting::GraphFunctions,
        Setting::MaxGraphDepth,
        Setting::SubBufferSizeKb,
        Setting::UnwantedPids,
        Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
        Setting::EventFilter(EventName::new("raw_syscalls", "sys_exit")),
    ];
    for setting in settings {
        assert_eq!(Setting::from_file(&setting.file()), Some(setting));
    }
    for file in [
        "",
        "trace",
        "options/",
        "events/sched/filter",
        "events/../../filter",
        "events/a/b/c/filter",
        "options/../tracing_on",
        "per_cpu/cpux/buffer_size_kb",
        "/etc/passwd",
    ] {
        assert_eq!(Setting::from_file(file), None, "{file:?}");
    }
}

#[test]
fn what_a_file_shows_becomes_what_can_be_written() {
    let cases = [
        (Setting::TraceClock, "local [global] counter boot\n", "global"),
        (Setting::BufferSizeKb, "7 (expanded: 1408)\n", "1408"),
        (Setting::BufferSizeKb, "8193\n", "8193"),
        (Setting::BufferSizeKb, "X\n", "X"),
        (Setting::EventPids, "12\n345\n", "12 345"),
        (Setting::EventPids, "", ""),
        (Setting::FunctionFilter, "#### all functions enabled ####\n", ""),
        (
            Setting::FunctionFilter,
            "schedule\nkfree\nschedule_timeout:traceoff:unlimited\n",
            "schedule\nkfree",
        ),
        (
            Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
            "none\n",
            "0",
        ),
        (
            Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
            "id == 3\n",
            "id == 3",
        ),
        (Setting::CpuMask, "ff\n", "ff"),
    ];
    for (setting, shown, written) in cases {
        assert_eq!(setting.writable(shown), written, "{setting:?}");
    }
}

#[test]
fn a_missing_tracefs_says_what_to_type() {
    let error = Tracefs::at("/nonexistent").unwrap_err();
    assert!(matches!(error, TracefsError::NotMounted));
    assert!(
        error
            .to_string()
            .contains("mount -t tracefs nodev /sys/kernel/tracing")
    );
}

#[test]
fn a_kernel_that_is_locked_down_is_told_from_a_tracefs_that_is_not_mounted() {
    const MOUNTED: &str = "proc /proc proc rw 0 0\nnodev /sys/kernel/tracing tracefs rw,nosuid 0 0\n";
    const ELSEWHERE: &str = "nodev /mnt/tracing tracefs rw 0 0\nnodev /sys/kernel/tracing tmpfs rw 0 0\n";
    for (lockdown, mounts, expected) in [
        ("none integrity [confidentiality]\n", "", true),
        ("none integrity [confidentiality]\n", MOUNTED, true),
        ("none [integrity] confidentiality\n", "", false),
        // Mounted, and this user may not look into it.
        ("[none] integrity confidentiality\n", MOUNTED, false),
        // Without securityfs.
        ("", MOUNTED, true),
        ("", ELSEWHERE, false),
        ("", "", false),
    ] {
        assert_eq!(
            is_locked_down(lockdown, mounts),
            expected,
            "{lockdown:?} {mounts:?}"
        );
    }
    let told = TracefsError::LockedDown.to_string();
    assert!(told.contains("lockdown=integrity"), "{told}");
    for no_help in ["root", "sudo", "mount "] {
        assert!(!told.contains(no_help), "{told}");
    }
}

/// As after `chown -R $USER /sys/kernel/tracing`, while root's daemon runs.
#[test]
fn a_tracefs_that_was_given_to_another_user_meanwhile_says_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can give files away");
    }
    let folder = TempDir::new("tracefs");
    folder.write("tracing_on", "1\n");
    let tracefs = Tracefs::at(folder.path()).unwrap();
    std::os::unix::fs::chown(folder.path().join("tracing_on"), Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(folder.path().join("tracing_on"), Permissions::from_mode(0o640)).unwrap();
    // Of a thread of its own alone.
    let written = std::thread::spawn(move || {
        let kept = CapabilitySet::DAC_READ_SEARCH;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
        tracefs.read("tracing_on").unwrap();
        tracefs.set(&Setting::TracingOn, "0")
    });
    let error = written.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), Some(io::ErrorKind::PermissionDenied));
    let told = error.to_string();
    assert!(
        told.contains("belongs to another user by now: restart traced_probes"),
        "{told}"
    );

    let missing = Tracefs::at(folder.path()).unwrap().read("trace").unwrap_err();
    assert!(!missing.to_string().contains("restart"), "{missing}");
}

#[test]
fn an_instance_cannot_be_anywhere_else() {
    let tracefs = Tracefs {
        root: "/nonexistent".into(),
    };
    for name in ["", "..", "../tracing", "a/b", "/", "..x"] {
        assert!(
            matches!(tracefs.instance(name), Err(TracefsError::BadInstanceName(_))),
            "{name:?}"
        );
    }
    let error = tracefs.instance("mine").unwrap_err();
    assert!(
        error.to_string().contains("mkdir /nonexistent/instances/mine"),
        "{error}"
    );
    let error = tracefs.instance("hyp").unwrap_err();
    assert!(error.to_string().contains("/nonexistent/hyp"), "{error}");
}

proptest! {
    #[test]
    fn only_names_of_directories_are_events(text in ".{0,12}") {
        if let Some(event) = EventName::from_set_event(&text) {
            prop_assert_eq!(format!("{}:{}", event.group, event.name), text);
            prop_assert!(event.is_valid());
            let path = Path::new("events").join(event.to_string());
            prop_assert!(path.components().all(|part| matches!(part, std::path::Component::Normal(_))));
        }
    }
}

#[test]
fn the_top_of_an_instance_is_above_it() {
    let at = |root: &str| Tracefs { root: root.into() };
    for (root, top) in [
        ("/sys/kernel/tracing", "/sys/kernel/tracing"),
        ("/sys/kernel/tracing/instances/one", "/sys/kernel/tracing"),
        ("/sys/kernel/tracing/hyp", "/sys/kernel/tracing"),
        ("/sys/kernel/tracing/hypervisor", "/sys/kernel/tracing"),
        ("/", "/"),
    ] {
        assert_eq!(at(root).top().root(), Path::new(top), "{root}");
    }
}
