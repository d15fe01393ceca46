//! Every piece of advice, at the limit where it is not given yet and beyond it.

mod buffers;

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_proto::text::{self, TRACE_CONFIG, UnknownNames};

use super::*;
use crate::config::surroundings::{Category, Kernel, OfferedSource, Offers, Producer, RecordedMachine};

/// Two data sources about which there is no advice.
const SOURCES: &str = r#"
data_sources { config { name: "linux.ftrace" ftrace_config { ftrace_events: "sched/sched_switch" } } }
data_sources { config { name: "linux.process_stats" } }
"#;
const BUFFER: &str = "buffers { size_kb: 32768 }\n";
const DURATION: &str = "duration_ms: 10000\n";
/// Track events in a ring buffer need this.
const CLEARED: &str = "incremental_state_config { clear_period_ms: 5000 }\n";

/// Our probes, two programs, a small kernel and a machine that switches 10,000 times a second.
fn surroundings() -> Surroundings {
    let mut offers = Offers::of_own_probes();
    for (id, name, categories) in [(2, "player", "rendering,audio"), (3, "server", "net")] {
        offers.producers.push(Producer {
            id,
            name: name.to_owned(),
            machine: String::new(),
        });
        offers.sources.push(OfferedSource {
            name: "track_event".to_owned(),
            producer: id,
            clears_incremental_state: true,
            categories: vec![Category {
                name: categories.to_owned(),
                tags: vec!["verbose".to_owned()],
            }],
        });
    }
    let events = [
        (
            "sched",
            &["sched_switch", "sched_waking", "sched_process_exit"][..],
        ),
        ("raw_syscalls", &["sys_enter", "sys_exit"]),
        ("power", &["cpu_idle", "cpu_frequency"]),
        ("ftrace", &["print"]),
    ];
    Surroundings {
        service: Some(offers),
        kernel: Some(Kernel {
            events: events
                .map(|(group, names)| (group.to_owned(), names.iter().map(ToString::to_string).collect()))
                .into(),
            atrace_categories: BTreeMap::from([("sched".to_owned(), 3), ("gfx".to_owned(), 0)]),
            tracers: BTreeSet::from(["nop".to_owned(), "function_graph".to_owned()]),
            instances: BTreeMap::from([("there".to_owned(), true), ("not_there".to_owned(), false)]),
        }),
        machine: RecordedMachine {
            name: "Linux".to_owned(),
            cpus: 2,
            memory_kb: 8 << 20,
            context_switches: 10_000,
        },
    }
}

fn written(source: &str) -> (TraceConfig, ConfigOrigin) {
    let (bytes, positions) = text::encode_with_positions(source, TRACE_CONFIG, UnknownNames::Refuse)
        .unwrap_or_else(|errors| panic!("{errors}"));
    let name = "demo.cfg".to_owned();
    (
        TraceConfig::decode_from_slice(&bytes).unwrap(),
        ConfigOrigin::Text { name, positions },
    )
}

fn said_in(source: &str, surroundings: &Surroundings) -> Vec<Advice> {
    let (config, origin) = written(source);
    advise(&config, &origin, surroundings)
}

fn said(source: &str) -> Vec<Advice> {
    said_in(source, &surroundings())
}

#[track_caller]
fn nothing(source: &str) {
    assert_eq!(said(source), [], "{source}");
}

/// Asserts that there is one piece of advice, about this field, with these words in it.
#[track_caller]
fn one(source: &str, path: &str, words: &[&str]) {
    let said = said(source);
    let [advice] = said.as_slice() else {
        panic!("{source}\n{said:#?}")
    };
    assert_eq!(advice.path, path, "{source}\n{advice:#?}");
    let line = format!("{}; {}", advice.what, advice.change);
    for words in words {
        assert!(line.contains(words), "{words:?} in {line}");
    }
}

/// A config whose only data source has this content.
fn source(config: &str) -> String {
    let tells_once = ["'track_event'", "'org.chromium.trace_event'"];
    let cleared = match tells_once.iter().any(|name| config.contains(name)) {
        true => CLEARED,
        false => "",
    };
    format!("{BUFFER}{DURATION}{cleared}data_sources {{ config {{ {config} }} }}")
}

