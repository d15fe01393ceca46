//! Tests of the module.

use super::*;
use crate::ftrace::test_instance::{Mirror, TestInstance};
use ferretto_proto::messages::ftrace_config::TracefsOption;
use ferretto_proto::messages::ftrace_config::tracefs_option::State;

const FIRST: FtraceSessionId = FtraceSessionId(1);
const SECOND: FtraceSessionId = FtraceSessionId(2);

fn control(instance: &TestInstance) -> Control {
    Control::new(Restorer::new(instance.tracefs.clone(), None), InstanceRole::Top)
}

fn config(events: &[&str]) -> FtraceConfig {
    FtraceConfig {
        ftrace_events: events.iter().map(|name| name.to_string()).collect(),
        buffer_size_kb: Some(64),
        ..FtraceConfig::default()
    }
}

/// All events are describable; those of `task` only as generic ones.
fn setup(control: &mut Control, id: FtraceSessionId, config: &FtraceConfig) -> Result<Setup, ControlError> {
    control.setup(id, config, &mut |_, event| {
        Ok(if event.group == "task" {
            Description::Generic
        } else {
            Description::Typed
        })
    })
}

fn enabled(instance: &TestInstance) -> Vec<String> {
    instance
        .tracefs
        .enabled_events()
        .unwrap()
        .iter()
        .map(EventName::to_string)
        .collect()
}

#[test]
fn sessions_share_events_and_the_last_one_puts_everything_back() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    instance
        .tracefs
        .set_event(&EventName::new("sched", "sched_wakeup_new"), Recording::On)
        .unwrap();
    let before = instance.snapshot();
    let mut control = control(&instance);

    setup(
        &mut control,
        FIRST,
        &config(&["sched/sched_switch", "sched/sched_waking"]),
    )
    .unwrap();
    assert_eq!(instance.tracefs.recording().unwrap(), Recording::Off);
    assert_eq!(instance.tracefs.get(&Setting::TraceClock).unwrap(), "boot");
    assert_eq!(control.clock(), None);
    control.activate(FIRST).unwrap();
    assert_eq!(instance.tracefs.recording().unwrap(), Recording::On);
    let size = instance.tracefs.get(&Setting::BufferSizeKb).unwrap();

    let larger = FtraceConfig {
        buffer_size_kb: Some(512),
        ..config(&["sched_waking", "sched_process_exit"])
    };
    setup(&mut control, SECOND, &larger).unwrap();
    control.activate(SECOND).unwrap();
    assert_eq!(
        instance.tracefs.get(&Setting::BufferSizeKb).unwrap(),
        size,
        "resizing would lose events"
    );
    assert_eq!(
        enabled(&instance),
        [
            "sched/sched_process_exit",
            "sched/sched_switch",
            "sched/sched_waking"
        ],
        "and not what somebody else had left on"
    );

    control.remove(FIRST);
    assert_eq!(
        enabled(&instance),
        ["sched/sched_process_exit", "sched/sched_waking"]
    );
    assert_eq!(instance.tracefs.recording().unwrap(), Recording::On);
    control.remove(SECOND);
    assert!(control.is_unused());
    assert!(control.put_back().is_empty());
    let mut after = instance.snapshot();
    // A buffer cannot return to its unexpanded state.
    let mut before = before;
    after.retain(|file, _| !file.contains("buffer_size_kb"));
    before.retain(|file, _| !file.contains("buffer_size_kb"));
    assert_eq!(after, before);
}

#[test]
fn who_records_at_the_end_goes_on_recording() {
    for waiting in [None, Some(SECOND)] {
        let Some(instance) = TestInstance::new() else {
            return;
        };
        let theirs = EventName::new("sched", "sched_process_exit");
        let mut control = control(&instance);
        setup(&mut control, FIRST, &config(&["sched_switch"])).unwrap();
        control.activate(FIRST).unwrap();
        instance.tracefs.set_event(&theirs, Recording::On).unwrap();
        std::fs::write(instance.tracefs.root().join("trace_marker"), "theirs").unwrap();
        if let Some(id) = waiting {
            setup(&mut control, id, &config(&["sched_waking"])).unwrap();
        }

        control.remove(FIRST);
        let recording = instance.tracefs.recording().unwrap();
        let switched_off = waiting.is_some();
        assert_eq!(recording == Recording::Off, switched_off, "{waiting:?}");
        if let Some(id) = waiting {
            control.remove(id);
        }
        assert!(control.put_back().is_empty());
        assert_eq!(
            instance.tracefs.recording().unwrap(),
            Recording::On,
            "{waiting:?}"
        );
        assert_eq!(enabled(&instance), ["sched/sched_process_exit"]);
        assert!(instance.tracefs.read("trace").unwrap().contains("theirs"));
    }
}

