//! The flags of `perfetto`, each defined once, for the parser, `-h`, `--help`, the man page and completions.
//!
//! [`run`](super::run) calls it. Scripts rely on the syntax of upstream's `getopt_long`: abbreviated long flags (`--ti 5s`), `-t5s`, `--time=5s`,
//! flags after events, the last of two equal flags wins, `-` as a value, values that begin with a dash. All of this works here. [`plan`](super::plan)
//! interprets the flags and their combinations.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::Program;
use super::console::Loudness;
use super::light_config::LightFlags;
use super::plan::Strictness;
use super::workload::CommandLine;
use ferretto_proto::messages::TraceConfig;

/// The flags as typed.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Every `-c`, in order.
    pub(crate) configs: Vec<OsString>,
    /// `--txt`.
    pub(crate) text: bool,
    /// `--txt-lossy`.
    pub(crate) lossy_text: bool,
    /// `-o`.
    pub(crate) out: Option<OsString>,
    /// `--no-clobber`.
    pub(crate) no_clobber: bool,
    /// `-t`, `-b`, `-s`, `-a` and the events.
    pub(crate) light: LightFlags,
    /// `-d` (also set by `-D`).
    pub(crate) background: bool,
    /// `-D`.
    pub(crate) background_wait: bool,
    /// `--notify-fd`.
    pub(crate) notify_fd: Option<i32>,
    /// `--query` (also set by `--query-raw`).
    pub(crate) query: bool,
    /// `--query-raw`.
    pub(crate) query_raw: bool,
    /// `--json`, which only `ferretto` has.
    pub(crate) json: bool,
    /// `--long`.
    pub(crate) long: bool,
    /// `--add-attribute` or `--add-note`, each `key` or `key=value`.
    pub(crate) attributes: Vec<String>,
    /// `--alert-id`, `--config-id`, `--config-uid`, `--subscription-id`.
    pub(crate) statsd: StatsdFlags,
    /// `--detach`.
    pub(crate) detach: Option<String>,
    /// `--attach`.
    pub(crate) attach: Option<String>,
    /// `--is_detached`.
    pub(crate) is_detached: Option<String>,
    /// `--stop`.
    pub(crate) stop: bool,
    /// `--clone`: the id of a session. As for the service, -1 stands for the session that a bug report wants.
    pub(crate) clone: Option<i64>,
    /// `--clone-by-name`.
    pub(crate) clone_by_name: Option<String>,
    /// `--clone-for-bugreport`.
    pub(crate) clone_for_bugreport: bool,
    /// `--reset-guardrails`.
    pub(crate) reset_guardrails: bool,
    /// A flag that only has a meaning on Android, as typed.
    pub(crate) android_only: Option<&'static str>,
    /// `--save-for-bugreport`.
    pub(crate) save_for_bugreport: bool,
    /// `--save-all-for-bugreport`.
    pub(crate) save_all_for_bugreport: bool,
    /// `-q`.
    pub(crate) loudness: Loudness,
    /// `--strict`.
    pub(crate) strictness: Strictness,
    /// The command after `--`.
    pub(crate) command: Option<CommandLine>,
    /// How long a recording of a subcommand lasts, counted from the time at which all data sources have started.
    pub(crate) once_started: Option<Duration>,
    /// A config that a subcommand made of flags of its own.
    pub(crate) made: Option<TraceConfig>,
}

/// The ids by which statsd finds its trace.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StatsdFlags {
    pub(crate) alert_id: Option<i64>,
    pub(crate) config_id: Option<i64>,
    pub(crate) config_uid: Option<i32>,
    pub(crate) subscription_id: Option<i64>,
}

/// Flags that upstream's build for Linux refuses as well.
const ANDROID_ONLY: &[&str] = &["upload", "dropbox"];

