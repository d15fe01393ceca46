//! Recordings: light flags, configs, and notes in the trace; and actions of the command line without a recording.

use crate::flags::Case;
use crate::flags::differences::{CRASH, EARLY, EQUALS, MALFORMED, NEWER, NOTE, NUMBER, REFUSED};

pub(crate) const CASES: &[Case] = &[
    Case::same(
        "how long and where to",
        "for words in '-t 10ms -o trace' '-t10ms -otrace' '--time 10ms --out trace' '--time=10ms --out=trace' '--ti 10ms --ou trace' \
         '-o nothing -t 9h -o trace -t 10ms'; do
             perfetto $words 2>said; echo $?; wrote trace; rm trace
         done",
        "0
         wrote trace
         0
         wrote trace
         0
         wrote trace
         0
         wrote trace
         0
         wrote trace
         0
         wrote trace",
    ),
    Case::same(
        "the first line that scripts wait for",
        "perfetto -t 1200ms -o trace 2>said; grep -o 'Connected to the Perfetto traced service, TTL: 2s' said",
        "Connected to the Perfetto traced service, TTL: 2s
         trace: a trace",
    ),
    Case::ours(
        "a recording that is quiet",
        "upstream's has no such flag",
        "for quiet in -q --quiet; do perfetto $quiet -c short.cfg --txt -o trace 2>said; echo $?; wc -l <said; done",
        "0
         0
         0
         0
         trace: a trace",
    ),
    Case::same(
        "what upstream's strtoull takes for a number",
        "perfetto -t ' +10ms' -b +100k -o trace",
        "trace: a trace",
    ),
    Case::same(
        "the light flags",
        "perfetto -t 1ms -b 2mb -a one -a two -o short gfx disk sched/sched_switch
         perfetto --time 1ms --buffer 100k --app one -o long 'irq/*' hyp
         perfetto -t 1ms -b 1m -s 1gb -o file 2>said; grep -o 'Trace written into the output file' said
         perfetto -t 1ms --size=100k -o again -- -odd",
        "Trace written into the output file
         again: a trace
         file: a trace
         long: a trace
         short: a trace",
    ),
    Case::same(
        "quantities that are none",
        "codes <<'-'
         perfetto -o trace -t -
         perfetto -o trace -t 5
         perfetto -o trace -t 5x
         perfetto -o trace -t 10ms -b -
         perfetto -o trace -t 10ms -b 5
         perfetto -o trace -t 10ms -b ly
         perfetto -o trace -t 10ms -s -
         perfetto -o trace -t 10ms -s 1s
-",
        "1 perfetto -o trace -t -
         1 perfetto -o trace -t 5
         1 perfetto -o trace -t 5x
         1 perfetto -o trace -t 10ms -b -
         1 perfetto -o trace -t 10ms -b 5
         1 perfetto -o trace -t 10ms -b ly
         1 perfetto -o trace -t 10ms -s -
         1 perfetto -o trace -t 10ms -s 1s",
    ),
    Case::differs(
        "quantities that upstream wraps around",
        NUMBER,
        "codes <<'-'
         perfetto -o trace -t -10ms
         perfetto -o trace -t 99999999999h
-",
        "1 perfetto -o trace -t -10ms
         1 perfetto -o trace -t 99999999999h",
        "0 perfetto -o trace -t -10ms
         0 perfetto -o trace -t 99999999999h",
    ),
    Case::same(
        "configs from a file, from stdin, encoded, and several",
        "perfetto -c short.cfg --txt -o trace
         perfetto --config=short.cfg --txt -o long
         perfetto -c - --txt -o stdin <short.cfg
         perfetto -c encoded.cfg -o encoded
         perfetto -c - -o encoded-stdin <encoded.cfg
         perfetto -c endless.cfg -c short.cfg --txt -o both
         perfetto -c short.cfg -c named.cfg --txt -o both-named
         perfetto -c encoded.cfg -c encoded.cfg -o twice
         perfetto -c named.cfg -c - --txt -o not-named <short.cfg
         perfetto -c :test -c encoded.cfg -o test
         perfetto -c /dev/null -t 10ms -o light",
        "both: a trace
         both-named: a trace
         encoded: a trace
         encoded-stdin: a trace
         light: a trace
         long: a trace
         not-named: a trace
         stdin: a trace
         test: a trace
         trace: a trace
         twice: a trace",
    ),
    Case::same(
        "configs that cannot be used",
        "printf 'cmd_trace_start_delay { min_delay_ms: 5 }' >half.cfg
         printf 'android_report_config { reporter_service_package: \"x\" }' >upload.cfg
         printf 'incident_report_config { destination_package: \"x\" }' >incident.cfg
         printf 'write_into_file: true output_path: \"there.cfg\"' >there.cfg
         codes <<'-'
         perfetto -o trace
         perfetto -c nofile.cfg -o trace
         perfetto -c . -o trace
         perfetto -c /dev/null -o trace
         perfetto -c - -o trace
         perfetto -c short.cfg -o trace
         perfetto -c bad.cfg --txt -o trace
         perfetto -c short.cfg -c bad.cfg --txt -o trace
         perfetto -c short.cfg --txt
         perfetto -c short.cfg --txt -t 10ms -o trace
         perfetto -c :test -t 10ms -o trace
         perfetto -c half.cfg --txt -o trace
         perfetto -c upload.cfg --txt -o trace
         perfetto -c incident.cfg --txt -o trace
         perfetto -c there.cfg --txt
         perfetto -c there.cfg --txt -o trace
         perfetto -c short.cfg --txt --txt-lossy -o trace
-",
        "1 perfetto -o trace
         1 perfetto -c nofile.cfg -o trace
         1 perfetto -c . -o trace
         1 perfetto -c /dev/null -o trace
         1 perfetto -c - -o trace
         1 perfetto -c short.cfg -o trace
         1 perfetto -c bad.cfg --txt -o trace
         1 perfetto -c short.cfg -c bad.cfg --txt -o trace
         1 perfetto -c short.cfg --txt
         1 perfetto -c short.cfg --txt -t 10ms -o trace
         1 perfetto -c :test -t 10ms -o trace
         1 perfetto -c half.cfg --txt -o trace
         1 perfetto -c upload.cfg --txt -o trace
         1 perfetto -c incident.cfg --txt -o trace
         1 perfetto -c there.cfg --txt
         1 perfetto -c there.cfg --txt -o trace
         1 perfetto -c short.cfg --txt --txt-lossy -o trace",
    ),
    Case::differs(
        "names of kernel events that are none",
        MALFORMED,
        "printf 'duration_ms: 1 buffers { size_kb: 64 } data_sources { config { name: \"linux.ftrace\" ftrace_config { ftrace_events: \"*/*\" } } }' >star.cfg
         codes <<'-'
         perfetto -o trace -t 1ms 'sched/*,irq/*'
         perfetto -o trace -t 1ms sched/sched_switch '*/*'
         perfetto -o trace -t 1ms sched/
         perfetto -o trace -c star.cfg --txt
-",
        "1 perfetto -o trace -t 1ms 'sched/*,irq/*'
         1 perfetto -o trace -t 1ms sched/sched_switch '*/*'
         1 perfetto -o trace -t 1ms sched/
         1 perfetto -o trace -c star.cfg --txt",
        "0 perfetto -o trace -t 1ms 'sched/*,irq/*'
         0 perfetto -o trace -t 1ms sched/sched_switch '*/*'
         0 perfetto -o trace -t 1ms sched/
         0 perfetto -o trace -c star.cfg --txt
         trace: a trace",
    ),
    Case::differs(
        "upstream's name for the config of a snapshot, which is none on a command line",
        CRASH,
        "perfetto -c :mem -o trace",
        "exit status: 1",
        "exit status: 132",
    ),
    Case::differs(
        "a config with fields of a later version",
        NEWER,
        "cat short.cfg bad.cfg >later.cfg; perfetto -c later.cfg --txt-lossy -o trace",
        "trace: a trace",
        "exit status: 1",
    ),
    Case::differs(
        "attributes",
        NEWER,
        "perfetto -t 1ms -o trace --add-attribute a=b --add-attribute k=a=b --add-attribute empty= --add-attribute none",
        "trace: a trace",
        "exit status: 1",
    ),
    Case {
        about: "attributes by their name up to v56",
        script: "perfetto -t 1ms -o trace --add-note a=b --add-note k=a=b --add-note empty= --add-note none",
        seen: "trace: a trace",
        upstream: crate::flags::Upstream::OtherConfig(NOTE),
    },
    Case::same(
        "attributes without a key",
        "perfetto -t 1ms -o trace --add-note ''; echo $?; perfetto -t 1ms -o trace --add-note '=v'; echo $?
         perfetto -t 1ms -o trace --add-attribute ''; echo $?; perfetto -t 1ms -o trace --add-attribute '=v'; echo $?",
        "1
         1
         1
         1",
    ),
    Case::same(
        "what statsd wants noted",
        "perfetto -t 1ms -o trace --alert-id 1 --config-id -2 --config-uid 3 --subscription-id 4
         perfetto -t 1ms -o max --alert-id=9223372036854775807",
        "max: a trace
         trace: a trace",
    ),
    Case::differs(
        "ids that are no numbers",
        NUMBER,
        "codes <<'-'
         perfetto -t 1ms -o trace --alert-id -
         perfetto -t 1ms -o trace --config-id abc
         perfetto -t 1ms -o trace --config-uid 5abc
         perfetto -t 1ms -o trace --subscription-id ''
-",
        "1 perfetto -t 1ms -o trace --alert-id -
         1 perfetto -t 1ms -o trace --config-id abc
         1 perfetto -t 1ms -o trace --config-uid 5abc
         1 perfetto -t 1ms -o trace --subscription-id ''",
        "0 perfetto -t 1ms -o trace --alert-id -
         0 perfetto -t 1ms -o trace --config-id abc
         0 perfetto -t 1ms -o trace --config-uid 5abc
         0 perfetto -t 1ms -o trace --subscription-id ''
         trace: a trace",
    ),
    Case::same(
        "flags for Android",
        "codes <<'-'
         perfetto -t 1ms -o trace --no-guardrails
         perfetto --reset-guardrails
         perfetto -t 1ms --upload
         perfetto -t 1ms --dropbox perfetto
-",
        "0 perfetto -t 1ms -o trace --no-guardrails
         0 perfetto --reset-guardrails
         1 perfetto -t 1ms --upload
         1 perfetto -t 1ms --dropbox perfetto
         trace: a trace",
    ),
    Case::same(
        "help is an error of whoever asks, on stderr",
        "for word in '' -h --help; do perfetto $word 2>said; echo $?; grep -c Usage: said; done",
        "1
         1
         1
         1
         1
         1",
    ),
    Case::same(
        "the version, for scripts",
        "perfetto --version | grep -o '^Perfetto v'; perfetto --vers --bogus | wc -l",
        "Perfetto v
         1",
    ),
    Case::same(
        "words that are no flags",
        "codes <<'-'
         perfetto --bogus
         perfetto -t 1ms -o trace --no
         perfetto -o
         perfetto -t 1ms -o trace --background=1
-",
        "1 perfetto --bogus
         1 perfetto -t 1ms -o trace --no
         1 perfetto -o
         1 perfetto -t 1ms -o trace --background=1",
    ),
    Case::differs(
        "what answers before the rest of the line is read",
        EARLY,
        "codes <<'-'
         perfetto --reset-guardrails --bogus
         perfetto --upload --version
         perfetto -c nofile --version
-",
        "1 perfetto --reset-guardrails --bogus
         0 perfetto --upload --version
         0 perfetto -c nofile --version",
        "0 perfetto --reset-guardrails --bogus
         1 perfetto --upload --version
         1 perfetto -c nofile --version",
    ),
    Case::differs(
        "= after a short flag",
        EQUALS,
        "perfetto -t 1ms -o=trace",
        "trace: a trace",
        "=trace: a trace",
    ),
    Case::differs(
        "a config that the service refuses",
        REFUSED,
        "perfetto -c refused.cfg --txt -o trace 2>said; echo $?; grep -c 'Service error: ' said",
        "1
         1",
        "0
         1",
    ),
];