#[test]
fn the_most_impatient_active_session_sets_the_watermark() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let percent = |percent| FtraceConfig {
        drain_buffer_percent: Some(percent),
        ..config(&["sched_switch"])
    };
    let current = || instance.tracefs.get(&Setting::BufferPercent).unwrap();
    let mut control = control(&instance);
    setup(&mut control, FIRST, &percent(40)).unwrap();
    setup(&mut control, SECOND, &percent(20)).unwrap();
    assert_eq!(control.activate(FIRST).unwrap(), None);
    assert_eq!(current(), "40");
    control.activate(SECOND).unwrap();
    assert_eq!(current(), "20");
    control.remove(SECOND);
    assert_eq!(current(), "40");
    control.remove(FIRST);
    control.put_back();
    assert_eq!(current(), "50");
}

#[test]
fn exclusive_features_exclude_other_sessions() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let exclusive = FtraceConfig {
        tids_to_trace: vec![1, 2],
        ..config(&["sched_switch"])
    };
    let mut control = control(&instance);

    setup(&mut control, FIRST, &exclusive).unwrap();
    assert_eq!(instance.tracefs.get(&Setting::EventPids).unwrap(), "1 2");
    let refused = setup(&mut control, SECOND, &config(&["sched_waking"]));
    assert!(matches!(refused, Err(ControlError::Exclusive(HAS_ALL))));
    control.remove(FIRST);
    control.put_back();
    assert_eq!(instance.tracefs.get(&Setting::EventPids).unwrap(), "");

    setup(&mut control, SECOND, &config(&["sched_waking"])).unwrap();
    let refused = setup(&mut control, FIRST, &exclusive);
    assert!(matches!(refused, Err(ControlError::Exclusive(WANTS_ALL))));
    assert_eq!(
        enabled(&instance),
        ["sched/sched_waking"],
        "the running session is as before"
    );
}

#[test]
fn a_setup_that_fails_changes_nothing() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    instance.tracefs.set(&Setting::BufferSizeKb, "128").unwrap();
    let before = instance.snapshot();
    let option = TracefsOption {
        name: Some("no-such-option".into()),
        state: Some(State::STATE_ENABLED),
        ..TracefsOption::default()
    };
    let failing = FtraceConfig {
        tids_to_trace: vec![5],
        tracefs_options: vec![option],
        ..config(&["sched_switch"])
    };
    let mut control = control(&instance);
    assert!(matches!(
        setup(&mut control, FIRST, &failing),
        Err(ControlError::Setting { .. })
    ));
    assert!(control.is_unused());
    assert_eq!(instance.snapshot(), before);
}

#[test]
fn buffers_that_cannot_be_resized_stay_as_they_are() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let before = instance.tracefs.buffer_pages(4096).unwrap();
    let mirror = Mirror::of(&instance);
    std::fs::create_dir(mirror.take_away("buffer_size_kb")).unwrap();
    let tracefs = mirror.top().instance(&instance.name).unwrap();
    let mut control = Control::new(Restorer::new(tracefs, None), InstanceRole::Secondary);
    let setup = setup(&mut control, FIRST, &config(&["sched_switch"])).unwrap();
    assert!(
        setup
            .warnings
            .iter()
            .any(|warning| warning.contains("buffers stay as they are")),
        "{setup:?}"
    );
    assert_eq!(instance.tracefs.buffer_pages(4096).unwrap(), before);
}

