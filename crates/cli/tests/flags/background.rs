//! Recording in the background, reports of the start, and signals.

use crate::flags::Case;
use crate::flags::differences::{CRASH, HANGUP, LEFTOVER, NUMBER, REFUSED, STDERR};

pub(crate) const CASES: &[Case] = &[
    Case::same(
        "in the background, with the path that was typed",
        "for word in -d --background; do
             pid=$(perfetto $word -t 10ms -o trace); echo $?; is_pid $pid; until_file trace; until_gone $pid; cat trace >$word
         done; rm trace",
        "0
         a process id
         0
         a process id
         --background: a trace
         -d: a trace",
    ),
    Case::same(
        "in the background once all has started, until a signal",
        "for word in -D --background-wait; do
             pid=$(perfetto $word -c endless.cfg --txt -o trace); echo $?; runs $pid
             until_started 1; kill -TERM $pid; until_gone $pid; cat trace >$word
         done; rm trace",
        "0
         runs
         0
         runs
         --background-wait: a trace
         -D: a trace",
    ),
    Case::differs(
        "in the background, and refused",
        REFUSED,
        "perfetto -D -c refused.cfg --txt -o trace >pid.cfg 2>said; echo $?; is_pid $(cat pid.cfg)",
        "1
         a process id",
        "0
         a process id
         trace: empty",
    ),
    Case::differs(
        "in the background without a service",
        LEFTOVER,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/nobody
         perfetto -D -t 1ms -o trace >/dev/null; echo $?; perfetto -d -t 1ms -o later >/dev/null; echo $?; rm -f later",
        "1
         0",
        "1
         0
         trace: empty",
    ),
    Case::same(
        "a byte once all has started",
        "{ perfetto --notify-fd 3 -t 10ms -o trace 3>&1 >/dev/null; } | od -An -tu1
         { perfetto --notify-fd=1 -t 10ms -o trace; } | od -An -tu1
         { perfetto --notify-fd 0 -t 10ms -o trace 0>&1 >/dev/null; } | od -An -tu1
         { perfetto -D --notify-fd 3 -t 10ms -o later 3>&1 >pid.cfg; } | od -An -tu1; until_gone $(cat pid.cfg)",
        "0
         0
         0
         0
         later: a trace
         trace: a trace",
    ),
    Case::differs(
        "another byte when it is refused",
        REFUSED,
        "{ perfetto --notify-fd 3 -c refused.cfg --txt -o trace 3>&1 >/dev/null; } | od -An -tu1",
        "1",
        "0",
    ),
    Case::differs(
        "a descriptor that is not open",
        CRASH,
        "perfetto --notify-fd 77 -t 10ms -o trace; echo $?; rm -f trace",
        "1",
        "132",
    ),
    Case::differs(
        "a descriptor that is no number",
        NUMBER,
        "perfetto --notify-fd - -t 1ms -o trace </dev/null; echo $?",
        "1",
        "0
         trace: a trace",
    ),
    Case::differs(
        "stderr is for people",
        STDERR,
        "perfetto --notify-fd 2 -t 1ms -o trace; echo $?",
        "1",
        "0
         trace: a trace",
    ),
    Case::same(
        "signals end a recording and keep the data",
        "for signal in INT TERM; do
             perfetto -c endless.cfg --txt -o $signal & until_started 1; kill -$signal $!; wait $!; echo $?
         done",
        "0
         0
         INT: a trace
         TERM: a trace",
    ),
    Case::ours(
        "timeout sends its signal twice, and keeps the data",
        "it dies of the second one, unless both come at once",
        // SIGALRM is the signal with which `timeout` ends a program whose time is over.
        "timeout 600 perfetto -c endless.cfg --txt -o trace & until_started 1; kill -ALRM $!; wait $!; echo $?",
        "124
         trace: a trace",
    ),
    Case::differs(
        "so does the end of the terminal",
        HANGUP,
        "perfetto -c endless.cfg --txt -o trace & until_started 1; kill -HUP $!; wait $! 2>/dev/null; echo $?",
        "0
         trace: a trace",
        "129
         trace: empty",
    ),
    Case::same(
        "but not under nohup",
        "nohup perfetto -c endless.cfg --txt -o trace >/dev/null & until_started 1; kill -HUP $!; until_taken $!; runs $!
         kill -TERM $!; wait $!; echo $?",
        "runs
         0
         trace: a trace",
    ),
    Case::differs(
        "a second signal gives up",
        LEFTOVER,
        "perfetto -c endless.cfg --txt -o trace 2>said & until_started 1; kill -STOP $TRACED
         kill -INT $!; until_ending; kill -INT $!; wait $!; echo $?; kill -CONT $TRACED",
        "130",
        "130
         trace: empty",
    ),
    Case::same(
        "a signal before the service answers",
        "kill -STOP $TRACED; perfetto -c endless.cfg --txt -o trace 2>said & pid=$!
         until_catches $pid; kill -TERM $pid; until_taken $pid; kill -TERM $pid 2>/dev/null; wait $pid; echo $?
         kill -CONT $TRACED; rm -f trace",
        "143",
    ),
];
