//! The destination of a trace, and the fate of a destination that cannot take it.

use crate::flags::Case;
use crate::flags::differences::{CUT, LEFTOVER, READER, REFUSED};

pub(crate) const CASES: &[Case] = &[
    Case::same(
        "a file that is there is replaced, unless that is forbidden",
        "echo earlier >trace; echo earlier >old
         perfetto -t 1ms -o trace; echo $?
         perfetto -t 1ms -o old --no-clobber; echo $?; cat old
         perfetto -t 1ms -o new --no-clobber; echo $?
         stat -c %a new",
        "0
         1
         earlier
         0
         600
         new: a trace
         old: something else
         trace: a trace",
    ),
    Case::same(
        "a link is followed",
        "ln -s target link; perfetto -t 1ms -o link",
        "link: a trace
         target: a trace",
    ),
    Case::same(
        "places where no file can be",
        "codes <<'-'
         perfetto -t 1ms
         perfetto -t 1ms -o ''
         perfetto -t 1ms -o .
         perfetto -t 1ms -o nofolder/trace
         perfetto -t 1ms -o /proc/trace
         perfetto -t 1ms -o /sys/kernel/trace
-",
        "1 perfetto -t 1ms
         1 perfetto -t 1ms -o ''
         1 perfetto -t 1ms -o .
         1 perfetto -t 1ms -o nofolder/trace
         1 perfetto -t 1ms -o /proc/trace
         1 perfetto -t 1ms -o /sys/kernel/trace",
    ),
    Case::same(
        "stdout: a file, a pipe, nothing",
        "perfetto -t 1ms -o - >file; perfetto -t 1ms -o - | cat >pipe; perfetto -t 1ms --out=- >/dev/null; echo $?
         perfetto -c stream.cfg -c short.cfg --txt -o - | cat >stream
         perfetto -t 1ms -o /dev/null; echo $?",
        "0
         0
         file: a trace
         pipe: a trace
         stream: a trace",
    ),
    Case::same(
        "a trace that is larger than a pipe",
        "perfetto -c short.cfg -c big.cfg --txt -o - | cat >pipe
         mkfifo fifo; cat fifo >out & perfetto -c short.cfg -c big.cfg --txt -o fifo; echo $?; wait",
        "0
         out: a trace
         pipe: a trace",
    ),
    Case::same(
        "a reader that comes late",
        "mkfifo fifo; perfetto -c short.cfg -c big.cfg --txt -o fifo 2>said & until_said Connected; until_started 0; cat fifo >out; wait $!; echo $?",
        "0
         out: a trace",
    ),
    Case::differs(
        "a reader that does not come is told of, and two signals end the wait",
        READER,
        "mkfifo fifo; perfetto -t 1ms -o fifo 2>said & pid=$!
         until grep -q 'waiting for somebody to read fifo' said || [ ! -e /proc/$pid/exe ]; do :; done
         while [ -e /proc/$pid/exe ]; do kill -TERM $pid; sleep 0.2; done; wait $pid; echo $?",
        "1",
        "0",
    ),
    Case::differs(
        "a reader that goes away",
        READER,
        "(perfetto -c short.cfg -c big.cfg --txt -o - ; echo $? >code.cfg) | head -c 10 >/dev/null; cat code.cfg",
        "1",
        "141",
    ),
    Case::differs(
        "a reader of a FIFO that goes away",
        READER,
        "mkfifo fifo; head -c 10 fifo >/dev/null & perfetto -c short.cfg -c big.cfg --txt -o fifo & pid=$!
         n=0; while [ -e /proc/$pid/exe ] && [ $SIDE-$n != upstream-100 ]; do n=$((n + 1)); sleep 0.01; done
         runs $pid; while [ -e /proc/$pid/exe ]; do kill -TERM $pid; until_taken $pid; done; wait $pid; echo $?",
        "gone
         1",
        "runs
         143",
    ),
    Case::differs(
        "a device that is full",
        CUT,
        "perfetto -t 1ms -o /dev/full; echo $?; perfetto -c short.cfg -c big.cfg --txt -o /dev/full",
        "1
         exit status: 1",
        "0",
    ),
    Case::differs(
        "a disk that is full",
        CUT,
        "mkdir disk; mount -t tmpfs -o size=8k none disk 2>/dev/null || { echo cannot mount a small disk; exit 77; }
         perfetto -c short.cfg -c big.cfg --txt -o disk/trace; echo $?; [ -s disk/trace ] && echo kept; rm disk/trace
         perfetto -c stream.cfg -c short.cfg -c big.cfg --txt -o disk/stream; echo $?
         umount -l disk",
        "1
         kept
         1",
        "0
         kept
         0",
    ),
    Case::differs(
        "a limit for the size of files",
        CUT,
        "(ulimit -f 8; perfetto -c short.cfg -c big.cfg --txt -o trace); echo $?",
        "1
         trace: packets",
        "153
         trace: something else",
    ),
    Case::differs(
        "a config that the service refuses costs no earlier trace",
        REFUSED,
        "echo earlier >trace; perfetto -c refused.cfg --txt -o trace",
        "exit status: 1
         trace: something else",
        "",
    ),
    Case::differs(
        "without a service there is no file, and an earlier one stays",
        LEFTOVER,
        "echo earlier >old; export PERFETTO_CONSUMER_SOCK_NAME=$PWD/nobody
         perfetto -t 1ms -o trace; echo $?; perfetto -t 1ms -o old; echo $?",
        "1
         1
         old: something else",
        "1
         1
         old: empty
         trace: empty",
    ),
    Case::differs(
        "a service that dies",
        REFUSED,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced 2>/dev/null & traced=$!; until_sessions 0
         perfetto -c endless.cfg --txt -o trace & until_started 1; kill -KILL $traced; wait $!; echo $?",
        "1",
        "0",
    ),
    Case::same(
        "a file that the service opens",
        "printf 'write_into_file: true output_path: \"%s/trace\"' \"$PWD\" >path.cfg; perfetto -c path.cfg -c short.cfg --txt; echo $?",
        "0
         trace: a trace",
    ),
];
