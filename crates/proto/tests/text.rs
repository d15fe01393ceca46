//! Accepted text configs, and the messages about refused ones.

use ferretto_proto::messages::{Message, TraceConfig, trace_config::buffer_config::FillPolicy};
use ferretto_proto::text::{self, Problem, TRACE_CONFIG, TextErrors, UnknownNames};

fn encode(source: &str) -> Result<Vec<u8>, TextErrors> {
    text::encode(source, TRACE_CONFIG)
}

fn config(source: &str) -> TraceConfig {
    let bytes = encode(source).unwrap_or_else(|errors| panic!("{source}\n{errors}"));
    TraceConfig::decode_from_slice(&bytes).expect("what the text front emits is well-formed")
}

fn refusals(source: &str) -> Vec<(usize, usize, Problem)> {
    let errors = encode(source).expect_err(source);
    errors
        .errors()
        .iter()
        .map(|error| (error.place.line, error.place.column, error.problem.clone()))
        .collect()
}

/// A field of the message that has one field of every type, encoded: `text` is `name: value`.
fn dummy(text: &str) -> Result<Vec<u8>, TextErrors> {
    text::encode(text, "perfetto.protos.TestConfig.DummyFields")
}

const DOCUMENTED: &str = r#"
# An example in the style of Perfetto's documentation.
buffers: {
    size_kb: 63488   // sixty-two megabytes
    fill_policy: DISCARD
}
buffers: { size_kb: 2048 fill_policy: RING_BUFFER }
data_sources: {
    config {
        name: "linux.ftrace"
        ftrace_config {
            ftrace_events: "sched/sched_switch"
            ftrace_events: "power/suspend_resume"  # and more
            atrace_apps: "*"
            compact_sched { enabled: true }
        }
    }
}
data_sources { config { name: "android.log" android_log_config { log_ids: LID_DEFAULT min_prio: PRIO_WARN } } }
duration_ms: 10000
"#;

#[test]
fn a_documented_config_means_what_it_says() {
    let config = config(DOCUMENTED);
    assert_eq!(config.duration_ms, Some(10_000));
    let buffers: Vec<_> = config
        .buffers
        .iter()
        .map(|buffer| (buffer.size_kb, buffer.fill_policy))
        .collect();
    assert_eq!(
        buffers,
        [
            (Some(63_488), Some(FillPolicy::DISCARD)),
            (Some(2048), Some(FillPolicy::RING_BUFFER))
        ]
    );
    let ftrace = &config.data_sources[0].config.ftrace_config;
    assert_eq!(
        ftrace.ftrace_events,
        ["sched/sched_switch", "power/suspend_resume"]
    );
    assert_eq!(ftrace.compact_sched.enabled, Some(true));
    assert_eq!(config.data_sources[1].config.name.as_deref(), Some("android.log"));
}

#[test]
fn notations_that_mean_the_same() {
    let expected =
        encode("buffers { size_kb: 16 fill_policy: DISCARD } buffers { size_kb: 8 } duration_ms: 5").unwrap();
    for same in [
        "buffers{size_kb:16 fill_policy:DISCARD}buffers{size_kb:8}duration_ms:5",
        "buffers<size_kb: 16 fill_policy: DISCARD> buffers: <size_kb: 8> duration_ms: 5",
        "buffers: [{ size_kb: 16, fill_policy: DISCARD }, <size_kb: 8>], duration_ms: 5",
        "buffers [{ size_kb: 0x10; fill_policy: 2; }, { size_kb: 008 }]; duration_ms: 0X5;",
        "\u{feff}buffers { size_kb: 16 fill_policy: 0x2 }\r\n\tbuffers { size_kb: 8 }\r\nduration_ms: 5 # end",
        "buffers { size_kb 16 fill_policy DISCARD } buffers { size_kb 8 } duration_ms 5",
        "buffers # comment\n{ size_kb // comment\n : # comment\n 16 fill_policy: DISCARD#\n}buffers{size_kb:8}duration_ms:5//",
    ] {
        assert_eq!(encode(same).as_deref(), Ok(expected.as_slice()), "{same}");
    }
}

