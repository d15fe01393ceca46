//! Command lines and the plans for them.

use std::ffi::OsString;

use super::*;
use crate::perfetto::{Program, args};

fn try_plan(line: &str) -> Result<Plan, PlanError> {
    let words = line.split_whitespace().map(OsString::from);
    let arguments = args::parse(Program::Perfetto, words).unwrap_or_else(|error| panic!("{line}: {error}"));
    plan(Program::Perfetto, arguments)
}

fn refused(line: &str) -> String {
    try_plan(line)
        .err()
        .unwrap_or_else(|| panic!("{line} was accepted"))
        .to_string()
}

fn recording(line: &str) -> Recording {
    match try_plan(line) {
        Ok(Plan::Record(recording)) => *recording,
        other => panic!("{line}: {other:?}"),
    }
}

/// Writes a text config into a file; returns the flags that name it.
fn with_config(dir: &tempfile::TempDir, text: &str) -> String {
    let path = dir.path().join("config");
    std::fs::write(&path, text).unwrap();
    format!("--txt -c {}", path.display())
}

#[test]
fn command_lines_that_upstream_refuses_are_refused() {
    let cases = [
        ("--long", "--query"),
        ("--query -d", "--background"),
        ("--query-raw -D", "--background"),
        ("--query -t 5s", "trace config"),
        ("--query -c :test", "trace config"),
        ("--query -o x", "--out"),
        ("--txt --txt-lossy", "--txt-lossy"),
        ("-t 5s", "-o FILE"),
        ("-o x", "name events"),
        ("-c :test -t 5s -o x", "write those into the config"),
        ("-t 5x -o x", "--time"),
        ("-c /nonexistent -o x", "No such file"),
        ("-c /dev/null -o x", "empty"),
        ("--upload -t 1s", "only works on Android"),
        ("--dropbox perfetto -t 1s", "only works on Android"),
        ("--add-attribute =value -t 1s -o x", "needs a key"),
        ("--save-for-bugreport --query", "--query"),
        ("--save-for-bugreport --attach k", "--attach"),
        ("--save-for-bugreport --detach k", "--detach"),
        ("--save-for-bugreport -t 1s", "trace config"),
        ("--save-all-for-bugreport -D", "--background-wait"),
        ("--save-all-for-bugreport -o x", "--out"),
        ("--detach= -t 1s -o x", "--detach needs a key"),
        ("--attach=", "--attach needs a key"),
        ("--is_detached=", "--is_detached needs a key"),
        ("--detach k -t 1s", "--out"),
        ("--detach k -t 1s -o x", "write_into_file"),
        ("--detach k -d -s 1mb -o x", "--background"),
        ("--detach k --attach k", "--detach"),
        ("--query --attach k", "--attach"),
        ("--stop", "--attach"),
        ("--attach k -o x", "--out"),
        ("--attach k -t 1s", "leave out --time"),
        ("--attach k -c :test", "leave out -c"),
        ("--clone 3 --clone-by-name n -o x", "--clone-by-name"),
        ("--clone 3", "-o FILE"),
        ("--clone-for-bugreport -t 1s -o x", "--clone or --clone-by-name"),
        ("--notify-fd 2 -t 1s -o x", "stderr"),
        ("--notify-fd 1 -t 1s -o -", "--out -"),
        ("--notify-fd 1 -t 1s -o x -d", "--background"),
        ("-t 1s -o=", "-o FILE"),
    ];
    for (line, reason) in cases {
        let message = refused(line);
        assert!(message.contains(reason), "{line}: {message}");
    }
}

#[test]
fn configs_are_put_together_as_upstream_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let one = file("one", "duration_ms: 1 buffers { size_kb: 1 }");
    let two = file(
        "two",
        "duration_ms: 2 buffers { size_kb: 2 } unique_session_name: \"two\"",
    );
    let empty = file("empty", "");
    let planned = |configs: &[&str]| {
        let configs: Vec<String> = configs.iter().map(|config| format!("-c {config}")).collect();
        recording(&format!("--txt -o x {}", configs.join(" "))).config
    };
    let both = planned(&[&one, &empty, &two]);
    assert_eq!(both.duration_ms, Some(2));
    assert_eq!(both.unique_session_name.as_deref(), Some("two"));
    let sizes = |config: &TraceConfig| {
        config
            .buffers
            .iter()
            .map(|buffer| buffer.size_kb)
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(&both), [Some(1), Some(2)]);
    assert_eq!(planned(&[&two, &one]).duration_ms, Some(1));

    let with_test = planned(&[&two, ":test", &one]);
    assert_eq!(with_test.duration_ms, Some(1));
    assert_eq!(
        with_test.unique_session_name, None,
        ":test takes the place of all before"
    );
    assert_eq!(sizes(&with_test).len(), 2);

    let wrong = file("wrong", "bogus: 1");
    let message = refused(&format!("--txt -o x -c {one} -c {wrong}"));
    assert!(message.contains(&format!("{wrong}:1:1")), "{message}");
    assert!(refused(&format!("--txt -o x -c {empty}")).contains("The TraceConfig is empty"));
    assert!(matches!(
        recording(&format!("--clone 3 -o x -c {empty}")).job,
        Job::Clone(_)
    ));
}