fn ftrace(config: &str) -> String {
    format!(
        "{BUFFER}{DURATION}data_sources {{ config {{ name: 'linux.ftrace' ftrace_config {{ {config} }} }} }} data_sources {{ \
         config {{ name: 'linux.process_stats' }} }}"
    )
}

#[test]
fn an_ordinary_config_gets_no_advice() {
    nothing(&format!("{BUFFER}{DURATION}{SOURCES}"));
    nothing(&format!(
        "{BUFFER}write_into_file: true max_file_size_bytes: 100000000{SOURCES}"
    ));
    // Such a config only activates other sessions' triggers.
    nothing("activate_triggers: 'crash'");
}

#[test]
fn a_config_without_data_sources() {
    one(&format!("{BUFFER}{DURATION}"), "", &["no data source"]);
}

#[test]
fn a_data_source_without_a_name() {
    one(
        &source("ftrace_config { ftrace_events: 'power/cpu_idle' }"),
        "data_sources[0].config",
        &["no name", "name: \"linux.ftrace\""],
    );
    one(
        &source("target_buffer: 0"),
        "data_sources[0].config",
        &["no name"],
    );
}

#[test]
fn data_sources_that_nobody_offers_with_the_reason() {
    let path = "data_sources[0].config.name";
    for (name, words) in [
        ("linux.ftrcae", "did you mean \"linux.ftrace\"?"),
        ("linux.proces_stats", "did you mean \"linux.process_stats\"?"),
        ("linux.perf", "start `traced_perf`"),
        ("android.log", "Android only"),
        ("android.of_the_future", "Android only"),
        ("org.chromium.trace_event", "start Chrome"),
        ("gpu.counters", "graphics"),
        ("windows.etw", "Windows only"),
        ("com.example.mine", "ferretto list sources"),
    ] {
        one(
            &source(&format!("name: '{name}'")),
            path,
            &["nobody offers", name, words],
        );
    }
    nothing(&source("name: 'track_event'"));
    // Without an answer of the service, the offers are unknown.
    let unknown = Surroundings {
        service: None,
        ..surroundings()
    };
    assert_eq!(said_in(&source("name: 'com.example.mine'"), &unknown), []);
    // Without the programs, their sources are missing; without any producer, those of the probes are missing as well.
    let nobody = Surroundings {
        service: Some(Offers::default()),
        ..surroundings()
    };
    for (name, words) in [
        ("track_event", "instrumented"),
        ("linux.sys_stats", "start `traced_probes`"),
    ] {
        let config = format!("name: '{name}' sys_stats_config {{ meminfo_period_ms: 1000 }}");
        let said = said_in(&source(&config), &nobody);
        assert!(
            said.iter().any(|advice| advice.change.contains(words)),
            "{said:?}"
        );
    }
}

#[test]
fn filters_that_let_no_producer_pass() {
    let with = |filter: &str| {
        format!("{BUFFER}{DURATION}{CLEARED}data_sources {{ config {{ name: 'track_event' }} {filter} }}")
    };
    for passing in [
        "producer_name_filter: 'player'",
        "producer_name_filter: 'nobody' producer_name_filter: 'server'",
        "producer_name_regex_filter: 'pl.*'",
        "machine_name_filter: 'host'",
        "machine_name_filter: 'Linux'",
        // The service refuses an invalid expression, so there is no advice about it.
        "producer_name_regex_filter: '('",
    ] {
        nothing(&with(passing));
    }
    let path = "data_sources[0].producer_name_filter[0]";
    one(
        &with("producer_name_filter: 'plaier'"),
        path,
        &["did you mean \"player\"?"],
    );
    one(
        &with("producer_name_filter: 'x'"),
        path,
        &["\"player\", \"server\"", "later"],
    );
    // The expression has to match the whole name.
    one(
        &with("producer_name_regex_filter: 'pla'"),
        "data_sources[0].producer_name_regex_filter[0]",
        &["none has such a name"],
    );
    one(
        &with("machine_name_filter: 'guest'"),
        "data_sources[0].machine_name_filter[0]",
        &["no machine is called \"guest\"", "\"host\" or \"Linux\""],
    );
}