/// Parses the arguments after the program's name. `Err` holds help, version or a usage error, rendered by clap.
pub(crate) fn parse(
    program: Program,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Arguments, clap::Error> {
    let name = OsString::from(program.name());
    let matches = command(program).try_get_matches_from(std::iter::once(name).chain(words))?;
    Ok(arguments(program, &matches))
}

fn arguments(program: Program, matches: &ArgMatches) -> Arguments {
    let strings = |id: &str| {
        matches
            .get_many::<String>(id)
            .into_iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
    };
    let string = |id: &str| matches.get_one::<String>(id).cloned();
    let given = |id: &&&str| {
        matches
            .value_source(id)
            .is_some_and(|source| source == clap::parser::ValueSource::CommandLine)
    };
    let background_wait = matches.get_flag("background-wait");
    let query_raw = matches.get_flag("query-raw");
    Arguments {
        configs: matches
            .get_many::<OsString>("config")
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
        text: matches.get_flag("txt"),
        lossy_text: matches.get_flag("txt-lossy"),
        out: matches.get_one::<OsString>("out").cloned(),
        no_clobber: matches.get_flag("no-clobber"),
        light: LightFlags {
            time: string("time"),
            buffer: string("buffer"),
            size: string("size"),
            apps: strings("app"),
            events: strings("events"),
            event_flags: match program {
                Program::Perfetto => Vec::new(),
                Program::Ferretto => strings("event"),
            },
        },
        background: matches.get_flag("background") || background_wait,
        background_wait,
        notify_fd: matches.get_one("notify-fd").copied(),
        query: matches.get_flag("query") || query_raw,
        query_raw,
        json: matches!(matches.try_get_one::<bool>("json"), Ok(Some(true))),
        long: matches.get_flag("long"),
        attributes: strings("add-attribute"),
        statsd: StatsdFlags {
            alert_id: matches.get_one("alert-id").copied(),
            config_id: matches.get_one("config-id").copied(),
            config_uid: matches.get_one("config-uid").copied(),
            subscription_id: matches.get_one("subscription-id").copied(),
        },
        detach: string("detach"),
        attach: string("attach"),
        is_detached: string("is_detached"),
        stop: matches.get_flag("stop"),
        clone: matches.get_one("clone").copied(),
        clone_by_name: string("clone-by-name"),
        clone_for_bugreport: matches.get_flag("clone-for-bugreport"),
        reset_guardrails: matches.get_flag("reset-guardrails"),
        android_only: ANDROID_ONLY.iter().find(given).copied(),
        save_for_bugreport: matches.get_flag("save-for-bugreport"),
        save_all_for_bugreport: matches.get_flag("save-all-for-bugreport"),
        // Only `ferretto` has this flag.
        strictness: match matches.try_get_one::<bool>("strict") {
            Ok(Some(true)) => Strictness::Strict,
            _ => Strictness::Lenient,
        },
        loudness: if matches.get_flag("quiet") {
            Loudness::Quiet
        } else {
            Loudness::Usual
        },
        command: match program {
            Program::Perfetto => None,
            Program::Ferretto => {
                let words = matches.get_many::<OsString>("command").into_iter().flatten();
                CommandLine::of(words.cloned())
            }
        },
        once_started: None,
        made: None,
    }
}

/// Makes a flag without a value.
fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// Makes a flag with a value, which may begin with a dash or be empty.
fn option(
    name: &'static str,
    value: &'static str,
    parser: impl Into<ValueParser>,
    help: &'static str,
) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .value_parser(parser.into())
        .allow_hyphen_values(true)
        .action(ArgAction::Set)
        .help(help)
}

fn usage(program: Program) -> &'static str {
    match program {
        Program::Perfetto => {
            "perfetto [-t TIME] [-b SIZE] [-s SIZE] -o FILE EVENT...\n       perfetto -c CONFIG [--txt] -o FILE\n       perfetto --query"
        }
        Program::Ferretto => {
            "ferretto [-t TIME] [-b SIZE] [-s SIZE] [-o FILE] EVENT...\n       ferretto -c CONFIG [--txt] [-o FILE]\n       ferretto \
             [EVENT... | -c CONFIG] [-o FILE] -- COMMAND [ARGUMENT...]\n       ferretto --query"
        }
    }
}

