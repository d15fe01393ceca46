//! Configs that are refused, each with a reason that names the mistake; and limits at their value and past it.

use ferretto_proto::messages::TraceConfig;
use ferretto_service::limits;

use crate::world::{World, config};

fn refused(config: &TraceConfig) -> String {
    let mut world = World::new();
    let consumer = world.consumer();
    let error = world.try_enable(consumer, config).expect_err("to be refused");
    assert_eq!(world.service.buffer_bytes(), 0, "nothing is left behind");
    // The consumer can try again.
    world.enable(consumer, &super::world::config(&[]));
    error
}

fn accepted(config: &TraceConfig) {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, config);
}

#[test]
fn buffers_that_cannot_be() {
    let sized = |size_kb| {
        let mut config = config(&[]);
        config.buffers[0].size_kb = size_kb;
        config
    };
    let four_gb = 4 * 1024 * 1024;
    for size_kb in [None, Some(0), Some(four_gb), Some(u32::MAX)] {
        assert!(
            refused(&sized(size_kb)).contains("is not a valid size"),
            "{size_kb:?}"
        );
    }
    // This size is valid, but may take more memory than there is.
    let mut world = World::new();
    let consumer = world.consumer();
    match world.try_enable(consumer, &sized(Some(four_gb - 1))) {
        Ok(_) => assert_eq!(world.service.buffer_bytes(), u64::from(four_gb - 1) * 1024),
        Err(error) => assert!(!error.contains("is not a valid size"), "{error}"),
    }
    // An invalid buffer is also found behind a valid one.
    let mut several = sized(Some(128));
    several.buffers.extend(sized(Some(four_gb)).buffers);
    assert!(refused(&several).contains("buffers[1]"));
    let many = |count| TraceConfig {
        buffers: vec![config(&[]).buffers[0].clone(); count],
        ..Default::default()
    };
    accepted(&many(limits::MAX_BUFFERS_PER_SESSION));
    assert!(refused(&many(limits::MAX_BUFFERS_PER_SESSION + 1)).contains("too many buffers"));
    let mut twice = many(2);
    for buffer in &mut twice.buffers {
        buffer.name = Some("same".into());
    }
    assert!(refused(&twice).contains("duplicate buffer name"));
}

#[test]
fn targets_that_are_not_there() {
    let mut wrong = config(&["d"]);
    wrong.data_sources[0].config.get_or_insert_default().target_buffer = Some(1);
    assert!(refused(&wrong).contains("out of bounds"));
    let mut wrong = config(&["d"]);
    wrong.data_sources[0]
        .config
        .get_or_insert_default()
        .target_buffer_name = Some("nowhere".into());
    assert!(refused(&wrong).contains("nowhere"));
    let mut wrong = config(&["d"]);
    wrong.buffers = vec![wrong.buffers[0].clone(); 3];
    wrong.buffers[2].name = Some("two".into());
    let source = wrong.data_sources[0].config.get_or_insert_default();
    source.target_buffer_name = Some("two".into());
    source.target_buffer = Some(1);
    assert!(refused(&wrong).contains("name different buffers"));
    assert!(
        refused(&TraceConfig {
            buffers: Vec::new(),
            ..config(&["d"])
        })
        .contains("out of bounds")
    );
}

#[test]
fn durations_beyond_a_week() {
    let week = limits::MAX_DURATION.as_millis() as u32;
    accepted(&TraceConfig {
        duration_ms: Some(week),
        ..config(&[])
    });
    assert!(
        refused(&TraceConfig {
            duration_ms: Some(week + 1),
            ..config(&[])
        })
        .contains("7 days")
    );
}

#[test]
fn expressions_that_do_not_compile_or_explode() {
    for expression in ["(", "a{1000}{1000}{1000}", &"x".repeat(5000)] {
        let mut wrong = config(&["d"]);
        wrong.data_sources[0].producer_name_regex_filter = vec![expression.to_owned()];
        assert!(refused(&wrong).contains("producer_name_regex_filter"));
    }
}

#[test]
fn more_data_sources_than_a_config_may_have() {
    let many = |count| config(&vec!["d"; count]);
    accepted(&many(limits::MAX_DATA_SOURCES_PER_CONFIG));
    assert!(refused(&many(limits::MAX_DATA_SOURCES_PER_CONFIG + 1)).contains("too many data sources"));
}

#[test]
fn a_file_that_is_not_there() {
    let mut world = World::new();
    let consumer = world.consumer();
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let input = ferretto_service::ConfigInput {
        config: streaming.clone(),
        bytes: ferretto_proto::messages::Message::encode_to_vec(&streaming).into(),
    };
    let now = world.now;
    let none = ferretto_service::OutputFile::None;
    let error = world
        .service
        .enable_tracing(consumer, input, &none, 0, &now)
        .unwrap_err();
    assert!(error.contains("write_into_file"));
}

#[test]
fn a_second_session_of_the_same_consumer() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&[]));
    assert!(
        world
            .try_enable(consumer, &config(&[]))
            .unwrap_err()
            .contains("already")
    );
}

#[test]
fn more_sessions_than_a_user_or_the_service_may_have() {
    let mut world = World::new();
    for uid in 0..(limits::MAX_SESSIONS / limits::MAX_SESSIONS_PER_UID) as u32 {
        for _ in 0..limits::MAX_SESSIONS_PER_UID {
            let consumer = world.consumer_of(uid);
            world.enable(consumer, &config(&[]));
        }
        let one_too_many = world.consumer_of(uid);
        assert!(
            world
                .try_enable(one_too_many, &config(&[]))
                .unwrap_err()
                .contains("for uid")
        );
    }
    let stranger = world.consumer_of(999);
    assert!(
        world
            .try_enable(stranger, &config(&[]))
            .unwrap_err()
            .contains("too many")
    );
}

#[test]
fn a_file_name_for_bug_reports_that_leads_elsewhere() {
    let named = |name: &str| TraceConfig {
        bugreport_filename: Some(name.into()),
        ..config(&[])
    };
    accepted(&named("Systrace-1_2.pftrace"));
    for name in ["../up", "a b", "caf\u{e9}"] {
        assert!(refused(&named(name)).contains("bugreport_filename"));
    }
}