#[test]
fn a_config_for_another_data_source() {
    one(
        &source(
            "name: 'linux.process_stats' process_stats_config { scan_all_processes_on_start: true } sys_stats_config { stat_period_ms: 100 }",
        ),
        "data_sources[0].config.sys_stats_config",
        &[
            "linux.process_stats does not read sys_stats_config",
            "linux.sys_stats",
        ],
    );
    // The configs that foreign data sources read are unknown.
    let said = said(&source(
        "name: 'com.example.mine' sys_stats_config { stat_period_ms: 100 }",
    ));
    assert!(
        said.iter().all(|advice| !advice.what.contains("read")),
        "{said:?}"
    );
}

#[test]
fn the_same_data_source_twice() {
    let twice = |first: &str, second: &str| {
        format!(
            "{BUFFER}buffers {{ size_kb: 1024 }}{DURATION}{CLEARED}data_sources {{ config {{ name: 'track_event' {first} }} }} data_sources {{ \
             config {{ name: 'track_event' target_buffer: 1 {second} }} }}"
        )
    };
    one(
        &twice("", ""),
        "data_sources[1].config.name",
        &["data_sources[0] is the same", "twice"],
    );
    nothing(&twice("", "track_event_config { disabled_categories: 'net' }"));
}

#[test]
fn kernel_events_without_process_stats_are_worth_a_hint() {
    let config = source("name: 'linux.ftrace' ftrace_config { ftrace_events: 'power/cpu_idle' }");
    one(&config, "data_sources[0].config.name", &["linux.process_stats"]);
    assert_eq!(said(&config)[0].weight, Weight::Hint);
}

#[test]
fn kernel_events_that_there_are_not() {
    for known in ["sched/sched_switch", "sched/*", "sched_switch", "ftrace/print"] {
        nothing(&ftrace(&format!("ftrace_events: '{known}'")));
    }
    let path = "data_sources[0].config.ftrace_config.ftrace_events[1]";
    for (event, words) in [
        ("sched:sched_switch", "did you mean \"sched/sched_switch\"?"),
        ("sched/sched_swich", "did you mean \"sched/sched_switch\"?"),
        ("schde/sched_switch", "did you mean \"sched/sched_switch\"?"),
        ("power/sched_switch", "did you mean \"sched/sched_switch\"?"),
        ("shced/*", "did you mean \"sched/*\"?"),
        ("sched_swtich", "did you mean \"sched/sched_switch\"?"),
        ("i915/i915_request", "ferretto list events"),
    ] {
        let config = ftrace(&format!("ftrace_events: ['power/cpu_idle', '{event}']"));
        one(&config, path, &[&format!("no event \"{event}\""), words]);
    }
    // Events without a similar name are reported together, at the first of them.
    one(
        &ftrace("ftrace_events: ['power/cpu_idle', 'a/a', 'b/b', 'power/gone', 'c/c', 'd/d', 'e/e', 'f/f']"),
        path,
        &["no events \"a/a\", \"b/b\", \"power/gone\", \"c/c\", \"d/d\" and 2 more"],
    );
    // Without tracefs the events are unknown.
    let unknown = Surroundings {
        kernel: None,
        ..surroundings()
    };
    assert_eq!(said_in(&ftrace("ftrace_events: 'a/b'"), &unknown), []);
}

#[test]
fn ftrace_that_records_nothing() {
    one(
        &ftrace(""),
        "data_sources[0].config.ftrace_config",
        &["no events"],
    );
    nothing(&ftrace("kprobe_events { probe: 'f' type: KPROBE_TYPE_KPROBE }"));
}