fn examples(program: Program) -> String {
    let of_command = match program {
        Program::Perfetto => "",
        Program::Ferretto => "  ferretto -o trace.pftrace -e sched:sched_switch -- make -j4\n",
    };
    format!(
        "Examples:\n  {name} -t 5s -o trace.pftrace sched/sched_switch sched/sched_waking\n  {name} --txt -c trace.cfg -o \
         trace.pftrace\n{of_command}  ferretto open trace.pftrace",
        name = program.name()
    )
}

fn outcomes(program: Program) -> String {
    let of_command = match program {
        Program::Perfetto => "",
        Program::Ferretto => {
            "  of COMMAND, if there is one and it was recorded: 128 and the signal's
     number if one ended it; 127 if there is none, 126 if it cannot be run\n"
        }
    };
    format!(
        "\
Exit status:
  0  it was done
  1  it failed, and stderr says why; of `ferretto` also if nothing of what was
     asked for was recorded
  2  with -D, if not all data sources have started within 30 s;
     with --attach and --is_detached, if there is no such session
  3  with --strict of `ferretto`, if something was lost or not recorded
     (docs/exit-status.md has the details)

{of_command}
Environment:
  PERFETTO_CONSUMER_SOCK_NAME  where the service listens for those who record
  PERFETTO_PRODUCER_SOCK_NAME  where it listens for producers and triggers
  NO_COLOR                     if not empty, losses are not red on a terminal
  TERM                         if `dumb`, the terminal gets plain lines
  TMPDIR                       the folder of traces for bug reports"
    )
}

pub(crate) fn command(program: Program) -> Command {
    let command = Command::new(program.name())
        .about(match program {
            Program::Perfetto => "Records traces with the tracing service that runs on this machine.",
            Program::Ferretto => {
                "Records a trace (this word can be left out). When no tracing service is running, it starts one (and the probes) for \
                 the recording."
            }
        })
        .override_usage(usage(program))
        .after_help(examples(program))
        .after_long_help(format!("{}\n\n{}", examples(program), outcomes(program)))
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .version(crate::VERSION);
    let command = match program {
        Program::Perfetto => recording_flags(command),
        Program::Ferretto => recording_flags(command).arg(strict_flag()),
    };
    let command = light_flags(program, command);
    let command = match program {
        Program::Perfetto => command,
        Program::Ferretto => command.arg(
            switch("json", "With --query: print JSON, for scripts: see docs/json.md").help_heading("Other"),
        ),
    };
    let command = service_flags(command);
    let command = detached_and_clone_flags(command);
    android_flags(command)
}

