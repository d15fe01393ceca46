//! `ferretto config`, and advice before a recording, with real services, producers and kernels; and our text parser beside upstream's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::filter_bytecode::{Rule, bytecode, escaped};
use crate::support::peers::{Producer, introduction};
use crate::support::tracefs::Tracefs;
use crate::support::wire::registration;
use crate::support::{Program, Programs, Side, System};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, Trace, TraceConfig};
use ferretto_proto::text::{self, TRACE_CONFIG};
use ferretto_proto::write::TracePacket;

const CLEAN: &str =
    "buffers { size_kb: 4096 }\nduration_ms: 100\ndata_sources { config { name: \"linux.system_info\" } }\n";

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `ferretto` with these arguments and this on stdin; returns its output.
fn ferretto(system: &System<'_>, words: &[&str], stdin: &[u8]) -> Output {
    let mut child = system
        .command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "ferretto.log")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that has read enough closes stdin.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

/// Runs `config check` on this text; returns stdout and the exit code.
fn checked(system: &System<'_>, config: &str) -> (String, i32) {
    let path = system.path("demo.cfg");
    std::fs::write(&path, config).unwrap();
    let output = ferretto(system, &["config", "check", path.to_str().unwrap()], b"");
    let folder = format!("{}/", path.parent().unwrap().display());
    (
        text_of(&output.stdout).replace(&folder, ""),
        output.status.code().unwrap(),
    )
}

#[test]
fn a_name_of_kernel_events_that_is_none_is_refused_where_it_stands() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let config = |name: &str| {
        format!(
            "buffers {{ size_kb: 4096 }}\nduration_ms: 10\ndata_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{\n  \
             ftrace_events: \"sched/sched_switch\"\n  ftrace_events: \"{name}\"\n}} }} }}\n"
        )
    };
    for (name, instead) in [
        (
            "sched/*,irq/*",
            "write ftrace_events: \"sched/*\" ftrace_events: \"irq/*\"",
        ),
        ("*/*", "ftrace_events: \"sched/*\" for all of a group"),
    ] {
        let (said, code) = checked(&system, &config(name));
        assert_eq!(code, 1, "{said}");
        for part in [
            "demo.cfg:5:18: error: `",
            "is no name of kernel events",
            instead,
            "^^^^",
            "would be refused",
        ] {
            assert!(said.contains(part), "{part:?} is not in\n{said}");
        }
        let trace = system.path("trace");
        for program in [env!("CARGO_BIN_EXE_ferretto"), env!("CARGO_BIN_EXE_perfetto")] {
            let mut command = system.command(Path::new(program), "unused.log");
            command
                .args(["--txt", "-c"])
                .arg(system.path("demo.cfg"))
                .arg("-o")
                .arg(&trace);
            let output = command.stderr(Stdio::piped()).output().unwrap();
            let said = text_of(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(
                said.contains("demo.cfg:5:18: error: `") && said.contains(instead),
                "{said}"
            );
            assert!(!trace.exists());
        }
    }
    let words = ["-t", "10ms", "-o", "trace", "sched/sched_switch", "*/*"];
    let output = ferretto(&system, &words, b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text_of(&output.stderr).contains("'sched/*'"),
        "{}",
        text_of(&output.stderr)
    );
}

#[test]
fn a_good_config_is_called_good_and_a_bad_one_is_shown_with_all_its_mistakes() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    assert_eq!(
        checked(&system, CLEAN),
        ("demo.cfg: can be recorded\n".to_owned(), 0)
    );
    assert_eq!(
        checked(&system, "buffers { size_kb: 4mb }\ndurations_ms: 5\n"),
        (
            "the trace config is not valid\n\
             demo.cfg:1:20: error: expected an integer (uint32) for `size_kb`, found `4mb`; write it in KB: `4096`\n  \
             buffers { size_kb: 4mb }\n                     ^^^\n\
             demo.cfg:2:1: error: TraceConfig has no field `durations_ms`; did you mean `duration_ms`?\n  \
             durations_ms: 5\n  ^^^^^^^^^^^^\n"
                .to_owned(),
            1
        )
    );
}