#[test]
fn scalars_of_every_type() {
    let accepted: [(&str, &[u8]); 36] = [
        ("field_uint32: 4294967295", &[0x08, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ("field_uint32: -0", &[0x08, 0]),
        (
            "field_int32: -1",
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        (
            "field_int32: - # a sign may stand alone\n 1",
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        (
            "field_uint64: 18446744073709551615",
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        (
            "field_int64: -9223372036854775808",
            &[0x20, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
        ),
        ("field_fixed64: 1", &[0x29, 1, 0, 0, 0, 0, 0, 0, 0]),
        (
            "field_sfixed64: -1",
            &[0x31, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
        ("field_fixed32: 0xffffffff", &[0x3d, 255, 255, 255, 255]),
        ("field_sfixed32: -2", &[0x45, 254, 255, 255, 255]),
        ("field_double: 1.5", &[0x49, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
        ("field_double: 15e-1", &[0x49, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
        ("field_double: 1.5f", &[0x49, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
        ("field_double: -inf", &[0x49, 0, 0, 0, 0, 0, 0, 0xf0, 0xff]),
        ("field_double: Infinity", &[0x49, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f]),
        ("field_double: nan", &[0x49, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
        ("field_double: 2", &[0x49, 0, 0, 0, 0, 0, 0, 0, 0x40]),
        ("field_float: .5", &[0x55, 0, 0, 0, 0x3f]),
        ("field_float: -5.", &[0x55, 0, 0, 0xa0, 0xc0]),
        ("field_float: 1e99", &[0x55, 0, 0, 0x80, 0x7f]),
        ("field_sint64: -3", &[0x58, 5]),
        ("field_sint32: 3", &[0x60, 6]),
        ("field_sint32: -2147483648", &[0x60, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        (
            "field_string: \"a\" 'b' # comment\n \"c\"",
            &[0x6a, 3, b'a', b'b', b'c'],
        ),
        ("field_string: ''", &[0x6a, 0]),
        ("field_string 'x'", &[0x6a, 1, b'x']),
        ("field_string: 'line\nline'", b"\x6a\x09line\nline"),
        ("field_string: \"it's\"", b"\x6a\x04it's"),
        (
            r#"field_string: "\u00e9\x41\101\n""#,
            &[0x6a, 5, 0xc3, 0xa9, b'A', b'A', b'\n'],
        ),
        (r#"field_bytes: "\377\xfe\0""#, &[0x72, 3, 0xff, 0xfe, 0]),
        ("field_bytes: 'é'", &[0x72, 2, 0xc3, 0xa9]),
        ("", &[]),
        ("# nothing", &[]),
        (
            "field_int64: 0x7fffffffffffffff",
            &[0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ),
        (
            "field_int64: -0x10",
            &[0x20, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        ("field_uint32: 0", &[0x08, 0]),
    ];
    for (source, bytes) in accepted {
        assert_eq!(dummy(source).as_deref(), Ok(bytes), "{source}");
    }
}

#[test]
fn booleans_in_each_spelling() {
    for (word, value) in [
        ("true", 1),
        ("True", 1),
        ("t", 1),
        ("1", 1),
        ("0x1", 1),
        ("false", 0),
        ("False", 0),
        ("f", 0),
        ("00", 0),
    ] {
        let bytes = encode(&format!("write_into_file: {word}")).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(bytes, [0x40, value], "{word}");
    }
    for word in ["TRUE", "yes", "2", "-1", "1.0", "'true'", "-true"] {
        assert!(encode(&format!("write_into_file: {word}")).is_err(), "{word}");
    }
}

#[test]
fn values_of_the_wrong_type_or_size_are_refused_at_their_place() {
    for value in [
        "1.5", "1e3", "10s", "0x", "'5'", "five", "5f", "inf", "{ }", "1_000", "+5",
    ] {
        let refused = refusals(&format!("duration_ms: {value}"));
        assert!(
            matches!(&refused[0], (1, 14, Problem::Unexpected { expected, .. }) if expected.contains("duration_ms")),
            "{value}: {refused:?}"
        );
    }
    for (field, values) in [
        (
            "field_uint32",
            &["4294967296", "-1", "0x100000000", "99999999999999999999"][..],
        ),
        ("field_int32", &["2147483648", "-2147483649", "0xffffffff"]),
        ("field_uint64", &["18446744073709551616", "-1"]),
        ("field_int64", &["9223372036854775808", "-9223372036854775809"]),
        ("field_sfixed32", &["2147483648"]),
        ("field_sint64", &["-9223372036854775809"]),
    ] {
        for value in values {
            let errors = dummy(&format!("{field}: {value}")).expect_err(value);
            assert!(
                matches!(errors.errors()[0].problem, Problem::OutOfRange { .. }),
                "{field} {value}: {errors}"
            );
        }
    }
    for source in [
        "field_double: 0x10",
        "field_double: 'x'",
        "field_double: 1.2.3",
        "field_string: x",
        "field_bytes: 5",
    ] {
        assert!(dummy(source).is_err(), "{source}");
    }
}

#[test]
fn text_is_utf8_and_bytes_are_anything() {
    let errors = dummy(r"field_string: 'a\xff'").expect_err("not UTF-8");
    assert_eq!(
        errors.errors()[0].problem,
        Problem::NotUtf8 {
            field: "field_string".to_owned()
        }
    );
    assert!(dummy(r"field_bytes: 'a\xff'").is_ok());
}

#[test]
fn names_are_suggested() {
    for (source, hint) in [
        ("durations_ms: 5", "did you mean `duration_ms`?"),
        ("buffers { fill_polcy: DISCARD }", "did you mean `fill_policy`?"),
        (
            "buffers { fill_policy: RINGBUFFER }",
            "did you mean `RING_BUFFER`?",
        ),
        (
            "buffers { fill_policy: ring_buffer }",
            "did you mean `RING_BUFFER`?",
        ),
        (
            "buffers { duration_ms: 5 }",
            "it is a field of TraceConfig: write it outside of `buffers { … }`",
        ),
        (
            "data_sources { name: 'linux.ftrace' }",
            "it belongs into `config { … }`",
        ),
        (
            "buffers { fill_policy: 99 }",
            "expected one of UNSPECIFIED, RING_BUFFER, DISCARD",
        ),
    ] {
        let errors = encode(source).expect_err(source);
        assert_eq!(errors.errors()[0].hint.as_deref(), Some(hint), "{source}");
        assert_eq!(errors.errors().len(), 1, "{source}: {errors}");
    }
}

#[test]
fn several_mistakes_come_at_once() {
    let source = "bufers { size_kb: 1 nested { a: [1, 2] } }\nduration_ms: -1\n  buffers {\n\tsize_kb: 'x'\n}\nbuffers: 5\n";
    let places: Vec<_> = refusals(source)
        .into_iter()
        .map(|(line, column, _)| (line, column))
        .collect();
    assert_eq!(places, [(1, 1), (2, 14), (4, 11), (6, 10)]);
}

#[test]
fn the_list_of_mistakes_ends() {
    let refused = refusals(&"x: 1\n".repeat(100_000));
    assert_eq!(refused.len(), 21);
    assert!(matches!(refused[20].2, Problem::TooMany { limit: 20 }));
}

#[test]
fn a_missing_brace_is_pointed_at_where_it_was_opened() {
    let never_closed = |opener, closer| Problem::NeverClosed { opener, closer };
    assert_eq!(
        refusals("duration_ms: 1\n buffers {\n size_kb: 1\n"),
        [(2, 10, never_closed('{', '}'))]
    );
    assert_eq!(refusals("buffers <size_kb: 1"), [(1, 9, never_closed('<', '>'))]);
    assert_eq!(
        refusals("buffers: [{size_kb: 1}"),
        [(1, 10, never_closed('[', ']'))]
    );
    assert_eq!(
        refusals("unique_session_name: 'abc\nduration_ms: 1"),
        [(1, 22, never_closed('\'', '\''))]
    );
}

#[test]
fn what_cannot_follow_is_named() {
    for (source, line, column, expected, found) in [
        ("}", 1, 1, "a field name", "`}`"),
        (
            "buffers { > }",
            1,
            11,
            "a field name, or `}` for the `{` of line 1",
            "`>`",
        ),
        (
            "duration_ms:",
            1,
            13,
            "an integer (uint32) for `duration_ms`",
            "the end of the text",
        ),
        (
            "duration_ms\nbuffers { }",
            1,
            12,
            "an integer (uint32) for `duration_ms`",
            "the end of the line",
        ),
        (
            "duration_ms: [1 2]",
            1,
            17,
            "`,`, or `]` for the `[` of line 1",
            "`2`",
        ),
        ("5: 5", 1, 1, "a field name", "`5`"),
        (
            "duration_ms: 5,, write_into_file: true",
            1,
            16,
            "a field name",
            "`,`",
        ),
        (
            "/* no */ duration_ms: 5",
            1,
            1,
            "a comment after # or //, to the end of its line",
            "a /* comment */",
        ),
        ("buffers: size_kb", 1, 10, "`{` for `buffers`", "`size_kb`"),
        (
            "field: \"ab\\q\"",
            1,
            11,
            r#"one of \a \b \f \n \r \t \v \? \\ \' \" \xHH \NNN \uHHHH \UHHHHHHHH"#,
            "`\\q`",
        ),
    ] {
        let problem = Problem::Unexpected {
            expected: expected.to_owned(),
            found: found.to_owned(),
        };
        assert!(
            refusals(source).contains(&(line, column, problem)),
            "{source}: {:?}",
            refusals(source)
        );
    }
}

#[test]
fn fields_that_are_not_repeated_are_given_once() {
    let duplicate = Problem::Duplicate {
        field: "duration_ms".to_owned(),
        line: 1,
    };
    assert_eq!(refusals("duration_ms: 1\nduration_ms: 1"), [(2, 1, duplicate)]);
    let list = Problem::NotRepeated {
        field: "duration_ms".to_owned(),
    };
    assert_eq!(refusals("duration_ms: [1]"), [(1, 14, list)]);
    // Each message counts for itself.
    assert!(encode("buffers { size_kb: 1 } buffers { size_kb: 1 }").is_ok());
    assert!(encode("data_sources { config { ftrace_config { ftrace_events: [] } } }").is_ok());
}

#[test]
fn fields_of_one_choice_exclude_each_other() {
    let rules = "rules { prefix: 'a'\n atrace_msg { type: 'B' } }";
    let errors =
        text::encode(rules, "perfetto.protos.FtraceConfig.PrintFilter").expect_err("two of one choice");
    let expected = Problem::Exclusive {
        field: "atrace_msg".to_owned(),
        other: "prefix".to_owned(),
        line: 1,
        oneof: "match".to_owned(),
    };
    assert_eq!(errors.errors()[0].problem, expected);
}

#[test]
fn extensions_are_refused_and_what_follows_is_still_read() {
    let refused =
        refusals("[perfetto.protos.Some.extension] { a: 1 }\n[type.googleapis.com/x.Y]: 5; durations_ms: 5");
    assert_eq!(refused.len(), 3);
    assert!(
        matches!(&refused[0], (1, 1, Problem::Extension { name, .. }) if name == "perfetto.protos.Some.extension")
    );
    assert!(
        matches!(&refused[1], (2, 1, Problem::Extension { name, .. }) if name == "type.googleapis.com/x.Y")
    );
}

#[test]
fn unknown_names_can_be_dropped_but_nothing_else() {
    let lossy = |source| text::encode_with(source, TRACE_CONFIG, UnknownNames::Drop);
    let source = "from_the_future { a: 1 b { c: 'x' d: [1, 2] } } [ext]: 5 duration_ms: 7 buffers { fill_policy: SOON size_kb: 1 }";
    assert_eq!(lossy(source), encode("duration_ms: 7 buffers { size_kb: 1 }"));
    for source in [
        "duration_ms: 'x'",
        "from_the_future { a: 1",
        "duration_ms: -1",
        "from_the_future",
    ] {
        assert!(lossy(source).is_err(), "{source}");
    }
}

#[test]
fn fields_that_there_were_once_are_skipped() {
    assert_eq!(
        encode("notes { a: 1 } duration_ms: 7 notes: 'x'"),
        encode("duration_ms: 7")
    );
}

#[test]
fn a_forgotten_quote_is_suspected_where_its_string_begins() {
    let refused = refusals(
        "unique_session_name: \"abc\nduration_ms: 1\nandroid_report_config { reporter_service_class: \"x\" }",
    );
    let problem = Problem::LongString {
        from: 1,
        to: 3,
        found: "`x`".to_owned(),
    };
    assert_eq!(refused, [(1, 22, problem)]);
}

#[test]
fn nesting_is_bounded() {
    let refused = refusals(&"a { ".repeat(1_000_000));
    assert!(
        refused
            .iter()
            .any(|(.., problem)| *problem == Problem::TooDeep { limit: 64 }),
        "{refused:?}"
    );
}

#[test]
fn a_long_line_of_messages_takes_linear_time() {
    // Looking for the beginning of the line at the end of each message would take many minutes.
    const MESSAGES: usize = 300_000;
    let list = vec!["{ config { name: \"a\" } }"; MESSAGES].join(", ");
    let encoded = encode(&format!("data_sources: [{list}]")).unwrap();
    assert_eq!(encoded.len(), 7 * MESSAGES);
}

#[test]
fn long_lines_and_tabs_are_shown_with_the_caret_in_place() {
    let source = format!(
        "\tunique_session_name: '{}' durations_ms: 5 {}",
        "é".repeat(500),
        "#".repeat(500)
    );
    let errors = encode(&source).expect_err("a slip");
    let error = &errors.errors()[0];
    assert_eq!(
        error.place.column,
        1 + source
            .chars()
            .take_while(|letter| *letter != 'd')
            .count()
            .min(525)
    );
    let shown: String = error
        .place
        .excerpt
        .chars()
        .skip(error.place.excerpt_column)
        .take(error.place.width)
        .collect();
    assert_eq!(shown, "durations_ms");
    assert!(error.place.excerpt.chars().count() <= 120);

    let rendered = encode("\tbufers {}").expect_err("a slip").render("a.cfg");
    assert_eq!(
        rendered,
        "a.cfg:1:2: error: TraceConfig has no field `bufers`; did you mean `buffers`?\n  \tbufers {}\n  \t^^^^^^"
    );
}

#[test]
fn a_message_that_the_schema_lacks_is_named() {
    let errors = text::encode("", "perfetto.protos.Missing").expect_err("no such message");
    assert_eq!(
        errors.errors()[0].problem,
        Problem::NoSuchMessage("perfetto.protos.Missing".to_owned())
    );
}