fn recording_flags(command: Command) -> Command {
    command
        .next_help_heading("Recording")
        .arg(
            option("config", "FILE", value_parser!(OsString), "Trace config: a file, or - for stdin")
                .short('c')
                .action(ArgAction::Append)
                .long_help(
                    "Reads the trace config from FILE, or from stdin when FILE is -. It is an encoded \
                     perfetto.protos.TraceConfig, or its text form with --txt. `:test` is a built-in config: two seconds \
                     of scheduling and power events. Given more than once, the configs are put together: lists are \
                     joined, of single values the last one counts. What precedes a - or :test counts for nothing.",
                ),
        )
        .arg(
            option("out", "FILE", value_parser!(OsString), "Where the trace goes: a file, or - for stdout")
                .short('o')
                .long_help(
                    "Writes the trace to FILE, or to stdout when FILE is -. An existing file is replaced once the \
                     recording starts; of a recording that fails the whole packets are kept, and a file without any is removed. `ferretto` chooses a name \
                     that nothing has (trace-YYYYMMDD-HHMMSS.pftrace) if none is given; `perfetto` refuses.",
                ),
        )
        .arg(switch("no-clobber", "Do not overwrite an existing output file"))
        .arg(
            switch("quiet", "Print only errors and losses")
                .short('q')
                .long_help(
                    "Shows no progress and no summary. Errors and losses are still printed on stderr.",
                ),
        )
        .arg(switch("txt", "The config is text, not encoded"))
        .arg(
            switch("txt-lossy", "Like --txt, but skip fields and enum values that this version does not know")
                .long_help(
                    "Like --txt, but drops fields and enum values that this version does not know instead of refusing the \
                     config.",
                ),
        )
        .arg(
            switch("background", "Record in the background; print the process id and exit")
                .short('d')
                .long_help(
                    "Continues in the background and exits at once, printing the id of the background process. Stop the \
                     recording with `kill -TERM` and that id; the trace is written then.",
                ),
        )
        .arg(
            switch("background-wait", "Like -d, but exit once all data sources have started")
                .short('D')
                .long_help(
                    "Like --background, but waits up to 30 s for all data sources to have started. The exit code is 0 if \
                     they have, 2 if they did not in time, 1 if the recording failed.",
                ),
        )
        .arg(
            option("notify-fd", "FD", value_parser!(i32).range(0..), "Write a byte to descriptor FD once started")
                .long_help(
                    "Once all data sources have started, writes one byte to the inherited descriptor FD and closes it: 0 \
                     if they have, something else if the recording failed.",
                ),
        )
        .arg(
            option("add-attribute", "KEY[=VALUE]", value_parser!(String), "Note a key and value in the trace")
                // The name up to v56. The trace then had a field for it, which no longer exists.
                .visible_alias("add-note")
                .action(ArgAction::Append)
                .long_help(
                    "Notes a key and a value (empty if left out) in the trace; can be repeated. Trace processor lists \
                     them in the table `metadata` as trace_attribute.KEY.",
                ),
        )
}

fn strict_flag() -> Arg {
    switch("strict", "Exit with 3 unless all was recorded and nothing lost").long_help(
        "Exits with 3 if any part of what was asked for was not recorded, if anything was lost, or if nobody knows. A ring buffer \
         that keeps the newest data has lost nothing, unless the recording was to last for a given time. Goes with neither \
         --background nor --detach, which exit before that is known.",
    )
}

fn light_flags(program: Program, command: Command) -> Command {
    let command = command
        .next_help_heading("Without a config")
        .arg(
            option("time", "TIME", value_parser!(String), "How long to record: a number and ms, s, m or h [default: 10s]")
                .short('t')
                .long_help(
                    "How long to record: a whole number and one of ms, s, m, h. 0 records until Ctrl-C. [default: 10s]",
                ),
        )
        .arg(
            option("buffer", "SIZE", value_parser!(String), "Size of the ring buffer, like 64mb [default: 32mb]")
                .short('b')
                .long_help(
                    "Size of the ring buffer in memory: a whole number and one of kb, mb, gb. When it is full, the oldest \
                     data make room. [default: 32mb]",
                ),
        )
        .arg(
            option("size", "SIZE", value_parser!(String), "Largest size of the file, written while recording")
                .short('s')
                .long_help(
                    "Writes the file while recording, until it has SIZE: a whole number and one of kb, mb, gb. Without it \
                     the trace stays in the ring buffer and is written at the end.",
                ),
        )
        .arg(
            option("app", "NAME", value_parser!(String), "Record the atrace events of this Android app")
                .short('a')
                .action(ArgAction::Append),
        );
    let events = Arg::new("events")
        .value_name("EVENT")
        .num_args(0..)
        .value_parser(value_parser!(String))
        .action(ArgAction::Append);
    match program {
        Program::Perfetto => command
            .arg(events.help("Kernel events like sched/sched_switch or 'irq/*', or atrace categories like gfx")),
        Program::Ferretto => command
            .arg(
                events
                    .help("Kernel events like sched/sched_switch or 'irq/*', or atrace categories like gfx")
                    .long_help(
                        "Kernel events: GROUP/NAME or GROUP:NAME, NAME alone, and patterns like 'irq/*' or 'sched:*wak*'; \
                         several with commas between. Atrace categories like gfx; a name that is both is a category.",
                    ),
            )
            .arg(
                option("event", "EVENT", value_parser!(String), "The same, as perf, trace-cmd and strace take them")
                    .short('e')
                    .action(ArgAction::Append)
                    .long_help(
                        "Kernel events as with perf record and trace-cmd record: GROUP:NAME, several with commas between, a \
                         GROUP alone for all of it. As with strace, trace=openat,read are system calls.",
                    ),
            )
            .arg(
                Arg::new("command")
                    .value_name("COMMAND")
                    .last(true)
                    .num_args(1..)
                    .value_parser(value_parser!(OsString))
                    .help("Record while this command runs, and exit with its status")
                    .long_help(
                        "Starts COMMAND with its arguments once all data sources have started, records until it has ended, and \
                         exits with its status: 128 and the number of the signal that ended it; 127 if there is no such \
                         command, 126 if it cannot be run. With -t the recording ends by then, and the command goes on. Ctrl-C is \
                         for the command; a second one ends the recording at once. COMMAND runs as the user who runs ferretto: \
                         under sudo, as root. Without events or a config, scheduling is recorded.",
                    ),
            ),
    }
}

