//! Configs: upstream's defaults and rules (`event_config_unittest.cc` has the same cases), and refusals.

use ferretto_proto::messages::perf_event_config::CallstackSampling;
use ferretto_proto::messages::perf_events::{Counter, EventModifier, RawEvent, Tracepoint};

use super::*;
use crate::event::Kind;

struct FakeNumbers;

impl EventNumbers for FakeNumbers {
    fn tracepoint_id(&self, group: &str, name: &str) -> Result<u64, String> {
        match (group, name) {
            ("sched", "sched_switch") => Ok(42),
            _ => Err("this kernel has no such event".to_owned()),
        }
    }

    fn pmu_type(&self, pmu: &str) -> Result<u32, String> {
        match pmu {
            "armv8_pmuv3" => Ok(10),
            _ => Err("this machine has armv8_pmuv3".to_owned()),
        }
    }
}

fn read(config: &PerfEventConfig) -> Result<PerfConfig, String> {
    PerfConfig::of(config, None, &FakeNumbers)
}

fn sampled(config: &PerfEventConfig) -> Sampling {
    match read(config).expect("the config is good").mode {
        Mode::Sampling(sampling) => sampling,
        Mode::Polling(_) => panic!("it polls"),
    }
}

fn with_timebase(timebase: Timebase) -> PerfEventConfig {
    PerfEventConfig {
        timebase: MessageField::some(timebase),
        ..Default::default()
    }
}

fn with_stacks(callstacks: CallstackSampling) -> PerfEventConfig {
    PerfEventConfig {
        callstack_sampling: MessageField::some(callstacks),
        ..Default::default()
    }
}

#[test]
fn an_empty_config_counts_the_cpu_clock_ten_times_a_second() {
    let config = read(&PerfEventConfig::default()).expect("the config is good");
    assert_eq!(config.leader.kind, Kind::Counter(Counter::SW_CPU_CLOCK));
    assert_eq!(config.stacks(), None);
    let Mode::Sampling(sampling) = config.mode else {
        panic!("it polls")
    };
    assert_eq!(sampling.interval, Interval::Frequency(10));
    assert_eq!(sampling.ring_pages_to_try(2), [256, 128, 64, 32, 16, 8, 4, 2, 1]);
    assert_eq!(sampling.read_period, Duration::from_millis(100));
    assert_eq!(sampling.clear_period, Duration::from_secs(300));
    assert_eq!(sampling.clock, Clock::MonotonicRaw);
    assert_eq!(sampling.most_queued, None);
}

#[test]
fn the_interval_is_a_period_before_a_frequency_before_the_legacy_one() {
    let interval = |interval: Option<timebase::Interval>, legacy| {
        let config = PerfEventConfig {
            sampling_frequency: legacy,
            ..with_timebase(Timebase {
                interval,
                ..Default::default()
            })
        };
        sampled(&config).interval
    };
    assert_eq!(
        interval(Some(timebase::Interval::Period(100)), Some(7)),
        Interval::Period(100)
    );
    assert_eq!(
        interval(Some(timebase::Interval::Frequency(50)), Some(7)),
        Interval::Frequency(50)
    );
    assert_eq!(
        interval(Some(timebase::Interval::Frequency(0)), Some(7)),
        Interval::Frequency(7)
    );
    assert_eq!(interval(None, Some(7)), Interval::Frequency(7));
    assert_eq!(interval(None, Some(0)), Interval::Frequency(10));
}

#[test]
fn ring_buffers_have_a_power_of_two_of_pages() {
    let pages = |pages| PerfEventConfig {
        ring_buffer_pages: Some(pages),
        ..Default::default()
    };
    assert_eq!(sampled(&pages(0)).ring_pages, None);
    assert_eq!(sampled(&pages(128)).ring_pages_to_try(2), [128]);
    for wrong in [3, 1 << 31] {
        let refusal = read(&pages(wrong)).expect_err("it is refused");
        assert!(refusal.contains("ring_buffer_pages"), "{refusal}");
    }
}

#[test]
fn rings_have_room_for_the_stacks_of_a_tenth_of_a_second_within_bounds() {
    let pages = |frequency, cpus| {
        let config = PerfEventConfig {
            callstack_sampling: MessageField::some(CallstackSampling::default()),
            ..with_timebase(Timebase {
                interval: Some(timebase::Interval::Frequency(frequency)),
                ..Default::default()
            })
        };
        sampled(&config).ring_pages_to_try(cpus)
    };
    assert_eq!(pages(10, 2), [256, 128, 64, 32]);
    assert_eq!(pages(1000, 2), [2048, 1024, 512, 256, 128, 64, 32]);
    assert_eq!(pages(1000, 256), [512, 256, 128, 64, 32]);
    assert_eq!(pages(3000, 24), [4096, 2048, 1024, 512, 256, 128, 64, 32]);
    assert_eq!(pages(u64::MAX, 1 << 20), [256, 128, 64, 32]);
}