#[test]
fn warnings_point_into_the_text_and_change_no_exit_code() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let config = CLEAN.replace("linux.system_info", "linux.system_inf");
    assert_eq!(
        checked(&system, &config),
        (
            "demo.cfg:3:31: warning: nobody offers the data source \"linux.system_inf\" at the moment; did you mean \
             \"linux.system_info\"?\n  \
             data_sources { config { name: \"linux.system_inf\" } }\n                                ^^^^^^^^^^^^^^^^^^\n\
             demo.cfg: can be recorded, 1 warning\n"
                .to_owned(),
            0
        )
    );
}

#[test]
fn check_asks_the_running_service_for_its_offers() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = CLEAN.replace("linux.system_info", "com.example.mine");
    let (said, code) = checked(&system, &config);
    assert!(
        said.contains("nobody offers the data source \"com.example.mine\""),
        "{said}"
    );
    assert_eq!(code, 0);

    let mut producer = Producer::new(&system, &introduction("mine"), None);
    producer
        .client
        .call("RegisterDataSource", &registration("com.example.mine"));
    producer.sync();
    assert_eq!(
        checked(&system, &config),
        ("demo.cfg: can be recorded\n".to_owned(), 0)
    );
    let filtered = config.replace(" } }", " } producer_name_filter: \"yours\" }");
    let (said, _) = checked(&system, &filtered);
    assert!(said.contains("has such a name; there is \"mine\""), "{said}");
}

#[test]
fn without_a_service_it_says_what_it_compares_with() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let output = ferretto(&system, &["config", "check", "-"], CLEAN.as_bytes());
    assert_eq!(text_of(&output.stdout), "<stdin>: can be recorded\n");
    let notes = text_of(&output.stderr);
    assert!(
        notes.contains("note: the data sources are compared with those that `ferretto` itself"),
        "{notes}"
    );
    assert!(output.status.success());
}

#[test]
fn check_refuses_with_the_services_own_words() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    for refused in [
        "buffers { size_kb: 64 name: \"a\" } buffers { size_kb: 64 name: \"a\" } duration_ms: 10",
        "buffers { size_kb: 64 } trigger_config { trigger_mode: STOP_TRACING triggers { name: \"x\" } }",
        "buffers { size_kb: 64 } data_sources { config { name: \"linux.system_info\" target_buffer: 3 } } duration_ms: 10",
    ] {
        let (said, code) = checked(&system, refused);
        assert_eq!(code, 1, "{said}");
        let reason = said
            .lines()
            .find_map(|line| line.strip_prefix("demo.cfg: error: the service would refuse this config: "))
            .unwrap_or_else(|| panic!("{said}"));
        assert!(said.contains("demo.cfg: would be refused"), "{said}");
        let (recording, _) = record(&system, &["--txt", "-c", "demo.cfg", "-o", "refused.pftrace"]);
        assert!(
            recording.contains(&format!("Service error: {reason}")),
            "{recording}"
        );
    }
}

