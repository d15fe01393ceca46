//! The permission to sample CPUs.

use super::*;

const ALL: &str = "000001ffffffffff";
const PERFMON: &str = "0000004000000000";
const NONE: &str = "0000000000000000";

#[test]
fn a_profiler_that_the_service_has_samples_for_everybody() {
    let mut fake = Fake::of_maria();
    fake.write("/proc/sys/kernel/perf_event_paranoid", "4\n");
    assert_ok(&found(&fake, "profiles"), "takes them");
}

#[test]
fn the_setting_and_capabilities_decide_otherwise() {
    for (uid, capabilities, paranoid, may) in [
        (0, ALL, "2\n", true),
        (0, ALL, "4\n", true),
        (0, NONE, "1\n", false),
        (1000, PERFMON, "2\n", true),
        // Debian's and Ubuntu's, which may want more.
        (1000, PERFMON, "3\n", false),
        (1000, NONE, "1\n", false),
        (1000, NONE, "0\n", true),
        (1000, NONE, "-1\n", true),
    ] {
        let mut fake = Fake::healthy().without_service();
        fake.user(uid, capabilities);
        fake.write("/proc/sys/kernel/perf_event_paranoid", paranoid);
        let finding = found(&fake, "profiles");
        let mend = match uid {
            0 => "sysctl kernel.perf_event_paranoid=0",
            _ => "sudo sysctl kernel.perf_event_paranoid=0",
        };
        match may {
            true => assert_ok(&finding, paranoid.trim()),
            false => {
                assert_note(&finding, paranoid.trim(), "ferretto profile", &[mend]);
                let text = match paranoid {
                    "3\n" => "may not sample CPUs",
                    _ => "may sample only processes of its own",
                };
                assert_note(&finding, text, "linux.perf", &[mend]);
            }
        }
    }
}

#[test]
fn the_root_of_a_container_with_users_of_its_own_has_no_capabilities_of_the_machine() {
    let mut fake = Fake::healthy().without_service();
    fake.write("/proc/self/uid_map", "         0     100000      65536\n");
    let finding = found(&fake, "profiles");
    assert_note(
        &finding,
        "may sample only processes of its own (perf_event_paranoid is 2)",
        "linux.perf",
        &["sysctl kernel.perf_event_paranoid=0"],
    );
}

#[test]
fn a_kernel_without_perf_events_has_no_setting() {
    let mut fake = Fake::healthy().without_service();
    fake.remove("/proc/sys/kernel/perf_event_paranoid");
    assert_note(
        &found(&fake, "profiles"),
        "CONFIG_PERF_EVENTS",
        "ferretto profile",
        &[],
    );
}