#[test]
fn events_are_counters_tracepoints_or_raw() {
    let leader = |event| {
        read(&with_timebase(Timebase {
            event: Some(event),
            name: Some("mine".to_owned()),
            ..Default::default()
        }))
        .map(|config| config.leader)
    };
    let counter = leader(timebase::Event::Counter(Counter::HW_CPU_CYCLES)).expect("it is known");
    assert_eq!((counter.attr_type, counter.attr_config), (0, [0, 0, 0]));
    assert_eq!(counter.name.as_deref(), Some("mine"));
    assert!(counter.needs_hardware() && counter.happens_in_user_code());
    let faults = leader(timebase::Event::Counter(Counter::SW_PAGE_FAULTS)).expect("it is known");
    let switches = leader(timebase::Event::Counter(Counter::SW_CONTEXT_SWITCHES)).expect("it is known");
    assert!(faults.happens_in_user_code() && !switches.happens_in_user_code());
    let modifiers = [EventModifier::EVENT_MODIFIER_COUNT_KERNEL];
    let in_kernel = Event {
        scope: CountingScope::of(&modifiers),
        ..faults
    };
    assert!(!in_kernel.happens_in_user_code());
    for name in ["sched:sched_switch", "sched/sched_switch"] {
        let tracepoint = Tracepoint {
            name: Some(name.to_owned()),
            filter: Some("prev_pid > 0".to_owned()),
            ..Default::default()
        };
        let tracepoint = leader(timebase::Event::Tracepoint(Box::new(tracepoint))).expect("it is known");
        assert_eq!((tracepoint.attr_type, tracepoint.attr_config), (2, [42, 0, 0]));
        let kind = Kind::Tracepoint {
            name: name.to_owned(),
            filter: "prev_pid > 0".to_owned(),
        };
        assert_eq!(tracepoint.kind, kind);
        assert!(!tracepoint.happens_in_user_code());
    }
    let raw = RawEvent {
        pmu_name: Some("armv8_pmuv3".to_owned()),
        config: Some(8),
        config1: Some(18),
        config2: Some(29),
        ..Default::default()
    };
    let raw = leader(timebase::Event::RawEvent(Box::new(raw))).expect("it is known");
    assert_eq!((raw.attr_type, raw.attr_config), (10, [8, 18, 29]));
}

#[test]
fn events_that_do_not_exist_are_refused_with_the_reason() {
    let refusal = |event| {
        let config = with_timebase(Timebase {
            event: Some(event),
            ..Default::default()
        });
        read(&config).expect_err("it is refused")
    };
    let tracepoint = |name: &str| {
        timebase::Event::Tracepoint(Box::new(Tracepoint {
            name: Some(name.to_owned()),
            ..Default::default()
        }))
    };
    assert!(refusal(tracepoint("sched_switch")).contains("sched:sched_switch"));
    assert!(refusal(tracepoint("sched:")).contains("not of the form"));
    assert!(refusal(tracepoint("sched:sched_swotch")).contains("no such event"));
    let both = RawEvent {
        r#type: Some(4),
        pmu_name: Some("armv8_pmuv3".to_owned()),
        ..Default::default()
    };
    assert!(refusal(timebase::Event::RawEvent(Box::new(both))).contains("both"));
    assert!(refusal(timebase::Event::RawEvent(Box::default())).contains("needs"));
    assert!(refusal(timebase::Event::Counter(Counter::UNKNOWN_COUNTER)).contains("UNKNOWN_COUNTER"));
    let mut from_the_future = Timebase::default();
    from_the_future.unknown_fields.push_varint(4, 1000);
    let refusal = read(&with_timebase(from_the_future)).expect_err("it is refused");
    assert!(refusal.contains("counter"), "{refusal}");
}

#[test]
fn modifiers_say_where_an_event_is_counted() {
    let scope = CountingScope::of(&[EventModifier::EVENT_MODIFIER_COUNT_USERSPACE]);
    let only_user = CountingScope {
        exclude_user: false,
        exclude_kernel: true,
        exclude_hypervisor: true,
    };
    assert_eq!(scope, only_user);
    let modifiers: Vec<_> = scope.modifiers().collect();
    assert_eq!(modifiers, [EventModifier::EVENT_MODIFIER_COUNT_USERSPACE]);
    assert_eq!(CountingScope::of(&[]), CountingScope::default());
    assert_eq!(CountingScope::default().modifiers().count(), 0);
}

#[test]
fn stacks_come_with_callstack_sampling_or_a_legacy_config() {
    let stacks = |config: &PerfEventConfig| sampled(config).stacks;
    assert_eq!(stacks(&PerfEventConfig::default()), None);
    let all = stacks(&with_stacks(CallstackSampling::default())).expect("there are stacks");
    assert_eq!((all.user, all.kernel), (UserFrames::Dwarf, false));
    assert_eq!(all.scope, Scope::default());
    let legacy = PerfEventConfig {
        all_cpus: Some(true),
        kernel_frames: Some(true),
        target_pid: vec![7],
        exclude_cmdline: vec!["sh".to_owned()],
        additional_cmdline_count: Some(3),
        ..Default::default()
    };
    let legacy = stacks(&legacy).expect("there are stacks");
    assert_eq!((legacy.user, legacy.kernel), (UserFrames::Dwarf, true));
    assert_eq!(legacy.scope.pids, [7].into());
    assert_eq!(legacy.scope.excluded_cmdlines, ["sh"]);
    assert_eq!(legacy.scope.additional_cmdlines, 3);
}