#[test]
fn configs_that_need_android_or_a_later_version_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (
            "android_report_config { reporter_service_package: \"x\" }",
            "--upload",
        ),
        (
            "incident_report_config { destination_package: \"x\" }",
            "--upload",
        ),
        ("cmd_trace_start_delay { min_delay_ms: 5 }", "only one of"),
        (
            "cmd_trace_start_delay { min_delay_ms: 5 max_delay_ms: 4 }",
            "swap them",
        ),
        ("output_path: \"/nonexistent/x\"", "leave out -o"),
        ("bogus: 1", "config:1:1: error:"),
    ];
    for (config, reason) in cases {
        let message = refused(&format!("{} -o x", with_config(&dir, config)));
        assert!(message.contains(reason), "{config}: {message}");
    }
}

#[test]
fn a_config_that_activates_triggers_records_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = "activate_triggers: \"a\" activate_triggers: \"b\" write_into_file: true";
    let flags = with_config(&dir, text);
    let activation = |process, notify_fd| Activation {
        triggers: vec!["a".into(), "b".into()],
        process,
        notify_fd,
    };
    let cases = [
        ("", activation(Process::Foreground, None)),
        // Flags for recordings are ignored, as upstream does.
        ("-o /nonexistent/x", activation(Process::Foreground, None)),
        ("--detach k", activation(Process::Foreground, None)),
        ("--clone 3", activation(Process::Foreground, None)),
        ("-d", activation(Process::Background, None)),
        (
            "-D --notify-fd 9",
            activation(Process::BackgroundOnceStarted, Some(9)),
        ),
    ];
    for (more, expected) in cases {
        match try_plan(&format!("{flags} {more}")) {
            Ok(Plan::Activate(activation)) => assert_eq!(activation, expected, "{more}"),
            other => panic!("{more}: {other:?}"),
        }
    }
    let existing = format!("{text} output_path: \"{}\"", dir.path().display());
    assert!(refused(&with_config(&dir, &existing)).contains("exists"));
}

#[test]
fn the_service_may_open_the_file_itself_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("by-service");
    let flags = with_config(
        &dir,
        &format!("write_into_file: true output_path: \"{}\"", path.display()),
    );
    assert_eq!(recording(&flags).sink, Sink::OpenedByService(path.clone()));
    std::fs::write(&path, "").unwrap();
    assert!(refused(&flags).contains("exists"));
    let without_writing = with_config(&dir, "output_path: \"/nonexistent/x\"");
    assert!(refused(&without_writing).contains("-o FILE"));
}

#[test]
fn an_empty_config_file_beside_light_flags_is_ignored() {
    let config = recording("-c /dev/null -t 5s -o x").config;
    assert_eq!(config.duration_ms, Some(5_000));
}

#[test]
fn the_built_in_config_records_two_seconds() {
    let config = recording("-c :test -o x").config;
    assert_eq!(config.duration_ms, Some(2_000));
    assert_eq!(config.data_sources[0].config.ftrace_config.ftrace_events.len(), 4);
}

#[test]
fn every_config_gets_the_metadata_of_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let flags = with_config(&dir, "duration_ms: 7 statsd_metadata { triggering_alert_id: 9 }");
    let config = recording(&format!(
        "{flags} -o x --add-attribute a=b=c --add-attribute d --subscription-id 5"
    ))
    .config;
    assert_eq!(config.duration_ms, Some(7));
    assert_eq!(
        config.statsd_metadata.triggering_alert_id, None,
        "the command line's word counts"
    );
    assert_eq!(config.statsd_metadata.triggering_subscription_id, Some(5));
    assert_eq!(config.trace_uuid_lsb, Some(5), "so that statsd finds it");
    assert_ne!(config.trace_uuid_msb, None);
    assert_eq!(config.enable_extra_guardrails, Some(false));
    assert_eq!(
        config.statsd_logging,
        Some(trace_config::StatsdLogging::STATSD_LOGGING_DISABLED)
    );
    let attributes: Vec<_> = config
        .trace_attributes
        .attribute
        .iter()
        .map(|attribute| {
            (
                attribute.key.as_deref().unwrap(),
                attribute.value.clone().unwrap(),
            )
        })
        .collect();
    let string = |value: &str| trace_attributes::attribute::Value::StringValue(value.to_owned());
    assert_eq!(attributes, [("a", string("b=c")), ("d", string(""))]);
}

