//! The torments of recordings: one row for each kind.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime, clock_settime};

use super::scene::{Disk, Scene, Setup, Tells};
use crate::support::process::Stopped;
use crate::support::random::Random;
use crate::support::tracefs::{Instance, Tracefs};
use crate::support::{Program, Side};

pub(crate) struct Torment {
    pub(crate) name: &'static str,
    pub(crate) setup: Setup,
    /// Happens between two bursts of events.
    pub(crate) strike: fn(&mut Scene<'_>, &mut Random),
    pub(crate) tells: Tells,
}

/// A torment of a usual recording, whose account must be exact.
const fn usual(name: &'static str, strike: fn(&mut Scene<'_>, &mut Random)) -> Torment {
    Torment {
        name,
        setup: Setup::USUAL,
        strike,
        tells: Tells::Truth,
    }
}

/// The kernel's buffers are not read before the end, so their content is certain.
const UNREAD: Setup = Setup {
    ftrace: "drain_period_ms: 60000",
    ..Setup::USUAL
};

/// A program that does not answer gets little time.
const IMPATIENT: Setup = Setup {
    session: "flush_timeout_ms: 500 data_source_stop_timeout_ms: 500",
    ..Setup::USUAL
};

/// It puts the machine's wall clock wrong for a while, so it happens only on request.
pub(crate) const CLOCK_STEPS: Torment = usual("clock_steps", |scene, chance| {
    let seconds = chance.from(1, 3 * 3600) as i64;
    step_clock(seconds);
    scene.emit(chance.from(1, 20));
    step_clock(-seconds);
});

/// Torments that leave all programs alive and reachable and need no setup of their own, so that another torment can follow.
const FIRST: &[&str] = &[
    "tracing_switched_off",
    "events_disabled",
    "another_instance",
    "another_recording",
    "probes_asleep_for_a_while",
    "application_asleep_for_a_while",
    "service_asleep_for_a_while",
    "command_line_asleep_for_a_while",
];

