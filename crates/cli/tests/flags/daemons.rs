//! The daemons, and triggers.

use crate::flags::Case;
use crate::flags::differences::{
    CRASH, DAEMON_END, DAEMON_HELP, DAEMON_START, LEFT_SOCKETS, NEWER, OCCUPIED,
};

/// The reference lacks this program.
const NO_TRIGGER_PERFETTO: &str = "the reference comes without trigger_perfetto";

pub(crate) const TRIGGER_PERFETTO: &[Case] = &[
    Case::ours(
        "exit codes of trigger_perfetto",
        NO_TRIGGER_PERFETTO,
        "codes <<'-'
         trigger_perfetto
         trigger_perfetto -h
         trigger_perfetto --help
         trigger_perfetto now
         trigger_perfetto now then
         trigger_perfetto --of-a-later-version now
-",
        "1 trigger_perfetto
         1 trigger_perfetto -h
         1 trigger_perfetto --help
         0 trigger_perfetto now
         0 trigger_perfetto now then
         0 trigger_perfetto --of-a-later-version now",
    ),
    Case::ours(
        "a trigger takes a snapshot",
        NO_TRIGGER_PERFETTO,
        "perfetto -c snapshots.cfg --txt -o trace & until_started 1
         trigger_perfetto now; until_file trace.0; until_sessions 1; kill -TERM $!; wait $!; echo $?",
        "0
         trace: empty
         trace.0: a trace",
    ),
];

/// The reference lacks this program too.
const NO_WEBSOCKET_BRIDGE: &str = "the reference comes without websocket_bridge";

pub(crate) const WEBSOCKET_BRIDGE: &[Case] = &[
    Case::ours(
        "exit codes of websocket_bridge",
        NO_WEBSOCKET_BRIDGE,
        "codes <<'-'
         websocket_bridge -h
         websocket_bridge --help
         websocket_bridge --bogus
         websocket_bridge --port
         ADB_SERVER_SOCKET=nonsense websocket_bridge --port 0
-",
        "0 websocket_bridge -h
         0 websocket_bridge --help
         1 websocket_bridge --bogus
         1 websocket_bridge --port
         1 ADB_SERVER_SOCKET=nonsense websocket_bridge --port 0",
    ),
    Case::ours(
        "a bridge that is ended",
        NO_WEBSOCKET_BRIDGE,
        "websocket_bridge --port 0 --http-additional-cors-origins http://localhost:8080,http://localhost:8081 2>said & until_said 'ready on port'
         kill -TERM $!; wait $!; echo $?",
        "0",
    ),
];