#[test]
fn a_config_that_would_record_nothing_gets_advice() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let base = "buffers { size_kb: 4096 }\nduration_ms: 1000\n";
    // The filter lets only system_info pass, which this config does not request.
    let filter = escaped(&bytecode(&[
        &[Rule::Nested(1, 1)],
        &[Rule::Keep(TracePacket::SYSTEM_INFO)],
    ]));
    for (more, warning, change) in [
        (
            "data_sources { config { name: \"track_event\" } }".to_owned(),
            "\"track_event\" tells names once",
            "add `incremental_state_config { clear_period_ms: 5000 }`",
        ),
        (
            "data_sources { config { name: \"linux.process_stats\" } }".to_owned(),
            "nothing will be recorded",
            "write `process_stats_config { scan_all_processes_on_start: true }`",
        ),
        (
            format!(
                "data_sources {{ config {{ name: \"linux.system_info\" }} }} trace_filter {{ bytecode_v2: \"{filter}\" }}"
            ),
            "trace_filter drops every packet of \"linux.system_info\"",
            "allow cpu_info (67) in TracePacket",
        ),
    ] {
        let (said, code) = checked(&system, &format!("{base}{more}"));
        assert!(said.contains(warning) && said.contains(change), "{said}");
        assert_eq!(code, 0, "{said}");
    }
    // With the line from the advice, there is no advice left about it.
    let (said, _) = checked(
        &system,
        &format!(
            "{base}data_sources {{ config {{ name: \"track_event\" }} }} incremental_state_config {{ clear_period_ms: 5000 }}"
        ),
    );
    assert!(!said.contains("tells names once"), "{said}");
    let (said, _) = checked(
        &system,
        &format!(
            "{base}data_sources {{ config {{ name: \"linux.process_stats\" process_stats_config {{ scan_all_processes_on_start: true }} }} }}"
        ),
    );
    assert_eq!(said, "demo.cfg: can be recorded\n");
}

#[test]
fn a_light_recording_into_a_file_is_not_warned_of_its_own_config() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    // Without probes: advice comes before a recording, and the machine's ftrace is left alone.
    system.start(Side::Ours, Program::Traced);
    let warnings = |words: &[&str]| -> Vec<String> {
        let (said, _) = record(&system, &[words, &["-t", "10ms"]].concat());
        let advice = said.lines().filter(|line| {
            ["warning: ", "hint: ", "ignored"]
                .iter()
                .any(|word| line.contains(word))
        });
        let own = advice.filter(|line| !line.contains("nobody offers the data source"));
        own.map(str::to_owned).collect()
    };
    assert_eq!(
        warnings(&["-s", "10mb", "-o", "small", "sched/sched_switch"]),
        Vec::<String>::new()
    );
    // The advice about a buffer that is too small for a busy program is another matter.
    let [warning] = &warnings(&["-b", "2mb", "-o", "ring", "raw_syscalls/*"])[..] else {
        panic!("not one warning")
    };
    assert!(warning.contains("one busy program makes about"), "{warning}");
    assert!(warning.contains("mb` or more"), "{warning}");
}

#[test]
fn check_refuses_configs_that_the_command_line_refuses() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let (said, code) = checked(
        &system,
        &format!("{CLEAN}cmd_trace_start_delay {{ min_delay_ms: 5 }}"),
    );
    assert!(
        said.starts_with("demo.cfg: error: the trace config sets only one of"),
        "{said}"
    );
    assert_eq!(code, 1);
}

/// Runs our `perfetto` in the folder; returns stderr and the exit code.
fn record(system: &System<'_>, words: &[&str]) -> (String, i32) {
    let output = system
        .command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log")
        .current_dir(system.path(""))
        .args(words)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    (text_of(&output.stderr), output.status.code().unwrap())
}

#[test]
fn recordings_warn_before_they_begin_and_succeed_all_the_same() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    std::fs::write(
        system.path("demo.cfg"),
        CLEAN.replace("linux.system_info", "linux.system_inf"),
    )
    .unwrap();
    let words = ["--txt", "-c", "demo.cfg", "-o", "trace"];
    let warning = "perfetto: demo.cfg:3:31: warning: nobody offers the data source \"linux.system_inf\"";
    let (said, code) = record(&system, &words);
    let before = said.find(warning).unwrap_or_else(|| panic!("{said}"));
    assert!(before < said.find("Wrote ").unwrap(), "{said}");
    assert_eq!(code, 0, "{said}");

    // The process in the background has no reader, so the one that ends prints the advice.
    let (said, code) = record(&system, &[&words[..], &["--background-wait"]].concat());
    assert!(said.contains(warning), "{said}");
    assert_eq!(code, 0, "{said}");

    std::fs::write(system.path("demo.cfg"), CLEAN).unwrap();
    let (said, _) = record(&system, &words);
    assert!(!said.contains("warning") && !said.contains("hint"), "{said}");
}