#[test]
fn two_traces_have_two_names_but_a_given_name_stays() {
    let uuid = |line: &str| {
        let config = recording(line).config;
        (config.trace_uuid_lsb, config.trace_uuid_msb)
    };
    assert_ne!(uuid("-c :test -o x"), uuid("-c :test -o x"));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        uuid(&format!("{} -o x", with_config(&dir, "trace_uuid_msb: 4"))),
        (None, Some(4))
    );
}

#[test]
fn processes_and_outputs_are_as_asked() {
    let foreground = recording("-t 1s -o -");
    assert_eq!(
        (foreground.process, foreground.sink),
        (Process::Foreground, Sink::Stdout)
    );
    assert_eq!(recording("-d -t 1s -o x").process, Process::Background);
    assert_eq!(
        recording("-dD -t 1s -o x").process,
        Process::BackgroundOnceStarted
    );
    let careful = recording("-t 1s -o x --no-clobber --notify-fd 7 --no-guardrails");
    assert_eq!(
        (careful.existing, careful.notify_fd),
        (ExistingFile::Refuse, Some(7))
    );
    assert_eq!(careful.sink, Sink::File("x".into()));
}

#[test]
fn queries_choose_their_format() {
    for (line, format) in [
        ("--query", QueryFormat::Table),
        ("--query --long", QueryFormat::LongTable),
        ("--query-raw", QueryFormat::Raw),
        ("--query-raw --long", QueryFormat::Raw),
    ] {
        assert!(
            matches!(try_plan(line), Ok(Plan::Query(chosen)) if chosen == format),
            "{line}"
        );
    }
    assert!(matches!(try_plan("--reset-guardrails"), Ok(Plan::Notice(_))));
}

#[test]
fn sessions_are_named_by_key_id_or_name() {
    use AfterAttach::{DetachAgain, Follow, Stop};
    let name = |name: &str| name.to_owned();
    let clone = |original, filter| {
        Job::Clone(CloneOf {
            original,
            filter,
            trigger: None,
        })
    };
    for (line, job) in [
        ("-t 1s -o x", Job::Record),
        ("--detach k -s 1mb -o x", Job::StartAndDetach(name("k"))),
        ("--attach k", Job::Attach(name("k"), Follow)),
        ("--attach k --stop", Job::Attach(name("k"), Stop)),
        ("--is_detached k", Job::Attach(name("k"), DetachAgain)),
        ("--clone 3 -o x", clone(Original::Id(3), TraceFilter::Applied)),
        (
            "--clone -1 -o x",
            clone(Original::Id(u64::MAX), TraceFilter::Applied),
        ),
        (
            "--clone-by-name n --clone-for-bugreport -o x",
            clone(Original::Name(name("n")), TraceFilter::Skipped),
        ),
        (
            "--save-for-bugreport -o x",
            clone(Original::BUGREPORT, TraceFilter::Skipped),
        ),
    ] {
        assert_eq!(recording(line).job, job, "{line}");
    }
}

#[test]
fn traces_for_bug_reports_go_into_the_folder_for_temporary_files() {
    let Sink::File(path) = recording("--save-for-bugreport").sink else {
        panic!("not a file")
    };
    assert_eq!(path, bugreport_folder().join("systrace.pftrace"));
    assert_eq!(
        recording("--save-for-bugreport -o x").sink,
        Sink::File("x".into())
    );
    for (line, process) in [
        ("--save-all-for-bugreport", Process::Foreground),
        ("--save-all-for-bugreport -d", Process::Background),
    ] {
        match try_plan(line) {
            Ok(Plan::SaveAllForBugreport(planned)) => assert_eq!(planned, process),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn snapshots_on_triggers_need_a_file_to_be_named_after() {
    let dir = tempfile::tempdir().unwrap();
    for config in [
        "trigger_config { trigger_mode: CLONE_SNAPSHOT }",
        "trigger_config { trigger_mode: STOP_TRACING use_clone_snapshot_if_available: true }",
    ] {
        let flags = with_config(&dir, config);
        assert!(refused(&format!("{flags} -o -")).contains("FILE.0"));
        assert_eq!(recording(&format!("{flags} -o x")).job, Job::Record);
        recording(&format!("{flags} -o - --clone 3"));
        let flags = with_config(
            &dir,
            &format!("{config} write_into_file: true output_path: \"/nonexistent/x\""),
        );
        assert!(refused(&flags).contains("FILE.0"));
    }
}
