//! Detached sessions, clones, snapshots, and queries of the service's state.

use crate::flags::Case;
use crate::flags::differences::{BUGREPORT, COLOUR, CRASH, IGNORED, NO_SERVICE, NUMBER, REFUSED, SNAPSHOT};

/// Detached sessions and clones.
pub(crate) const CASES: &[Case] = &[
    Case::same(
        "a recording that is detached, asked for, and stopped",
        "perfetto -c stream.cfg --txt -o trace --detach key; echo $?
         perfetto --is_detached key; echo $?; perfetto --is_detached=key; echo $?
         perfetto --attach key --stop; echo $?
         perfetto --is_detached key; echo $?; perfetto --attach key 2>said; echo $?",
        "0
         0
         0
         0
         2
         2
         trace: a trace",
    ),
    Case::same(
        "a recording that is detached, and followed to its end or a signal",
        "perfetto -c stream.cfg --txt -o trace --detach=key; follow key; kill -INT $pid; wait $pid; echo $?
         sed 's/CLONE_SNAPSHOT/START_TRACING/' snapshots.cfg >start.cfg
         perfetto -c stream.cfg -c start.cfg --txt -o ended --detach key; follow key
         perfetto -c activate.cfg --txt; wait $pid; echo $?",
        "0
         0
         ended: a trace
         trace: a trace",
    ),
    Case::differs(
        "a recording that has to go for an exclusive one",
        REFUSED,
        "printf ' exclusive_prio: 1\\n' >first.cfg
         perfetto -c endless.cfg --txt -o trace 2>said & pid=$!; until_started 1
         perfetto -c short.cfg -c first.cfg --txt -o exclusive; echo $?; wait $pid; echo $?; grep -o 'Service error: ' said",
        "0
         1
         Service error:
         exclusive: a trace",
        "0
         0
         Service error:
         exclusive: a trace",
    ),
    Case::same(
        "what does not go with detaching",
        "codes <<'-'
         perfetto --detach k -t 1ms -o trace
         perfetto --detach k -d -s 1mb -t 1ms -o trace
         perfetto --detach k --attach k
         perfetto --attach k -o trace
         perfetto --attach k -t 1ms
         perfetto --attach k -c short.cfg --txt
         perfetto --stop
         perfetto --stop -t 1ms -o trace
         perfetto --clone 3 --detach k -o trace
-",
        "1 perfetto --detach k -t 1ms -o trace
         1 perfetto --detach k -d -s 1mb -t 1ms -o trace
         1 perfetto --detach k --attach k
         1 perfetto --attach k -o trace
         1 perfetto --attach k -t 1ms
         1 perfetto --attach k -c short.cfg --txt
         1 perfetto --stop
         1 perfetto --stop -t 1ms -o trace
         1 perfetto --clone 3 --detach k -o trace",
    ),
    Case::differs(
        "an empty key",
        CRASH,
        "codes <<'-'
         perfetto --detach '' -t 1ms -s 1mb -o trace
         perfetto --attach ''
         perfetto --is_detached ''
-",
        "1 perfetto --detach '' -t 1ms -s 1mb -o trace
         1 perfetto --attach ''
         1 perfetto --is_detached ''",
        "132 perfetto --detach '' -t 1ms -s 1mb -o trace
         132 perfetto --attach ''
         132 perfetto --is_detached ''",
    ),
    Case::differs(
        "attaching and cloning at once",
        IGNORED,
        "perfetto --attach k --clone 3",
        "exit status: 1",
        "exit status: 2",
    ),
    Case::same(
        "clones, by id and by name, while the original goes on",
        "perfetto -c named.cfg --txt -o original & until_started 1
         id=$(perfetto --query | sed -n 's/^\\([0-9]*\\) .* the name$/\\1/p')
         perfetto --clone $id -o by-id 2>said; echo $?; wrote by-id
         perfetto --clone-by-name 'the name' -o by-name; echo $?
         perfetto --clone-by-name='the name' --clone-for-bugreport -o unfiltered; echo $?
         perfetto --clone $id -c /dev/null -o with-config; echo $?
         runs $!; kill -TERM $!; wait $!; echo $?",
        "0
         wrote by-id
         0
         0
         0
         runs
         0
         by-id: a trace
         by-name: a trace
         original: a trace
         unfiltered: a trace
         with-config: a trace",
    ),
    Case::same(
        "a clone of what the service writes",
        "perfetto -c stream.cfg -c named.cfg --txt -o original & until_started 1
         perfetto --clone-by-name 'the name' -o clone 2>said; echo $?; wrote clone
         kill -TERM $!; wait $!",
        "0
         wrote clone
         clone: a trace
         original: a trace",
    ),
    Case::differs(
        "a session that is not there",
        REFUSED,
        "perfetto --clone 4711 -o trace; echo $?; perfetto --clone-by-name nobody -o trace; echo $?",
        "1
         1",
        "0
         0",
    ),
    Case::differs(
        "an id that is no number",
        NUMBER,
        "perfetto --clone - -o trace; echo $?; perfetto --clone abc -o trace; echo $?",
        "1
         1",
        "0
         0",
    ),
    Case::same(
        "what does not go with cloning",
        "codes <<'-'
         perfetto --clone 3
         perfetto --clone 3 --clone-by-name n -o trace
         perfetto --clone-for-bugreport -t 1ms -o trace
         perfetto --clone-by-name '' -o trace
-",
        "1 perfetto --clone 3
         1 perfetto --clone 3 --clone-by-name n -o trace
         1 perfetto --clone-for-bugreport -t 1ms -o trace
         1 perfetto --clone-by-name '' -o trace",
    ),
    Case::same(
        "what a bug report wants, in the folder for temporary files",
        "perfetto -c bugreport.cfg --txt -o original & until_started 1
         perfetto --save-for-bugreport 2>said; echo $?; grep -c \"Wrote [0-9]* bytes into $PWD/systrace.pftrace\" said
         mv systrace.pftrace one
         perfetto --save-all-for-bugreport; echo $?
         kill -TERM $!; wait $!",
        "0
         1
         0
         one: a trace
         original: a trace
         systrace.pftrace: a trace",
    ),
    Case::differs(
        "a bug report that finds nothing",
        REFUSED,
        "perfetto --save-for-bugreport; echo $?",
        "1",
        "0",
    ),
    Case::same(
        "all of nothing for a bug report",
        "perfetto --save-all-for-bugreport; echo $?",
        "0",
    ),
    Case::same(
        "what does not go with bug reports",
        "codes <<'-'
         perfetto --save-for-bugreport -D
         perfetto --save-for-bugreport -t 1ms
         perfetto --save-for-bugreport --query
         perfetto --save-for-bugreport --attach k
         perfetto --save-for-bugreport --detach k
         perfetto --save-all-for-bugreport -D
         perfetto --save-all-for-bugreport -o trace
-",
        "1 perfetto --save-for-bugreport -D
         1 perfetto --save-for-bugreport -t 1ms
         1 perfetto --save-for-bugreport --query
         1 perfetto --save-for-bugreport --attach k
         1 perfetto --save-for-bugreport --detach k
         1 perfetto --save-all-for-bugreport -D
         1 perfetto --save-all-for-bugreport -o trace",
    ),
    Case::differs(
        "a bug report with a path",
        BUGREPORT,
        "perfetto -c bugreport.cfg --txt -o original & until_started 1
         perfetto --save-for-bugreport -o report; echo $?; kill -TERM $!; wait $!",
        "0
         original: a trace
         report: a trace",
        "1
         original: a trace",
    ),
];