#[test]
fn user_frames_are_found_as_the_config_says() {
    let user = |mode, kernel| {
        let callstacks = CallstackSampling {
            user_frames: mode,
            kernel_frames: Some(kernel),
            ..Default::default()
        };
        sampled(&with_stacks(callstacks)).stacks.map(|stacks| stacks.user)
    };
    assert_eq!(user(None, false), Some(UserFrames::Dwarf));
    assert_eq!(
        user(Some(UnwindMode::UNWIND_UNKNOWN), false),
        Some(UserFrames::Dwarf)
    );
    assert_eq!(
        user(Some(UnwindMode::UNWIND_DWARF), false),
        Some(UserFrames::Dwarf)
    );
    assert_eq!(
        user(Some(UnwindMode::UNWIND_FRAME_POINTER), false),
        Some(UserFrames::FramePointers)
    );
    let by_kernel = Some(UserFrames::KernelFramePointers);
    assert_eq!(
        user(Some(UnwindMode::UNWIND_KERNEL_FRAME_POINTER), false),
        by_kernel
    );
    assert_eq!(user(Some(UnwindMode::UNWIND_SKIP), true), Some(UserFrames::Skip));
    // The config asks for neither frames of user space nor frames of the kernel, so only counts are left.
    assert_eq!(user(Some(UnwindMode::UNWIND_SKIP), false), None);
    let mut from_the_future = CallstackSampling::default();
    from_the_future.unknown_fields.push_varint(3, 9);
    assert!(read(&with_stacks(from_the_future)).is_err());
}

#[test]
fn polling_excludes_what_only_samples_have() {
    let polled = with_timebase(Timebase {
        interval: Some(timebase::Interval::PollPeriodMs(250)),
        ..Default::default()
    });
    let config = read(&polled).expect("the config is good");
    assert_eq!(config.mode, Mode::Polling(Duration::from_millis(250)));
    let wrong = [
        PerfEventConfig {
            all_cpus: Some(true),
            ..polled.clone()
        },
        PerfEventConfig {
            ring_buffer_read_period_ms: Some(5),
            ..polled.clone()
        },
        PerfEventConfig {
            callstack_sampling: MessageField::some(CallstackSampling::default()),
            ..polled
        },
    ];
    for config in wrong {
        let refusal = read(&config).expect_err("it is refused");
        assert!(refusal.contains("poll_period_ms"), "{refusal}");
    }
}

#[test]
fn a_config_may_not_name_more_than_fits() {
    let followers = PerfEventConfig {
        followers: vec![FollowerEvent::default(); MOST_FOLLOWERS + 1],
        ..Default::default()
    };
    assert!(read(&followers).is_err());
    let scope = ScopeConfig {
        target_pid: (0..=MOST_IN_SCOPE as i32).collect(),
        ..Default::default()
    };
    let callstacks = CallstackSampling {
        scope: MessageField::some(scope),
        ..Default::default()
    };
    assert!(read(&with_stacks(callstacks)).is_err());
}

#[test]
fn a_family_is_counted_alone_if_nothing_else_chooses_processes() {
    let counted = |scope: ScopeConfig, followers: Vec<FollowerEvent>| {
        let config = PerfEventConfig {
            followers,
            ..with_stacks(CallstackSampling {
                scope: MessageField::some(scope),
                ..Default::default()
            })
        };
        read(&config).expect("the config is good").counted
    };
    let family = |pid| ScopeConfig {
        family_of: Some(pid),
        ..Default::default()
    };
    assert_eq!(counted(family(7), Vec::new()), Counted::Family(7));
    assert_eq!(
        counted(family(7), vec![FollowerEvent::default()]),
        Counted::Everybody
    );
    // 0 stands for nobody that the profiler knows.
    for pid in [0, -1] {
        assert_eq!(counted(family(pid), Vec::new()), Counted::Everybody);
    }
    let and_a_process = ScopeConfig {
        target_pid: vec![8],
        ..family(7)
    };
    assert_eq!(counted(and_a_process, Vec::new()), Counted::Processes([8].into()));
    for other in [
        ScopeConfig {
            target_cmdline: vec!["sh".to_owned()],
            ..family(7)
        },
        ScopeConfig {
            exclude_pid: vec![8],
            ..family(7)
        },
        ScopeConfig {
            exclude_cmdline: vec!["sh".to_owned()],
            ..family(7)
        },
        ScopeConfig {
            additional_cmdline_count: Some(1),
            ..family(7)
        },
    ] {
        assert_eq!(
            counted(other.clone(), Vec::new()),
            Counted::Everybody,
            "{other:?}"
        );
    }
}