pub(crate) const CASES: &[Case] = &[
    Case::same(
        "versions of the daemons, and what is no flag of theirs",
        "traced --version | grep -o '^Perfetto v'; traced_probes --version | grep -o '^Perfetto v'
         codes <<'-'
         traced --bogus
         traced_probes --bogus
-",
        "Perfetto v
         Perfetto v
         1 traced --bogus
         1 traced_probes --bogus",
    ),
    Case::same(
        "daemons in the background print their process ids, and end by them",
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced=$(traced --background); echo $?; is_pid $traced; until_sessions 0
         probes=$(traced_probes --background); echo $?; is_pid $probes
         until \"$OURS\" --query | grep -q perfetto.traced_probes; do :; done
         kill -TERM $probes; until_gone $probes; kill -TERM $traced; until_gone $traced",
        "0
         a process id
         0
         a process id",
    ),
    Case::differs(
        "a daemon that cannot listen",
        DAEMON_START,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/nofolder/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/nofolder/producer
         traced --background >pid.cfg; echo $?; wc -c <pid.cfg | sed 's/^[1-9].*/a process id/'",
        "1
         0",
        "0
         a process id",
    ),
    Case::same(
        "sockets of groups",
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         [ \"$(id -u)\" = 0 ] || { echo only root may give sockets away; exit 77; }
         traced --set-socket-permissions daemon:0620:bin:0606 2>/dev/null & until_sessions 0
         stat -c '%G %a' producer consumer; kill -KILL $!",
        "daemon 620
         bin 606",
    ),
    Case::differs(
        "permissions that are none",
        CRASH,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         codes <<'-'
         traced --set-socket-permissions root:0660
         traced --set-socket-permissions :0660:root:0660
-",
        "1 traced --set-socket-permissions root:0660
         1 traced --set-socket-permissions :0660:root:0660",
        "132 traced --set-socket-permissions root:0660
         132 traced --set-socket-permissions :0660:root:0660",
    ),
    Case::differs(
        "help of the daemons",
        DAEMON_HELP,
        "codes <<'-'
         traced --help
         traced -h
         traced_probes --help
         traced_probes -h
-",
        "0 traced --help
         0 traced -h
         0 traced_probes --help
         0 traced_probes -h",
        "1 traced --help
         1 traced -h
         1 traced_probes --help
         1 traced_probes -h",
    ),
    Case::same(
        "a service for relays",
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced --enable-relay-endpoint 2>/dev/null & until_sessions 0; runs $!; kill -KILL $!",
        "runs",
    ),
    Case::differs(
        "relays on one socket, and on none",
        NEWER,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced --enable-relay-endpoint-on=$PWD/producer 2>/dev/null & service=$!
         until \"$OURS\" --query >/dev/null 2>&1 || [ ! -e /proc/$service/exe ]; do :; done; runs $service; kill -KILL $service 2>/dev/null
         timeout 60 traced --enable-relay-endpoint-on=$PWD/elsewhere 2>/dev/null; echo $?",
        "runs
         1",
        "gone
         1",
    ),
    Case::ours(
        "daemons that are quiet",
        "upstream's have no such flag",
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced --quiet 2>traced.cfg & service=$!; until_sessions 0
         traced_probes --quiet 2>probes.cfg & probes=$!
         until \"$OURS\" --query | grep -q perfetto.traced_probes; do :; done
         kill -TERM $probes; wait $probes; kill -TERM $service; wait $service; grep -c ' I ' traced.cfg probes.cfg || true",
        "traced.cfg:0
         probes.cfg:0",
    ),
    Case::ours(
        "daemons that keep their rights",
        "upstream's have no such flag",
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         rights() { awk '/NoNewPrivs/ { print $2 }' /proc/$1/status; }
         traced --no-sandbox 2>/dev/null & service=$!; until_sessions 0; rights $service
         traced_probes --no-sandbox 2>/dev/null & probes=$!
         until \"$OURS\" --query | grep -q perfetto.traced_probes; do :; done; rights $probes
         kill -TERM $probes; wait $probes; kill -TERM $service; wait $service; true",
        "0
         0",
    ),
    Case::differs(
        "a second service of the same names",
        OCCUPIED,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced 2>/dev/null & first=$!; until_sessions 0; socket=$(stat -c '%i %z' consumer); traced 2>/dev/null & second=$!
         while [ -e /proc/$second/exe ] && [ \"$(stat -c '%i %z' consumer 2>/dev/null)\" = \"$socket\" ]; do :; done
         runs $second; kill -KILL $first $second 2>/dev/null; true",
        "gone",
        "runs",
    ),
    Case::differs(
        "sockets after the end",
        LEFT_SOCKETS,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced 2>/dev/null & until_sessions 0; kill -TERM $!; wait $!; ls | grep -cE '^(consumer|producer)$' || true",
        "0",
        "2",
    ),
    Case::differs(
        "the end of a daemon",
        DAEMON_END,
        "export PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumer PERFETTO_PRODUCER_SOCK_NAME=$PWD/producer
         traced 2>/dev/null & until_sessions 0; kill -TERM $!; wait $!; echo $?",
        "0",
        "143",
    ),
];