#[test]
fn fields_that_only_android_supports() {
    let path = "data_sources[0].config.ftrace_config.";
    nothing(&ftrace("atrace_categories: 'sched'"));
    one(
        &ftrace("atrace_categories: 'gfx'"),
        &format!("{path}atrace_categories[0]"),
        &["no events of the atrace category \"gfx\""],
    );
    one(
        &ftrace("atrace_apps: '*'"),
        &format!("{path}atrace_apps[0]"),
        &["Android", "track_event"],
    );
    one(
        &ftrace("ftrace_events: 'power/cpu_idle' throttle_rss_stat: true"),
        &format!("{path}throttle_rss_stat"),
        &["Android"],
    );
}

#[test]
fn system_calls_that_there_are_not() {
    nothing(&ftrace("syscall_events: 'sys_openat'"));
    one(
        &ftrace("syscall_events: ['sys_read', 'sys_raed']"),
        "data_sources[0].config.ftrace_config.syscall_events[1]",
        &["no system call \"sys_raed\""],
    );
}

#[test]
fn categories_that_no_program_has() {
    let of = |config: &str| source(&format!("name: 'track_event' track_event_config {{ {config} }}"));
    for there in [
        "enabled_categories: ['net', 'audio', 'rend*', '*']",
        "disabled_categories: 'x' enabled_categories: 'net'",
        "disabled_categories: '*' enabled_categories: 'net'",
        "enabled_tags: ['verbose', 'slow']",
        "disabled_categories: 'whatever'",
    ] {
        nothing(&of(there));
    }
    let path = "data_sources[0].config.track_event_config.";
    one(
        &of("disabled_categories: '*' enabled_categories: ['net', 'rendring']"),
        &format!("{path}enabled_categories[1]"),
        &["no program that is connected", "did you mean \"rendering\"?"],
    );
    one(
        &of("disabled_categories: '*' enabled_categories: 'gpu*'"),
        &format!("{path}enabled_categories[0]"),
        &["later"],
    );
    one(
        &of("enabled_tags: 'loud'"),
        &format!("{path}enabled_tags[0]"),
        &["tag \"loud\""],
    );
    one(
        &of("disabled_categories: '*'"),
        &format!("{path}disabled_categories[0]"),
        &["none is enabled"],
    );
}

#[test]
fn categories_that_are_enabled_while_no_others_are_disabled() {
    let of = |config: &str| source(&format!("name: 'track_event' track_event_config {{ {config} }}"));
    one(
        &of("enabled_categories: 'net'"),
        "data_sources[0].config.track_event_config.enabled_categories[0]",
        &["disables no other", "add `disabled_categories: \"*\"`"],
    );
}

#[test]
fn kernel_features_without_which_ftrace_does_not_start() {
    let path = "data_sources[0].config.ftrace_config.";
    let event = "ftrace_events: 'sched/sched_switch'";
    nothing(&ftrace(&format!(
        "{event} instance_name: 'there' enable_function_graph: true"
    )));
    one(
        &ftrace(&format!("{event} instance_name: 'not_there'")),
        &format!("{path}instance_name"),
        &[
            "no tracefs instance \"not_there\"",
            "mkdir /sys/kernel/tracing/instances/not_there",
        ],
    );
    let mut without = surroundings();
    let kernel = without.kernel.as_mut().unwrap();
    kernel.tracers = BTreeSet::from(["nop".to_owned()]);
    let graph = ftrace("enable_function_graph: true");
    let said = said_in(&graph, &without);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].what.contains("CONFIG_FUNCTION_GRAPH_TRACER"), "{said:?}");
    // The kernel's list of tracers could not be read.
    without.kernel.as_mut().unwrap().tracers.clear();
    assert_eq!(said_in(&graph, &without), []);
}

#[test]
fn processes_that_nobody_looks_for() {
    let of = |config: &str| source(&format!("name: 'linux.process_stats' {config}"));
    one(
        &of(""),
        "data_sources[0].config.process_stats_config",
        &["nothing will be recorded", "scan_all_processes_on_start: true"],
    );
    nothing(&of("process_stats_config { scan_all_processes_on_start: true }"));
    nothing(&of("process_stats_config { proc_stats_poll_ms: 1000 }"));
    // Kernel events name threads, so these are looked at.
    nothing(&format!("{BUFFER}{DURATION}{SOURCES}"));
}