/// Snapshots and other triggers.
pub(crate) const TRIGGERS: &[Case] = &[
    Case::same(
        "snapshots beside the trace, which stays empty",
        "perfetto -c snapshots.cfg --txt -o trace & until_started 1
         perfetto -c activate.cfg --txt; echo $?; until_file trace.0; until_sessions 1
         perfetto -c activate.cfg --txt -o untouched; until_file trace.1; until_sessions 1
         kill -TERM $!; wait $!; echo $?",
        "0
         0
         trace: empty
         trace.0: a trace
         trace.1: a trace",
    ),
    Case::same(
        "snapshots of a recording in the background whose output is no file",
        "mkfifo fifo; pid=$(perfetto -d -c snapshots.cfg --txt -o $PWD/fifo); until_started 1
         perfetto -c activate.cfg --txt; until_file fifo.0; until_sessions 1; kill -TERM $pid; until_gone $pid",
        "fifo.0: a trace",
    ),
    Case::ours(
        "snapshots in the background go where the trace goes",
        "it would put them into the root folder: a path that begins nowhere is looked up again after it went there",
        "pid=$(perfetto -d -c snapshots.cfg --txt -o trace); until_started 1
         perfetto -c activate.cfg --txt; until_file trace.0; until_sessions 1; kill -TERM $pid; until_gone $pid",
        "trace: empty
         trace.0: a trace",
    ),
    Case::differs(
        "a trigger without a service",
        NO_SERVICE,
        "export PERFETTO_PRODUCER_SOCK_NAME=$PWD/nobody; limit=100; [ $SIDE = ours ] || limit=5; timeout $limit perfetto -c activate.cfg --txt; echo $?",
        "1",
        "124",
    ),
    Case::differs(
        "a snapshot that is given up",
        SNAPSHOT,
        "mkfifo trace.0; perfetto -c big.cfg -c snapshots.cfg --txt -o trace 2>said & pid=$!; until_started 1
         { head -c 10; echo >read.cfg; exec sleep 600; } <trace.0 >/dev/null & reader=$!; perfetto -c activate.cfg --txt
         until_file read.cfg; kill -INT $pid; until_ending; kill -INT $pid; wait $pid; echo $?; kill $reader; grep -c trace.0 said",
        "130
         1",
        "130
         0
         exit status: 1
         trace: empty",
    ),
    Case::same(
        "what a recording waits for is not told before the service has taken the config",
        "perfetto -c refused.cfg -c snapshots.cfg --txt -o trace 2>said; grep -c 'is activated' said; true",
        "0",
    ),
    Case::ours(
        "what a recording waits for",
        "it does not tell",
        "perfetto -c snapshots.cfg --txt -o trace 2>said & until_said 'a snapshot is written whenever a trigger is activated (now)'
         kill -TERM $!; wait $!; echo $?
         sed 's/CLONE_SNAPSHOT/START_TRACING/' snapshots.cfg >start.cfg
         perfetto -c start.cfg --txt -o start 2>said & until_said 'recording starts when a trigger is activated (now)'
         kill -TERM $!; wait $!; echo $?",
        "0
         0
         start: empty
         trace: empty",
    ),
    Case::same(
        "triggers instead of a recording",
        "echo earlier >trace; perfetto -c activate.cfg --txt -o trace; echo $?; perfetto -c activate.cfg --txt; echo $?
         pid=$(perfetto -d -c activate.cfg --txt); is_pid $pid; until_gone $pid",
        "0
         0
         a process id
         trace: something else",
    ),
];