pub(crate) const TORMENTS: &[Torment] = &[
    usual("peace", |_, _| {}),
    usual("two_at_once", |scene, chance| {
        let first = FIRST[chance.from(0, FIRST.len() as u64) as usize];
        let usual = || TORMENTS.iter().filter(|torment| torment.setup == Setup::USUAL);
        let (itself, nothing) = ("two_at_once", "peace");
        let others: Vec<&Torment> = usual()
            .filter(|torment| ![first, itself, nothing].contains(&torment.name))
            .collect();
        let second = others[chance.from(0, others.len() as u64) as usize];
        println!("  {first}, then {}", second.name);
        let first = usual().find(|torment| torment.name == first).unwrap();
        (first.strike)(scene, chance);
        scene.emit(chance.from(1, 20));
        (second.strike)(scene, chance);
    }),
    usual("tracing_switched_off", |scene, _| {
        scene.instance.write("tracing_on", "0")
    }),
    usual("events_disabled", |scene, _| {
        scene.instance.write("set_event", "")
    }),
    usual("tracing_off_for_a_moment", |scene, chance| {
        unnoticed(scene, chance, &[("tracing_on", "0")], &[("tracing_on", "1")])
    }),
    usual("events_off_for_a_moment", |scene, chance| {
        let on = [("set_event", "task:task_rename")];
        unnoticed(scene, chance, &[("set_event", "")], &on)
    }),
    Torment {
        setup: UNREAD,
        ..usual("kernel_buffers_emptied", |scene, chance| {
            unnoticed(scene, chance, &[], &[("trace", "")])
        })
    },
    Torment {
        setup: UNREAD,
        ..usual("kernel_buffers_read_by_another", |scene, _| {
            read_trace_pipe(&scene.instance)
        })
    },
    Torment {
        setup: UNREAD,
        // Whether the kernel keeps the content depends on its version and on chance.
        tells: Tells::Doubt,
        ..usual("kernel_buffers_resized", |scene, chance| {
            scene
                .instance
                .write("buffer_size_kb", &chance.from(8, 3000).to_string());
        })
    },
    Torment {
        setup: UNREAD,
        ..usual("clock_changed", |scene, _| {
            scene.instance.write("trace_clock", "mono")
        })
    },
    Torment {
        setup: UNREAD,
        ..usual("another_tracer_takes_over", |scene, _| {
            // The kernel refuses this while somebody reads the buffers of the present tracer.
            let _ = std::fs::write(scene.instance.file("current_tracer"), "function");
            scene.instance.write("current_tracer", "nop");
        })
    },
    usual("another_instance", |scene, chance| {
        let other = Instance::new().unwrap();
        other.write("events/task/task_rename/enable", "1");
        scene.emit(chance.from(1, 20));
        other.write("events/task/task_rename/enable", "0");
    }),
    usual("another_recording", |scene, chance| {
        let config = format!(
            "buffers {{ size_kb: 1024 }} data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{
                instance_name: \"{}\" ftrace_events: \"task/task_rename\" ftrace_events: \"task/task_newtask\" }} }} }}",
            scene.instance.name()
        );
        let other = scene.system.record(Side::Ours, &config);
        scene.emit(chance.from(1, 20));
        other.interrupt();
    }),
    usual("probes_killed", |scene, _| {
        scene.system.end_with(scene.probes, Signal::KILL);
    }),
    usual("probes_ended", |scene, _| {
        scene.system.end_with(scene.probes, Signal::TERM);
    }),
    usual("probes_restarted", |scene, chance| {
        scene.system.end_with(scene.probes, Signal::KILL);
        scene.emit(chance.from(1, 20));
        scene.probes = scene.system.start(Side::Ours, Program::TracedProbes);
    }),
    usual("probes_asleep_for_a_while", |scene, chance| {
        let _asleep = Stopped::new(scene.probes);
        scene.emit(chance.from(1, 20));
    }),
    Torment {
        setup: IMPATIENT,
        ..usual("probes_asleep", |scene, _| {
            scene.stopped.push(Stopped::new(scene.probes));
        })
    },
    usual("application_returns", |scene, _| scene.application.returns()),
    usual("application_killed", |scene, _| scene.application.kill()),
    usual("application_asleep_for_a_while", |scene, chance| {
        let _asleep = Stopped::new(scene.application.pid());
        scene.emit_in_kernel(chance.from(1, 20));
    }),
    usual("service_asleep_for_a_while", |scene, chance| {
        let _asleep = Stopped::new(scene.traced);
        scene.emit(chance.from(1, 20));
    }),
    usual("command_line_asleep_for_a_while", |scene, chance| {
        let _asleep = Stopped::new(scene.recording.pid());
        scene.emit(chance.from(1, 20));
    }),
    usual("service_killed", |scene, _| {
        scene.system.end_with(scene.traced, Signal::KILL);
    }),
    Torment {
        setup: Setup {
            disk: Disk::Small(16),
            ..Setup::USUAL
        },
        ..usual("disk_full", |scene, _| scene.emit(3000))
    },
    Torment {
        setup: Setup {
            session: "write_into_file: true file_write_period_ms: 100 flush_timeout_ms: 120000 data_source_stop_timeout_ms: 120000",
            disk: Disk::Small(16),
            ..Setup::USUAL
        },
        ..usual("disk_full_while_streaming", |scene, _| scene.emit(3000))
    },
    Torment {
        setup: Setup {
            buffer: "size_kb: 16 fill_policy: DISCARD",
            ..Setup::USUAL
        },
        ..usual("buffer_full", |scene, _| scene.emit(3000))
    },
    Torment {
        setup: Setup {
            ftrace: "buffer_size_kb: 4 drain_period_ms: 60000",
            ..Setup::USUAL
        },
        ..usual("kernel_buffers_full", |scene, _| scene.emit_in_kernel(10_000))
    },
];

/// Changes something while the probes do not look, and changes it back, with events in between.
fn unnoticed(scene: &mut Scene<'_>, chance: &mut Random, before: &[(&str, &str)], after: &[(&str, &str)]) {
    if !Tracefs::tells_of_writes_to(&scene.instance.file("tracing_on")) {
        return;
    }
    let _asleep = Stopped::new(scene.probes);
    for (file, text) in before {
        scene.instance.write(file, text);
    }
    scene.emit(chance.from(1, 20));
    for (file, text) in after {
        scene.instance.write(file, text);
    }
}

/// Reads all present events like `cat trace_pipe`. Events that one reader takes are gone for others.
fn read_trace_pipe(instance: &Instance) {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut pipe = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(instance.file("trace_pipe"))
        .unwrap();
    let mut taken = [0; 4096];
    // EAGAIN, once there is nothing more.
    while pipe.read(&mut taken).is_ok_and(|count| count > 0) {}
}

fn step_clock(seconds: i64) {
    let mut now = clock_gettime(ClockId::Realtime);
    now.tv_sec += seconds;
    clock_settime(ClockId::Realtime, now).unwrap();
}