#[test]
fn counters_that_are_not_sampled() {
    let of = |config: &str| {
        source(&format!(
            "name: 'linux.sys_stats' sys_stats_config {{ {config} }}"
        ))
    };
    nothing(&of("meminfo_period_ms: 1000 meminfo_counters: MEMINFO_MEM_FREE"));
    let path = "data_sources[0].config.sys_stats_config";
    one(&of(""), path, &["no period"]);
    one(
        &of("stat_period_ms: 100 meminfo_counters: MEMINFO_MEM_FREE"),
        &format!("{path}.meminfo_counters[0]"),
        &["meminfo_period_ms: 1000"],
    );
}

#[test]
fn periods_that_do_not_fit_each_other() {
    let of = |ms: u32| {
        source(&format!(
            "name: 'linux.sys_stats' sys_stats_config {{ meminfo_period_ms: 200 stat_period_ms: {ms} }}"
        ))
    };
    nothing(&of(400));
    one(
        &of(500),
        "data_sources[0].config.sys_stats_config.stat_period_ms",
        &["500 ms", "meminfo_period_ms: 200", "a multiple of 200"],
    );
}

#[test]
fn periods_that_are_too_short() {
    let of = |ms: u32| {
        source(&format!(
            "name: 'linux.sys_stats' sys_stats_config {{ psi_period_ms: {ms} }}"
        ))
    };
    nothing(&of(10));
    one(
        &of(9),
        "data_sources[0].config.sys_stats_config.psi_period_ms",
        &["9 ms", "10"],
    );
    let of = |ms: u32| {
        source(&format!(
            "name: 'linux.process_stats' process_stats_config {{ scan_all_processes_on_start: true proc_stats_poll_ms: {ms} }}"
        ))
    };
    nothing(&of(100));
    nothing(&of(0));
    one(
        &of(99),
        "data_sources[0].config.process_stats_config.proc_stats_poll_ms",
        &["100"],
    );
    let of =
        |ms: u32| format!("{BUFFER}{DURATION}{SOURCES} write_into_file: true file_write_period_ms: {ms}");
    nothing(&of(100));
    one(&of(99), "file_write_period_ms", &["99 ms", "100"]);
}

#[test]
fn numbers_that_were_meant_in_another_unit() {
    let of = |ms: u32| format!("{BUFFER}duration_ms: {ms}{SOURCES}");
    one(
        &of(10),
        "duration_ms",
        &["10 milliseconds", "`duration_ms: 10000`"],
    );
    one(&of(60), "duration_ms", &["60 milliseconds"]);
    nothing(&of(61));
    let of =
        |bytes: u32| format!("{BUFFER}{DURATION}{SOURCES}write_into_file: true max_file_size_bytes: {bytes}");
    one(
        &of(100),
        "max_file_size_bytes",
        &["100 bytes", "`max_file_size_bytes: 100000000`"],
    );
    nothing(&of(64 << 10));
}

#[test]
fn recordings_that_do_not_end_by_themselves() {
    let hint = |source: &str, path: &str, words: &[&str]| {
        one(source, path, words);
        assert_eq!(said(source)[0].weight, Weight::Hint);
    };
    hint(&format!("{BUFFER}{SOURCES}"), "duration_ms", &["Ctrl-C"]);
    hint(
        &format!("{BUFFER}{SOURCES}write_into_file: true"),
        "write_into_file",
        &["disk is full"],
    );
    for meant in [
        "unique_session_name: 'recorder'",
        "bugreport_score: 1",
        "trigger_config { trigger_mode: STOP_TRACING trigger_timeout_ms: 1 triggers { name: 'x' } }",
    ] {
        nothing(&format!("{BUFFER}{SOURCES}{meant}"));
    }
    // A user who types `-t 0` wants no end.
    let (config, _) = written(&format!("{BUFFER}{SOURCES}"));
    assert_eq!(advise(&config, &ConfigOrigin::Flags, &surroundings()), []);
}

