//! The meaning of configs, and refused ones.

use super::*;
use ferretto_proto::messages::heapprofd_config::ContinuousDumpConfig;

fn minimal() -> HeapprofdConfig {
    HeapprofdConfig {
        sampling_interval_bytes: Some(4096),
        all: Some(true),
        ..Default::default()
    }
}

fn read(config: HeapprofdConfig) -> HeapConfig {
    HeapConfig::of(&config).expect("it is good")
}

#[track_caller]
fn refused(config: HeapprofdConfig, because: &str) {
    let error = HeapConfig::of(&config).expect_err("it is refused");
    assert!(error.contains(because), "{error}");
}

#[test]
fn without_more_the_malloc_heap_is_sampled_and_dumped_at_the_end() {
    let config = read(minimal());
    assert_eq!(config.welcome.interval_of(b"libc.malloc"), 4096);
    assert_eq!(config.welcome.interval_of(b"other"), 0);
    assert_eq!(config.welcome.when_full, WhenFull::Lose);
    assert_eq!(config.ring_words, 1 << 20);
    assert_eq!((config.ages, config.recorded), (Ages::Any, Recorded::Totals));
    assert_eq!((config.continuous, config.most_daemon_memory_kb), (None, None));
}

#[test]
fn heaps_have_the_default_interval_or_their_own() {
    let two = read(HeapprofdConfig {
        heaps: vec!["a".into(), "b".into()],
        heap_sampling_intervals: vec![7, 8],
        ..minimal()
    });
    let of = |config: &HeapConfig| ["a", "b", "c"].map(|name| config.welcome.interval_of(name.as_bytes()));
    assert_eq!(of(&two), [7, 8, 0]);
    let all_but_one = read(HeapprofdConfig {
        heaps: vec!["a".into()],
        heap_sampling_intervals: vec![7],
        exclude_heaps: vec!["b".into()],
        all_heaps: Some(true),
        ..minimal()
    });
    assert_eq!(of(&all_but_one), [7, 0, 4096]);
}

#[test]
fn the_other_fields_are_taken_over() {
    let config = read(HeapprofdConfig {
        adaptive_sampling_shmem_threshold: Some(1000),
        adaptive_sampling_max_sampling_interval_bytes: Some(2000),
        block_client: Some(true),
        block_client_timeout_us: Some(300),
        shmem_size_bytes: Some(8192),
        no_running: Some(true),
        dump_at_max: Some(true),
        min_anonymous_memory_kb: Some(5),
        max_heapprofd_memory_kb: Some(6),
        max_heapprofd_cpu_secs: Some(7),
        skip_symbol_prefix: vec!["/usr".into()],
        continuous_dump_config: ContinuousDumpConfig {
            dump_phase_ms: Some(10),
            dump_interval_ms: Some(20),
            ..Default::default()
        }
        .into(),
        ..minimal()
    });
    assert_eq!(
        (config.welcome.adaptive_threshold, config.welcome.adaptive_most),
        (1000, 2000)
    );
    assert_eq!(config.welcome.when_full, WhenFull::Wait { at_most_us: 300 });
    assert_eq!(config.ring_words, 1024);
    assert_eq!((config.ages, config.recorded), (Ages::New, Recorded::Maximum));
    assert_eq!(config.least_anonymous_kb, 5);
    assert_eq!(config.most_daemon_memory_kb, Some(6));
    assert_eq!(config.most_daemon_cpu, Some(Duration::from_secs(7)));
    assert_eq!(config.nameless, [b"/usr".to_vec()]);
    let expected = Continuous {
        phase: Duration::from_millis(10),
        interval: Duration::from_millis(20),
    };
    assert_eq!(config.continuous, Some(expected));
}

#[test]
fn a_ring_larger_than_possible_is_as_large_as_possible() {
    let config = read(HeapprofdConfig {
        shmem_size_bytes: Some(1 << 40),
        ..minimal()
    });
    assert_eq!(config.ring_words, MAX_RING_WORDS);
}

#[test]
fn what_cannot_be_carried_out_is_refused_by_the_name_of_the_field() {
    let no_interval = HeapprofdConfig {
        sampling_interval_bytes: None,
        ..minimal()
    };
    refused(no_interval.clone(), "sampling_interval_bytes is not set");
    refused(
        HeapprofdConfig {
            all_heaps: Some(true),
            ..no_interval
        },
        "all_heaps samples nothing",
    );
    let with = |change: fn(&mut HeapprofdConfig)| {
        let mut config = minimal();
        change(&mut config);
        config
    };
    refused(with(|config| config.all = None), "no process is chosen");
    refused(with(|config| config.pid = vec![1 << 40]), "pid: 1099511627776");
    refused(with(|config| config.pid = vec![0]), "pid: 0");
    refused(with(|config| config.pid = vec![1; 10_001]), "pid has 10001");
    refused(
        with(|config| config.process_cmdline = vec!["/".into()]),
        "process_cmdline",
    );
    refused(
        with(|config| {
            config.no_startup = Some(true);
            config.no_running = Some(true);
        }),
        "no_startup and no_running",
    );
    refused(
        with(|config| config.heap_sampling_intervals = vec![1, 2]),
        "heap_sampling_intervals has 2 entries",
    );
    refused(
        with(|config| {
            config.heaps = vec!["a".into(), "b".into()];
            config.heap_sampling_intervals = vec![1, 0];
        }),
        "the one of b is 0",
    );
    refused(with(|config| config.heaps = vec!["a".repeat(64)]), "63 bytes");
    refused(
        with(|config| config.heaps = vec!["a".into(); 65]),
        "name 65 heaps",
    );
    refused(with(|config| config.shmem_size_bytes = Some(4096)), "4096");
    refused(with(|config| config.shmem_size_bytes = Some(12288)), "12288");
    refused(
        with(|config| {
            config.stream_allocations = Some(true);
            config.dump_at_max = Some(true);
        }),
        "dump_at_max",
    );
}