fn service_flags(command: Command) -> Command {
    command
        .next_help_heading("Other")
        .arg(switch(
            "query",
            "Show the service's producers, data sources and sessions",
        ))
        .arg(switch("long", "With --query: do not shorten long values"))
        .arg(switch(
            "query-raw",
            "Like --query, but write the encoded TracingServiceState to stdout",
        ))
        .arg(
            Arg::new("version")
                .long("version")
                .action(ArgAction::Version)
                .help("Print the version"),
        )
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::Help)
                .help("Print help (more with --help)"),
        )
}

fn detached_and_clone_flags(command: Command) -> Command {
    command.next_help_heading("Detached sessions and clones").args([
        option("detach", "KEY", value_parser!(String), "Start the recording and leave it to the service").long_help(
            "Starts the recording and exits; the service goes on with it by itself. The config must set write_into_file.",
        ),
        option("attach", "KEY", value_parser!(String), "Take a detached recording back and wait for its end"),
        switch("stop", "With --attach: end the recording now"),
        option("is_detached", "KEY", value_parser!(String), "Exit with 0 if there is such a recording, 2 if not"),
        option("clone", "TSID", value_parser!(i64), "Write out a copy of a running recording (see --query)"),
        option("clone-by-name", "NAME", value_parser!(String), "The same, by its unique_session_name"),
        switch("clone-for-bugreport", "With --clone: without the recording's trace_filter"),
        switch("save-for-bugreport", "Write out the recording that a bug report wants").long_help(
            "Writes out a copy of the running recording with the highest bugreport_score, without its trace_filter, into \
             systrace.pftrace in the folder for temporary files ($TMPDIR, or /tmp), and prints the path.",
        ),
        switch("save-all-for-bugreport", "Write out all recordings that a bug report wants").long_help(
            "Writes out copies of all running recordings with a bugreport_score above 0, without their trace_filter, into \
             files of their bugreport_filename in the folder for temporary files ($TMPDIR, or /tmp).",
        ),
    ]
    .map(|arg| arg.hide_short_help(true)))
}