#[test]
fn events_that_the_kernel_lacks_are_reported_for_flags_as_well() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let Some(_tracefs) = Tracefs::lock() else { return };
    let (said, code) = record(&system, &["-t", "10ms", "-o", "trace", "sched/sched_swich"]);
    assert!(
        said.contains("perfetto: warning: this kernel has no event \"sched/sched_swich\"; did you mean \"sched/sched_switch\"?"),
        "{said}"
    );
    assert_eq!(code, 0, "{said}");
}

#[test]
fn upstreams_service_is_asked_as_well() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::with_daemons(&programs, Side::Upstream, Side::Upstream);
    assert_eq!(
        checked(&system, CLEAN),
        ("demo.cfg: can be recorded\n".to_owned(), 0)
    );
    std::fs::write(
        system.path("demo.cfg"),
        CLEAN.replace("linux.system_info", "linux.system_inf"),
    )
    .unwrap();
    let (said, code) = record(&system, &["--txt", "-c", "demo.cfg", "-o", "trace"]);
    assert!(
        said.contains("nobody offers the data source \"linux.system_inf\""),
        "{said}"
    );
    assert_eq!(code, 0, "{said}");
}

#[test]
fn configs_are_converted_there_and_back() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let source =
        "buffers {\n  size_kb: 4096\n  fill_policy: DISCARD\n}\nunique_session_name: \"café \\\"1\\\"\"\n";
    let encoded = ferretto(&system, &["config", "encode", "-"], source.as_bytes());
    assert!(encoded.status.success(), "{}", text_of(&encoded.stderr));
    assert_eq!(encoded.stdout, text::encode(source, TRACE_CONFIG).unwrap());
    let decoded = ferretto(&system, &["config", "decode", "-"], &encoded.stdout);
    assert_eq!(text_of(&decoded.stdout), source.replace('é', "\\303\\251"));

    // `config check` accepts both forms.
    let checked = ferretto(&system, &["config", "check", "-"], &encoded.stdout);
    assert!(
        text_of(&checked.stdout).contains("<stdin>: warning: there is no data source"),
        "{checked:?}"
    );
    assert!(checked.status.success());

    let out = system.path("out");
    let to_file = ferretto(
        &system,
        &["config", "encode", "-", "-o", out.to_str().unwrap()],
        source.as_bytes(),
    );
    assert!(to_file.status.success() && to_file.stdout.is_empty());
    assert_eq!(std::fs::read(out).unwrap(), encoded.stdout);

    for (words, stdin, said) in [
        (
            &["config", "encode", "-"][..],
            &encoded.stdout[..],
            "is encoded already",
        ),
        (&["config", "decode", "-"], source.as_bytes(), "is text already"),
        (
            &["config", "decode", "-"],
            &[0x0a, 0xff, 0x01],
            "is not an encoded TraceConfig",
        ),
        (
            &["config", "encode", "-"],
            b"bufers {}",
            "<stdin>:1:1: error: TraceConfig has no field",
        ),
        (
            &["config", "check", "/nonexistent"],
            b"",
            "cannot read the trace config /nonexistent",
        ),
    ] {
        let output = ferretto(&system, words, stdin);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stdout.is_empty());
        assert!(
            text_of(&output.stderr).contains(said),
            "{}",
            text_of(&output.stderr)
        );
    }
    for words in [&["config"][..], &["config", "bake"], &["config", "check"]] {
        assert_eq!(ferretto(&system, words, b"").status.code(), Some(2), "{words:?}");
    }
    let help = ferretto(&system, &["config", "check", "--help"], b"");
    assert!(help.status.success() && text_of(&help.stdout).contains("Exits with 0"));
}