#[test]
fn another_programs_tracer_is_respected() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    if instance.tracefs.set(&Setting::CurrentTracer, "function").is_err() {
        println!("skipped: this kernel has no function tracer");
        return;
    }
    instance.tracefs.set(&Setting::TracingOn, "0").unwrap();
    let before = instance.snapshot();
    let mut control = control(&instance);
    let error = setup(&mut control, FIRST, &config(&["sched_switch"])).unwrap_err();
    assert!(matches!(error, ControlError::InUse { .. }));
    assert!(error.to_string().contains("echo nop"), "{error}");
    assert_eq!(instance.snapshot(), before);
    instance.tracefs.set(&Setting::CurrentTracer, "nop").unwrap();
}

#[test]
fn a_preserved_buffer_keeps_its_size_clock_and_events() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    instance.tracefs.set(&Setting::TraceClock, "mono_raw").unwrap();
    instance.tracefs.set(&Setting::BufferSizeKb, "128").unwrap();
    instance
        .tracefs
        .set_event(&EventName::new("sched", "sched_switch"), Recording::On)
        .unwrap();
    let before = instance.snapshot();
    let mut control = control(&instance);
    let preserving = FtraceConfig {
        preserve_ftrace_buffer: Some(true),
        ..config(&["sched_switch", "sched_waking"])
    };
    setup(&mut control, FIRST, &preserving).unwrap();
    control.activate(FIRST).unwrap();
    assert_eq!(control.clock(), Some(FtraceClock::FTRACE_CLOCK_MONO_RAW));
    assert_eq!(enabled(&instance), ["sched/sched_switch", "sched/sched_waking"]);
    let during = instance.snapshot();
    for file in ["trace_clock", "per_cpu/cpu0/buffer_size_kb"] {
        assert_eq!(during[file], before[file], "{file}");
    }
    control.remove(FIRST);
    control.put_back();
    assert_eq!(
        instance.snapshot(),
        before,
        "sched_switch was on before and stays on"
    );
}

#[test]
fn system_calls_are_filtered_for_all_sessions_together() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let only = |name: &str| FtraceConfig {
        syscall_events: vec![name.into()],
        ..config(&[])
    };
    let number = |name| crate::ftrace::syscalls::number(name).unwrap();
    let filter = || {
        instance
            .tracefs
            .get(&Setting::EventFilter(EventName::new("raw_syscalls", "sys_exit")))
            .unwrap()
    };
    let mut control = control(&instance);
    setup(&mut control, FIRST, &only("sys_read")).unwrap();
    assert_eq!(filter(), format!("id == {}", number("sys_read")));
    setup(&mut control, SECOND, &only("sys_write")).unwrap();
    let mut numbers = [number("sys_read"), number("sys_write")];
    numbers.sort();
    assert_eq!(filter(), format!("id == {} || id == {}", numbers[0], numbers[1]));
    setup(
        &mut control,
        FtraceSessionId(3),
        &config(&["raw_syscalls/sys_exit"]),
    )
    .unwrap();
    assert_eq!(filter(), "0", "somebody wants all");
    control.remove(FtraceSessionId(3));
    control.remove(SECOND);
    assert_eq!(filter(), format!("id == {}", number("sys_read")));
    control.remove(FIRST);
    control.put_back();
    assert_eq!(filter(), "0");
    assert_eq!(enabled(&instance), Vec::<String>::new());
}

#[test]
fn what_cannot_be_recorded_is_reported() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let mut control = control(&instance);
    let wishes = FtraceConfig {
        disable_generic_events: Some(true),
        ..config(&[
            "sched/nonsense",
            "task/task_rename",
            "sched_switch",
            "sched_waking",
        ])
    };
    let setup = control
        .setup(
            FIRST,
            &wishes,
            &mut |_, event| match (event.group.as_str(), event.name.as_str()) {
                ("task", _) => Ok(Description::Generic),
                (_, "sched_waking") => Err("odd format".to_owned()),
                _ => Ok(Description::Typed),
            },
        )
        .unwrap();
    assert_eq!(
        setup.errors.unknown_events,
        ["sched/nonsense", "sched/sched_waking"]
    );
    assert_eq!(setup.errors.failed_events, ["task/task_rename"]);
    assert_eq!(enabled(&instance), ["sched/sched_switch"]);
    assert!(
        setup
            .warnings
            .iter()
            .any(|warning| warning.contains("odd format"))
    );
}

use crate::ftrace::tracefs::Recording;