fn android_flags(command: Command) -> Command {
    command
        .next_help_heading("Android and statsd")
        .arg(
            option(
                "alert-id",
                "ID",
                value_parser!(i64),
                "Alert that led to this trace",
            )
            .hide_short_help(true),
        )
        .arg(
            option(
                "config-id",
                "ID",
                value_parser!(i64),
                "Config that led to this trace",
            )
            .hide_short_help(true),
        )
        .arg(
            option(
                "config-uid",
                "UID",
                value_parser!(i32),
                "User who registered that config",
            )
            .hide_short_help(true),
        )
        .arg(
            option(
                "subscription-id",
                "ID",
                value_parser!(i64),
                "Subscription that led to this trace",
            )
            .hide_short_help(true),
        )
        .arg(switch("upload", "Android only").hide_short_help(true))
        .arg(option("dropbox", "TAG", value_parser!(String), "Android only").hide_short_help(true))
        .arg(switch("no-guardrails", "Accepted and without effect, as upstream").hide_short_help(true))
        .arg(switch("reset-guardrails", "Accepted and without effect, as upstream").hide_short_help(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn parsed(line: &str) -> Arguments {
        try_parse(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn try_parse(line: &str) -> Result<Arguments, clap::Error> {
        parse(Program::Perfetto, line.split_whitespace().map(OsString::from))
    }

    fn refused(line: &str) -> ErrorKind {
        try_parse(line)
            .err()
            .unwrap_or_else(|| panic!("{line} was accepted"))
            .kind()
    }

    #[test]
    fn the_definition_is_consistent() {
        command(Program::Perfetto).debug_assert();
        command(Program::Ferretto).debug_assert();
    }

    #[test]
    fn every_spelling_of_a_value_is_the_same() {
        for line in [
            "-t 5s",
            "-t5s",
            "--time 5s",
            "--time=5s",
            "--ti=5s",
            "--ti 5s",
            "-dt5s",
            "-t 1s -t 5s",
        ] {
            assert_eq!(parsed(line).light.time.as_deref(), Some("5s"), "{line}");
        }
    }

    #[test]
    fn flags_and_events_mix_in_any_order() {
        let arguments = parsed("sched/sched_switch -o out -t 5s gfx -a one --app two -- -odd");
        assert_eq!(arguments.light.events, ["sched/sched_switch", "gfx", "-odd"]);
        assert_eq!(arguments.light.apps, ["one", "two"]);
        assert_eq!(arguments.out.as_deref(), Some("out".as_ref()));
    }

    #[test]
    fn a_dash_is_a_value_and_values_may_begin_with_one() {
        let arguments = parsed("-c - -o -");
        assert_eq!(arguments.configs, ["-"]);
        assert_eq!(arguments.out.as_deref(), Some("-".as_ref()));
        assert_eq!(parsed("--config-id -5").statsd.config_id, Some(-5));
        assert_eq!(parsed("-t -5s").light.time.as_deref(), Some("-5s"));
    }

    #[test]
    fn abbreviations_must_be_unambiguous() {
        assert!(parsed("--query").query);
        assert!(!parsed("--query").query_raw);
        assert!(parsed("--query-r").query_raw);
        assert_eq!(refused("--no"), ErrorKind::UnknownArgument);
        assert_eq!(refused("--bogus"), ErrorKind::UnknownArgument);
    }

    #[test]
    fn version_and_help_act_where_they_stand() {
        assert_eq!(refused("--version --bogus"), ErrorKind::DisplayVersion);
        assert_eq!(refused("--vers"), ErrorKind::DisplayVersion);
        assert_eq!(refused("--bogus --version"), ErrorKind::UnknownArgument);
        assert_eq!(refused("-h"), ErrorKind::DisplayHelp);
        assert_eq!(refused("-t"), ErrorKind::InvalidValue);
    }

    #[test]
    fn an_empty_attribute_reaches_the_plan_which_explains() {
        let words = [
            "--add-attribute",
            "",
            "--add-attribute=",
            "--add-attribute",
            "a=b=c",
        ];
        let arguments = parse(Program::Perfetto, words.map(OsString::from)).unwrap();
        assert_eq!(arguments.attributes, ["", "", "a=b=c"]);
        let notes = parsed("--add-note a=b --add-attribute c --add-n d --add e");
        assert_eq!(notes.attributes, ["a=b", "c", "d", "e"]);
    }

    #[test]
    fn short_help_fits_a_screen() {
        let help = command(Program::Ferretto)
            .term_width(100)
            .render_help()
            .to_string();
        assert!(
            help.lines().count() <= 48,
            "{} lines:\n{help}",
            help.lines().count()
        );
    }
}