/// Returns the config that a service wrote into a trace, without the command line's additions.
fn config_in(trace: &Path) -> Option<TraceConfig> {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let config = trace.packet.into_iter().find_map(|packet| match packet.data {
        Some(Data::TraceConfig(config)) => Some(*config),
        _ => None,
    });
    Some(TraceConfig {
        trace_uuid_msb: None,
        trace_uuid_lsb: None,
        statsd_metadata: Default::default(),
        statsd_logging: None,
        enable_extra_guardrails: None,
        ..config?
    })
}

#[test]
fn texts_that_upstreams_parser_accepts_mean_the_same_to_ours() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let record = |config: &str| -> Option<PathBuf> {
        let (path, trace) = (system.path("config"), system.path("trace"));
        std::fs::write(&path, config).unwrap();
        let status = system
            .command(&system.program(Side::Upstream, Program::Perfetto), "upstream.log")
            .args(["--txt", "-c"])
            .arg(path)
            .arg("-o")
            .arg(&trace)
            .status()
            .unwrap();
        status.success().then_some(trace)
    };
    let base = "buffers: { size_kb: 1024 } duration_ms: 1\n";
    for more in [
        "",
        "# comments\n#and more#\nunique_session_name: \"a\" # behind\n",
        "unique_session_name: \"a;b # no comment\"",
        "unique_session_name: \"x\"data_source_stop_timeout_ms: 7",
        "unique_session_name \"without a colon\" flush_timeout_ms 100",
        "unique_session_name: \"two\nlines\"",
        "unique_session_name: \"\\a\\b\\f\\n\\r\\t\\v\\\\\\'\\\"\\?\\101\\303\\251\"",
        "unique_session_name: \"表 é\"",
        "flush_timeout_ms: 0100; flush_period_ms: 08;",
        "flush_timeout_ms: 007\r\n\tflush_period_ms:\t5\x0b\x0c",
        "bugreport_score: -5",
        "trace_uuid_msb: -9223372036854775808 trace_uuid_lsb: 9223372036854775807",
        "deferred_start: false;builtin_data_sources: { snapshot_interval_ms: 1000 };",
        "builtin_data_sources: { primary_trace_clock: BUILTIN_CLOCK_MONOTONIC };",
        "builtin_data_sources { }",
        "data_sources { config { name: \"a\" } } data_sources { config { name: \"b\" target_buffer: 0 } }",
        "data_sources { config { name: \"linux.ftrace\" ftrace_config { ftrace_events: \"a/b\" ftrace_events: \"c/d\" \
         compact_sched { enabled: true } print_filter { rules { prefix: \"x\" allow: true } } } } }",
        "data_sources { config { name: \"t\" for_testing { dummy_fields { field_double: .25 field_float: 1 } } } }",
        // By number, as upstream's parser writes them: these bytes are compared as they are.
        "data_sources { config { name: \"t\" for_testing { message_count: 1 dummy_fields { field_fixed64: 6 field_sfixed64: 8 \
         field_fixed32: 5 field_sfixed32: 7 field_double: -1.5 field_float: 0.1 field_sint64: 4 field_sint32: 3 field_bytes: \
         \"\\377\\000\" } } } }",
        "compression_type: COMPRESSION_TYPE_UNSPECIFIED",
    ] {
        let source = format!("{base}{more}\n");
        let trace = record(&source).unwrap_or_else(|| panic!("{source}"));
        let ours = text::encode(&source, TRACE_CONFIG).unwrap_or_else(|errors| panic!("{errors}\n{source}"));
        let ours = TraceConfig {
            trace_uuid_msb: None,
            trace_uuid_lsb: None,
            enable_extra_guardrails: None,
            ..TraceConfig::decode_from_slice(&ours).unwrap()
        };
        assert_eq!(config_in(&trace), Some(ours), "{source}");
    }
    // Upstream's parser answered, which rejects these comments.
    assert_eq!(record(&format!("{base} // comment")), None);
}
