//! Advice on buffers: their writers, their capacity, and whether their content can be read.

use super::*;

#[test]
fn targets_that_are_no_buffer() {
    let into = |target: &str| {
        format!(
            "buffers {{ size_kb: 1024 name: 'first' }} buffers {{ size_kb: 1024 name: 'second' }} {DURATION}{CLEARED} data_sources {{ config {{ \
             name: 'track_event' {target} }} }} data_sources {{ config {{ name: 'linux.system_info' target_buffer: 0 }} }} \
             data_sources {{ config {{ name: 'linux.sys_stats' target_buffer: 1 sys_stats_config {{ stat_period_ms: 100 }} }} }}"
        )
    };
    for there in [
        "target_buffer: 1",
        "target_buffer_name: 'second'",
        "target_buffer: 1 target_buffer_name: 'second'",
    ] {
        nothing(&into(there));
    }
    let path = "data_sources[0].config.target_buffer";
    one(&into("target_buffer: 2"), path, &["no buffer 2", "0 to 1"]);
    one(
        &into("target_buffer: 1 target_buffer_name: 'first'"),
        path,
        &["is not the buffer with the name"],
    );
    let path = "data_sources[0].config.target_buffer_name";
    one(
        &into("target_buffer_name: 'secnd'"),
        path,
        &["did you mean \"second\"?"],
    );
    one(
        &into("target_buffer_name: 'other'"),
        path,
        &["no buffer has the name \"other\""],
    );
    let none = format!("{DURATION}data_sources {{ config {{ name: 'track_event' }} }}");
    one(&none, "data_sources[0].config", &["no buffer", "size_kb"]);
}

#[test]
fn a_buffer_that_nobody_writes_into() {
    let config = format!("{BUFFER}{BUFFER}{DURATION}{SOURCES}");
    one(
        &config,
        "buffers[1]",
        &["no data source writes", "target_buffer: 1"],
    );
}

#[test]
fn a_buffer_that_holds_not_even_two_chunks() {
    let of = |kb: u32| {
        format!(
            "buffers {{ size_kb: {kb} }} {DURATION}{CLEARED} data_sources {{ config {{ name: 'track_event' }} }}"
        )
    };
    nothing(&of(64));
    one(&of(63), "buffers[0].size_kb", &["63 KB", "64 or more"]);
}

#[test]
fn buffers_that_take_most_of_the_memory() {
    let of = |kb: u32| {
        format!(
            "buffers {{ size_kb: {kb} }} {DURATION}{CLEARED} data_sources {{ config {{ name: 'track_event' }} }}"
        )
    };
    nothing(&of(4 << 20 >> 1));
    let small = Surroundings {
        machine: RecordedMachine {
            memory_kb: 1 << 20,
            ..surroundings().machine
        },
        ..surroundings()
    };
    assert_eq!(said_in(&of(512 << 10), &small), []);
    let said = said_in(&of((512 << 10) + 1), &small);
    assert!(said[0].what.contains("this machine has 1024 MB"), "{said:?}");
}

/// Events that follow the switches between threads, as a data source, with their KB per second.
fn scheduling() -> (&'static str, u64) {
    let sources = "data_sources { config { name: 'linux.ftrace' ftrace_config { ftrace_events: 'sched/*' } } } \
                   data_sources { config { name: 'linux.process_stats' } }";
    let (config, _) = written(sources);
    let volume = rates::ftrace(&config.data_sources[0].config.ftrace_config, &busy().machine);
    assert!(volume.rate > 1_000_000 && !volume.when_busy, "{volume:?}");
    (sources, volume.rate / 1024)
}

/// A machine that switches often.
fn busy() -> Surroundings {
    Surroundings {
        machine: RecordedMachine {
            context_switches: 50_000,
            ..surroundings().machine
        },
        ..surroundings()
    }
}

#[track_caller]
fn nothing_when_busy(source: &str) {
    assert_eq!(said_in(source, &busy()), [], "{source}");
}

#[track_caller]
fn one_when_busy(source: &str, path: &str, words: &[&str]) {
    let said = said_in(source, &busy());
    let [advice] = said.as_slice() else {
        panic!("{source}\n{said:#?}")
    };
    let line = format!("{}; {}", advice.what, advice.change);
    assert_eq!(advice.path, path, "{line}");
    for words in words {
        assert!(line.contains(words), "{words:?} in {line}");
    }
}