#[test]
fn fields_of_a_file_that_is_not_written() {
    for (field, given) in [
        ("max_file_size_bytes", "1000000"),
        ("file_write_period_ms", "1000"),
        ("write_flush_mode", "WRITE_FLUSH_ENABLED"),
        ("fflush_post_write", "FFLUSH_ENABLED"),
        ("output_path", "'/tmp/x'"),
    ] {
        let config = format!("{BUFFER}{DURATION}{SOURCES}{field}: {given}");
        one(&config, field, &[field, "write_into_file"]);
        nothing(&format!("{config} write_into_file: true"));
    }
}

#[test]
fn flushes_that_the_service_decides_about() {
    let config = format!("{BUFFER}{DURATION}{SOURCES}flush_period_ms: 1000");
    nothing(&config);
    one(
        &format!("{config} write_into_file: true"),
        "flush_period_ms",
        &["ignores"],
    );
    nothing(&format!(
        "{config} write_into_file: true write_flush_mode: WRITE_FLUSH_DISABLED"
    ));
    let forced = |ms: u32| {
        format!(
            "{BUFFER}{DURATION}{SOURCES}write_into_file: true fflush_post_write: FFLUSH_ENABLED file_write_period_ms: {ms}"
        )
    };
    nothing(&forced(1000));
    one(&forced(999), "fflush_post_write", &["every 999 ms"]);
}

#[test]
fn paths_for_inodes_without_kernel_events() {
    one(
        &source("name: 'linux.inode_file_map'"),
        "data_sources[0].config.name",
        &["inodes that \"linux.ftrace\" sees", "ext4/*"],
    );
    nothing(&format!(
        "{BUFFER}{DURATION}{SOURCES}data_sources {{ config {{ name: 'linux.inode_file_map' inode_file_config {{ }} }} }}"
    ));
}

#[test]
fn incremental_state_that_no_source_has() {
    let of = |name: &str| {
        format!(
            "{BUFFER}{DURATION}incremental_state_config {{ clear_period_ms: 1000 }} data_sources {{ config {{ name: '{name}' }} }}"
        )
    };
    nothing(&of("track_event"));
    one(
        &of("linux.system_info"),
        "incremental_state_config.clear_period_ms",
        &["none of the data sources"],
    );
}

#[test]
fn filters_of_the_journal_that_let_less_through_than_one_thinks() {
    let of = |filters: &str| {
        format!(
            "{BUFFER}{DURATION}data_sources {{ config {{ name: 'linux.systemd_journald' journald_config {{ {filters} }} }} }}"
        )
    };
    let field = |name: &str| format!("data_sources[0].config.journald_config{name}");
    nothing(&of(
        "min_prio: 7 filter_identifiers: 'sshd' filter_units: 'ssh.service'",
    ));
    one(
        &of("min_prio: 0"),
        &field(".min_prio"),
        &["only emergencies", "leave it out"],
    );
    one(&of("min_prio: 8"), &field(".min_prio"), &["no priority 8"]);
    one(
        &of("filter_units: 'ssh.service' filter_units: 'nginx'"),
        &field(".filter_units[1]"),
        &["no unit has the name \"nginx\"", "\"nginx.service\""],
    );
    let names = |count| "filter_identifiers: 'x' ".repeat(count);
    nothing(&of(&names(1000)));
    one(&of(&names(1001)), &field(""), &["1001 names", "at most 1000"]);
}

#[test]
fn triggers_that_do_nothing() {
    let of = |triggers: &str| format!("{BUFFER}{SOURCES}trigger_config {{ {triggers} }}");
    let timeout = "trigger_timeout_ms: 1000";
    nothing(&of(&format!(
        "trigger_mode: STOP_TRACING {timeout} triggers {{ name: 'x' }}"
    )));
    nothing(&of(&format!(
        "use_clone_snapshot_if_available: true {timeout} triggers {{ name: 'x' }}"
    )));
    nothing(&of(&format!(
        "trigger_mode: START_TRACING {timeout} triggers {{ name: 'x' stop_delay_ms: 1 }}"
    )));
    one(
        &of(&format!("{timeout} triggers {{ name: 'x' }}")),
        "trigger_config",
        &["trigger_mode"],
    );
    one(
        &of(&format!("trigger_mode: STOP_TRACING {timeout}")),
        "trigger_config",
        &["no trigger"],
    );
    one(
        &of("trigger_mode: STOP_TRACING triggers { name: 'x' }"),
        "trigger_config.trigger_timeout_ms",
        &["trigger_timeout_ms"],
    );
    one(
        &of(&format!(
            "trigger_mode: START_TRACING {timeout} triggers {{ name: 'x' }}"
        )),
        "trigger_config.triggers[0].stop_delay_ms",
        &["ends it at once"],
    );
}