/// Queries of the service's state.
pub(crate) const QUERIES: &[Case] = &[
    Case::same(
        "what the service has, for people and for programs",
        "perfetto -c named.cfg --txt -o original & until_started 1
         perfetto --query-raw >raw.same
         perfetto --query | sed \"s/$(printf '\\033')[^m]*m//g\" >table.same
         perfetto --query --long | sed \"s/$(printf '\\033')[^m]*m//g\" >long.same
         kill -TERM $!; wait $!; sed -i 's/^[0-9].* the name/the name/' table.same long.same; rm original; : >raw.same
         perfetto --query --clone 3 --txt --no-clobber >/dev/null; echo $?",
        "0
         long.same: something else
         raw.same: empty
         table.same: something else",
    ),
    Case::same(
        "the encoded state",
        // Upstream's program decodes the state and encodes the fields in another order.
        "perfetto --query-raw >raw; perfetto --query-raw --long | cmp - raw; echo $?",
        "0
         raw: something else",
    ),
    Case::differs(
        "colours on a pipe",
        COLOUR,
        "perfetto --query | grep -c \"$(printf '\\033')\"",
        "0
         exit status: 1",
        "1",
    ),
    Case::same(
        "what does not go with asking",
        "codes <<'-'
         perfetto --query -d
         perfetto --query -D
         perfetto --query --detach k
         perfetto --query --attach k
         perfetto --query -t 1ms
         perfetto --query -c short.cfg
         perfetto --query -o trace
         perfetto --query-raw -o trace
         perfetto --long
         PERFETTO_CONSUMER_SOCK_NAME=$PWD/nobody perfetto --query
-",
        "1 perfetto --query -d
         1 perfetto --query -D
         1 perfetto --query --detach k
         1 perfetto --query --attach k
         1 perfetto --query -t 1ms
         1 perfetto --query -c short.cfg
         1 perfetto --query -o trace
         1 perfetto --query-raw -o trace
         1 perfetto --long
         1 PERFETTO_CONSUMER_SOCK_NAME=$PWD/nobody perfetto --query",
    ),
];