#[test]
fn a_ring_that_holds_less_than_a_second() {
    let (sources, kb_s) = scheduling();
    let of = |kb: u64| format!("buffers {{ size_kb: {kb} }} {DURATION} {sources}");
    nothing_when_busy(&of(kb_s + 1));
    one_when_busy(
        &of(kb_s - 1),
        "buffers[0].size_kb",
        &["MB/s", "hold the last", "size_kb: 8192"],
    );
}

#[test]
fn a_buffer_that_overruns_between_two_writes_into_the_file() {
    let (sources, kb_s) = scheduling();
    let of = |kb: u64, period: &str| {
        format!("buffers {{ size_kb: {kb} }} {DURATION} write_into_file: true {period} {sources}")
    };
    // The period is 5 s by default, and at least 100 ms.
    nothing_when_busy(&of(5 * kb_s + 10, ""));
    one_when_busy(
        &of(5 * kb_s - 10, ""),
        "buffers[0].size_kb",
        &["every 5 s", "file_write_period_ms below"],
    );
    nothing_when_busy(&of(kb_s + 10, "file_write_period_ms: 1000"));
    one_when_busy(
        &of(kb_s - 10, "file_write_period_ms: 1000"),
        "buffers[0].size_kb",
        &["every 1 s"],
    );
}

#[test]
fn a_buffer_that_is_full_before_the_end() {
    let (sources, kb_s) = scheduling();
    let of = |kb: u64, end: &str| format!("buffers {{ size_kb: {kb} fill_policy: DISCARD }} {end} {sources}");
    nothing_when_busy(&of(10 * kb_s + 20, DURATION));
    one_when_busy(
        &of(10 * kb_s - 20, DURATION),
        "buffers[0].size_kb",
        &["full after", "RING_BUFFER"],
    );
    // With an unknown rate, only the length of the recording counts.
    let of = |ms: u32| {
        format!(
            "buffers {{ size_kb: 4096 fill_policy: DISCARD }} duration_ms: {ms} data_sources {{ config {{ name: 'track_event' }} }}"
        )
    };
    nothing_when_busy(&of(599_999));
    one_when_busy(&of(600_000), "buffers[0].fill_policy", &["RING_BUFFER"]);
    // The triggers end the recording.
    nothing(
        "buffers { size_kb: 4096 fill_policy: DISCARD } data_sources { config { name: 'track_event' } } trigger_config { trigger_mode: \
         STOP_TRACING trigger_timeout_ms: 1000 triggers { name: 'x' } }",
    );
}

#[test]
fn one_busy_program_fills_a_small_buffer_with_system_calls_on_an_idle_machine() {
    let of = |kb: u32, events: &str, more: &str| {
        format!(
            "buffers {{ size_kb: {kb} }} {DURATION} {more} data_sources {{ config {{ name: 'linux.ftrace' ftrace_config {{ {events} }} }} }} \
             data_sources {{ config {{ name: 'linux.process_stats' }} }}"
        )
    };
    let syscalls = "ftrace_events: 'raw_syscalls/*'";
    one(
        &of(2048, syscalls, ""),
        "buffers[0].size_kb",
        &[
            "one busy program makes about 10.0 MB/s",
            "2048 KB hold the last 209 ms only",
            "write `size_kb: 32768` or more",
        ],
    );
    nothing(&of(32768, syscalls, ""));
    one(
        &of(32768, syscalls, "write_into_file: true"),
        "buffers[0].size_kb",
        &[
            "fill up in 3.4 s",
            "every 5 s only",
            "missing in the file",
            "size_kb: 131072",
            "file_write_period_ms below 3355",
        ],
    );
    nothing(&of(
        32768,
        syscalls,
        "write_into_file: true file_write_period_ms: 1000",
    ));
    let without_tracefs = Surroundings {
        kernel: None,
        ..surroundings()
    };
    let said = said_in(&of(2048, "ftrace_events: 'kmem/*'", ""), &without_tracefs);
    assert!(said[0].what.contains("about 10.0 MB/s"), "{said:?}");
    // The rate of individual system calls is unknown.
    nothing(&of(
        2048,
        "ftrace_events: 'raw_syscalls/sys_enter' syscall_events: 'sys_read'",
        "",
    ));
    // Advice for flags is in terms of flags.
    let (config, _) = written(&of(2048, syscalls, ""));
    let said = advise(&config, &ConfigOrigin::Flags, &surroundings());
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].change, "write `-b 32mb` or more");
    let (config, _) = written(&of(2048, syscalls, "write_into_file: true"));
    let said = advise(&config, &ConfigOrigin::Flags, &surroundings());
    assert_eq!(said[0].change, "write `-b 128mb` or more");
}