#[test]
fn fields_for_androids_services() {
    for given in [
        "android_report_config { skip_report: true }",
        "incident_report_config { privacy_level: 1 }",
        "statsd_metadata { triggering_alert_id: 1 }",
        "statsd_logging: STATSD_LOGGING_ENABLED",
        "notify_traceur: true",
        "allow_user_build_tracing: true",
    ] {
        let field = given.split([' ', ':']).next().unwrap();
        one(
            &format!("{BUFFER}{DURATION}{SOURCES}{given}"),
            field,
            &["Android"],
        );
    }
    nothing(&format!("{BUFFER}{DURATION}{SOURCES}notify_traceur: false"));
}

#[test]
fn a_deferred_start() {
    one(
        &format!("{BUFFER}{DURATION}{SOURCES}deferred_start: true"),
        "deferred_start",
        &["never"],
    );
}

#[test]
fn advice_points_into_the_text_and_is_one_line() {
    let source = "duration_ms: 500\nbuffers { size_kb: 4096 }\ndata_sources {\n  config { name: \"linux.sys_stat\" target_buffer: 1 }\n}\n";
    let (config, origin) = written(source);
    let lines: Vec<String> = advise(&config, &origin, &surroundings())
        .iter()
        .map(|advice| advice.line(&origin).to_string())
        .collect();
    assert_eq!(
        lines,
        [
            "demo.cfg:2:1: warning: no data source writes into this buffer; leave it out, or write `target_buffer: 0` into the config \
             of a data source",
            "demo.cfg:4:18: warning: nobody offers the data source \"linux.sys_stat\" at the moment; did you mean \
             \"linux.sys_stats\"?",
            "demo.cfg:4:50: warning: there is no buffer 1: they are counted from 0, and the last is 0; write 0, or add a \
             buffer",
        ]
    );
    // For an encoded config the line names the field; for flags it names nothing.
    let encoded = ConfigOrigin::Encoded {
        name: "demo.pb".to_owned(),
    };
    let advice = &advise(&config, &encoded, &surroundings())[0];
    let line = advice.line(&encoded).to_string();
    assert!(
        line.starts_with("demo.pb: data_sources[0].config.name: warning: nobody"),
        "{line}"
    );
    let line = advice.line(&ConfigOrigin::Flags).to_string();
    assert!(line.starts_with("warning: nobody"), "{line}");
    // A missing field is shown where it would be.
    let said = said(
        "# one\nbuffers { size_kb: 64 }\n\ndata_sources { config { name: 'linux.sys_stats' } } duration_ms: 500",
    );
    let place = said[0].place.as_ref().unwrap();
    assert_eq!(
        (place.line, &*said[0].path),
        (4, "data_sources[0].config.sys_stats_config")
    );
}

#[test]
fn the_amount_of_advice_is_bounded() {
    let events: String = (0..1000)
        .map(|number| format!("ftrace_events: 'schde{number}/sched_switch' "))
        .collect();
    let sources =
        format!("{BUFFER} data_sources {{ config {{ name: 'linux.ftrace' ftrace_config {{ {events} }} }} }}");
    let said = said(&sources);
    assert_eq!(said.len(), MOST);
    assert!(said.iter().all(|advice| advice.weight == Weight::Warning));
}

#[test]
fn times_are_said_as_people_say_them() {
    for (ms, words) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1500, "1.5 s"),
        (119_000, "119 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
    ] {
        assert_eq!(time(ms), words);
    }
}
