//! Configs with triggers that make no sense.

use super::*;

fn refusal(config: &TraceConfig) -> String {
    let (mut world, _, consumer) = world();
    let error = world.try_enable(consumer, config).expect_err("to be refused");
    assert_eq!(world.service.buffer_bytes(), 0);
    error
}

fn accepted(config: &TraceConfig) {
    let (mut world, _, consumer) = world();
    world.enable(consumer, config);
}

const MODES: [TriggerMode; 3] = [
    TriggerMode::START_TRACING,
    TriggerMode::STOP_TRACING,
    TriggerMode::CLONE_SNAPSHOT,
];

#[test]
fn timeouts_of_0_and_of_more_than_a_week() {
    let week = limits::MAX_DURATION.as_millis() as u32;
    for mode in MODES {
        accepted(&triggered(mode, week, &[trigger("t", 1)]));
        for timeout in [0, week + 1] {
            let error = refusal(&triggered(mode, timeout, &[trigger("t", 1)]));
            assert!(error.contains("trigger_timeout_ms"), "{error}");
        }
    }
    accepted(&triggered(TriggerMode::UNSPECIFIED, 0, &[trigger("t", 1)]));
}

#[test]
fn a_duration_beside_a_mode() {
    for mode in MODES {
        let both = TraceConfig {
            duration_ms: Some(1),
            ..triggered(mode, 1, &[trigger("t", 1)])
        };
        assert!(refusal(&both).contains("duration_ms must not be set"));
    }
}

#[test]
fn modes_that_this_service_does_not_know() {
    let config = triggered(TriggerMode::UNSPECIFIED, 1, &[trigger("t", 1)]);
    let with_mode = |number: u64| {
        let (mut world, _, consumer) = world();
        let mut bytes = ferretto_wire::Writer::new();
        bytes.raw(&config.encode_to_vec());
        bytes.nested(17, |triggers| triggers.varint_field(1, number));
        let input = ConfigInput {
            config: TraceConfig::decode_from_slice(bytes.as_slice()).unwrap(),
            bytes: bytes.as_slice().into(),
        };
        let now = world.now;
        world
            .service
            .enable_tracing(consumer, input, &OutputFile::None, 1, &now)
    };
    for number in [3, 5, u64::MAX] {
        assert!(
            with_mode(number).unwrap_err().contains("invalid trigger_mode"),
            "{number}"
        );
    }
    for number in [0, 1, 2, 4] {
        with_mode(number).unwrap();
    }
}

#[test]
fn the_flag_for_older_services_without_the_mode_for_them() {
    for mode in [
        TriggerMode::UNSPECIFIED,
        TriggerMode::START_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ] {
        let mut config = triggered(mode, 1, &[trigger("t", 1)]);
        config
            .trigger_config
            .get_or_insert_default()
            .use_clone_snapshot_if_available = Some(true);
        assert!(refusal(&config).contains("trigger_mode must be STOP_TRACING"));
    }
}

#[test]
fn files_of_sessions_that_are_empty_until_they_are_over() {
    for mode in [TriggerMode::STOP_TRACING, TriggerMode::CLONE_SNAPSHOT] {
        let streaming = TraceConfig {
            write_into_file: Some(true),
            ..triggered(mode, 1, &[trigger("t", 1)])
        };
        assert!(refusal(&streaming).contains("write_into_file"));
    }
}

#[test]
fn triggers_of_the_same_name() {
    for mode in [TriggerMode::UNSPECIFIED, TriggerMode::START_TRACING] {
        let twice = triggered(mode, 1, &[trigger("t", 1), trigger("u", 1), trigger("t", 2)]);
        assert!(refusal(&twice).contains("duplicate trigger name \"t\""));
    }
}

#[test]
fn expressions_that_do_not_compile_explode_or_are_too_many() {
    let with = |number: usize, expression: String| Trigger {
        producer_name_regex: Some(expression),
        ..trigger(&format!("t{number}"), 1)
    };
    let of = |triggers: &[Trigger]| triggered(TriggerMode::STOP_TRACING, 1, triggers);
    for expression in ["(", "*", "[", "a{1000}{1000}{1000}", &"x".repeat(5000)] {
        let error = refusal(&of(&[trigger("good", 1), with(0, expression.to_owned())]));
        assert!(
            error.contains("producer_name_regex") && error.contains("t0"),
            "{error}"
        );
    }
    let different = |count| -> Vec<Trigger> {
        (0..count)
            .map(|number| with(number, format!("p{number}")))
            .collect()
    };
    let mut many = different(limits::MAX_TRIGGER_REGEXES_PER_CONFIG);
    // An expression that is already there does not count again.
    many.push(with(limits::MAX_TRIGGER_REGEXES_PER_CONFIG, "p0".into()));
    accepted(&of(&many));
    let error = refusal(&of(&different(limits::MAX_TRIGGER_REGEXES_PER_CONFIG + 1)));
    assert!(error.contains("too many different"), "{error}");
}

#[test]
fn more_triggers_or_longer_names_than_a_config_may_have() {
    let many = |count| -> Vec<Trigger> { (0..count).map(|number| trigger(&number.to_string(), 1)).collect() };
    let of = |triggers: &[Trigger]| triggered(TriggerMode::STOP_TRACING, 1, triggers);
    accepted(&of(&many(limits::MAX_TRIGGERS_PER_CONFIG)));
    assert!(refusal(&of(&many(limits::MAX_TRIGGERS_PER_CONFIG + 1))).contains("too many triggers"));
    let named = |length| of(&[trigger(&"n".repeat(length), 1)]);
    accepted(&named(limits::MAX_TRIGGER_NAME));
    assert!(refusal(&named(limits::MAX_TRIGGER_NAME + 1)).contains("name of"));
}