#[test]
fn a_buffer_that_discards_gains_nothing_where_a_file_is_written() {
    let of = |buffer: &str| {
        format!("buffers {{ size_kb: 32768 {buffer} }} {DURATION} write_into_file: true {SOURCES}")
    };
    nothing(&of("fill_policy: RING_BUFFER"));
    one(
        &of("fill_policy: DISCARD"),
        "buffers[0].fill_policy",
        &["takes nothing more after that", "leave fill_policy out"],
    );
    one(
        &of("fill_policy: DISCARD experimental_mode: TRACE_BUFFER_V2"),
        "buffers[0].fill_policy",
        &[
            "takes 32768 KB in all",
            "leave fill_policy out, or experimental_mode",
        ],
    );
}

#[test]
fn no_buffer_is_advised_that_no_machine_has_room_for() {
    let of = |ms: u32| {
        said(&format!(
            "buffers {{ size_kb: 4096 fill_policy: DISCARD }} duration_ms: {ms} data_sources {{ config {{ name: 'linux.ftrace' \
             ftrace_config {{ ftrace_events: 'raw_syscalls/*' }} }} }} data_sources {{ config {{ name: 'linux.process_stats' }} }}"
        ))
    };
    let changes = |ms| of(ms).into_iter().map(|advice| advice.change).collect::<Vec<_>>();
    let short = changes(10_000);
    assert!(
        short.len() == 1 && short[0].contains("`size_kb: 262144`, use RING_BUFFER"),
        "{short:?}"
    );
    let long = changes(36_000_000);
    assert!(
        long.len() == 1 && long[0].starts_with("use RING_BUFFER"),
        "{long:?}"
    );
}

#[test]
fn advice_to_stream_is_not_to_stream_out_of_a_buffer_that_discards() {
    let said = said(&format!(
        "buffers {{ size_kb: 4096 fill_policy: DISCARD }} duration_ms: 600000 {CLEARED} data_sources {{ config {{ name: 'track_event' }} }}"
    ));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0]
            .change
            .contains("`write_into_file: true` with RING_BUFFER"),
        "{said:?}"
    );
}

#[test]
fn a_ring_of_track_events_needs_names_again_and_again() {
    let of = |buffer: &str, more: &str, name: &str| {
        format!(
            "buffers {{ size_kb: 32768 {buffer} }} {DURATION} {more} data_sources {{ config {{ name: '{name}' target_buffer_name: 'x' }} }}"
        )
    };
    let ring = "name: 'x'";
    one(
        &of(ring, "", "track_event"),
        "incremental_state_config.clear_period_ms",
        &[
            "cannot be read",
            "add `incremental_state_config { clear_period_ms: 5000 }`",
        ],
    );
    assert_eq!(said(&of(ring, "", "track_event"))[0].weight, Weight::Warning);
    one(
        &of(
            ring,
            "incremental_state_config { clear_period_ms: 0 }",
            "track_event",
        ),
        "incremental_state_config.clear_period_ms",
        &["ring buffer"],
    );
    nothing(&of(ring, CLEARED, "track_event"));
    nothing(&of("name: 'x' fill_policy: DISCARD", "", "track_event"));
    // The file has the beginning.
    nothing(&of(ring, "write_into_file: true", "track_event"));
    nothing(&of(ring, "", "linux.system_info"));
}

#[test]
fn busier_machines_have_higher_rates_and_idle_ones_a_least_one() {
    let (config, _) = written(SOURCES);
    let config = &config.data_sources[0].config.ftrace_config;
    let of = |context_switches| {
        let machine = RecordedMachine {
            context_switches,
            ..surroundings().machine
        };
        rates::ftrace(config, &machine)
    };
    assert_eq!(of(20_000).rate, 2 * of(10_000).rate);
    assert_eq!(of(0), of(2000));
    assert!(of(2001).rate > of(2000).rate);
}
