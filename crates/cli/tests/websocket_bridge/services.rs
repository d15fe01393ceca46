//! The bridge with real services, ours and upstream's, and with the one that `ferretto` starts.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ferretto_ipc::ports::CONSUMER_PORT;
use ferretto_proto::messages::{GetTraceStatsResponse, ReadBuffersResponse, TracingServiceState};
use rustix::process::Signal;
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::peers::{config, enabling, state};
use crate::support::wire::{self, Client};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use crate::websocket_bridge::bridge::*;
use crate::websocket_bridge::browser::*;

/// A socket for one client, whose bytes go through the bridge in pieces of odd sizes.
fn tunnel(system: &System<'_>, bridge: &Bridge) -> PathBuf {
    let path = system.path(&format!("tunnel-{:?}", Instant::now()));
    let listener = UnixListener::bind(&path).unwrap();
    let page = bridge.page();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut page_in = page;
        let mut page_out = page_in.get_ref().try_clone().unwrap();
        let (mut client_in, mut client_out) = (client.try_clone().unwrap(), client);
        std::thread::spawn(move || {
            let mut buffer = [0; 37];
            while let Ok(count @ 1..) = client_in.read(&mut buffer) {
                page_out
                    .write_all(&frame(FINAL | BINARY, &buffer[..count]))
                    .unwrap();
            }
            page_out.shutdown(Shutdown::Both).unwrap();
        });
        while let Ok(message) = page_in.read() {
            if client_out.write_all(&message.into_data()).is_err() {
                return;
            }
        }
    });
    path
}

/// Returns the sides whose services are installed.
fn sides() -> (Programs, Vec<Side>) {
    match Programs::of_both() {
        Some(programs) => (programs, vec![Side::Ours, Side::Upstream]),
        None => (Programs::ours(), vec![Side::Ours]),
    }
}

#[test]
fn a_consumer_talks_to_either_service_through_the_bridge() {
    let (programs, sides) = sides();
    for side in sides {
        let system = System::with_daemons(&programs, side, Side::Ours);
        let bridge = Bridge::start(&system);
        let mut client = Client::connect(&tunnel(&system, &bridge), &CONSUMER_PORT);
        let found = state(&mut client);
        let names = |state: &TracingServiceState| -> Vec<_> {
            state
                .producers
                .iter()
                .map(|producer| producer.name.clone())
                .collect()
        };
        assert_eq!(names(&found), names(&system.state()), "{side}");
        assert!(!found.data_sources.is_empty(), "{side}");

        let enabled = client.call("EnableTracing", &enabling(config("linux.sys_stats")));
        let stats: GetTraceStatsResponse = client.ask("GetTraceStats", &[]).decode();
        assert_eq!(
            stats.trace_stats.buffer_stats[0].buffer_size,
            Some(1 << 20),
            "{side}"
        );
        client.ask("Flush", &[]);
        client.call("DisableTracing", &[]);
        client.answer(enabled);
        let read = client.call("ReadBuffers", &[]);
        let mut packets = 0;
        loop {
            let answer = client.answer(read);
            let slices = answer.decode::<ReadBuffersResponse>().slices;
            packets += slices
                .iter()
                .filter(|slice| slice.last_slice_for_packet == Some(true))
                .count();
            if !answer.has_more {
                break;
            }
        }
        assert!(packets > 0, "{side}");
    }
}

#[test]
fn a_browser_that_goes_away_ends_its_session_however_it_goes() {
    let (programs, sides) = sides();
    for side in sides {
        let mut system = System::new(&programs);
        system.start(side, Program::Traced);
        let bridge = Bridge::start(&system);
        let sessions = |wanted| system.await_state(|state| state.num_sessions == Some(wanted));
        let recording = || {
            let mut page = bridge.page();
            let bind = bind_request();
            page.send(Message::Binary(bind.into())).unwrap();
            assert!(matches!(page.read().unwrap(), Message::Binary(_)));
            let enable = wire::invoke(2, method("EnableTracing"), &enabling(config("nothing")));
            page.send(Message::Binary(enable.into())).unwrap();
            sessions(1);
            page
        };
        let mut page = recording();
        page.close(None).unwrap();
        sessions(0);
        drop(recording());
        sessions(0);
        let page = recording();
        rustix::net::sockopt::set_socket_linger(page.get_ref(), Some(Duration::ZERO)).unwrap();
        drop(page);
        sessions(0);
        let page = recording();
        page.get_ref().shutdown(Shutdown::Write).unwrap();
        sessions(0);
    }
}

/// Returns the first frame of a consumer.
fn bind_request() -> Vec<u8> {
    use ferretto_proto::messages::ipc_frame::{BindService, Msg};
    use ferretto_proto::messages::{IPCFrame, Message};
    let bind = BindService {
        service_name: Some(CONSUMER_PORT.name.to_owned()),
        ..Default::default()
    };
    let frame = IPCFrame {
        request_id: Some(1),
        msg: Some(Msg::MsgBindService(Box::new(bind))),
        ..Default::default()
    };
    wire::framed(&frame.encode_to_vec())
}

fn method(name: &str) -> u32 {
    // Both services number the methods in this order.
    let position = CONSUMER_PORT.methods.iter().position(|method| *method == name);
    position.unwrap() as u32 + 1
}

#[test]
fn a_service_that_dies_closes_the_connection_and_the_next_is_found() {
    let (programs, sides) = sides();
    for side in sides {
        let mut system = System::new(&programs);
        let traced = system.start(side, Program::Traced);
        let bridge = Bridge::start(&system);
        let mut page = bridge.page();
        system.end(traced);
        assert_eq!(closed(&mut page), Some(CloseCode::Away), "{side}");
        assert_eq!(
            bridge.open("/traced", &[("Origin", UI)]).err(),
            Some(503),
            "{side}"
        );
        system.start(side, Program::Traced);
        bridge.page();
    }
}

/// The command of a new user, with a folder for temporary files.
fn of_ferretto(system: &System<'_>) -> Command {
    let folder = system.path("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = system.command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "unused.log");
    command
        .args(["websocket_bridge", "--port=0"])
        .env("TMPDIR", folder);
    command
}

fn left_behind(system: &System<'_>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(system.path("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn ferretto_brings_a_service_along_if_there_is_none() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let mut bridge = Bridge::spawn(of_ferretto(&system));
    assert!(bridge.greeting.contains("of its own"), "{}", bridge.greeting);
    assert_eq!(left_behind(&system).len(), 1, "the folder of its sockets");
    let mut client = Client::connect(&tunnel(&system, &bridge), &CONSUMER_PORT);
    let found = state(&mut client);
    assert_eq!(found.producers.len(), 3, "{found:?}");
    let children = format!("/proc/{pid}/task/{pid}/children", pid = bridge.running.pid());
    let mut list = String::new();
    File::open(children).unwrap().read_to_string(&mut list).unwrap();
    let children: Vec<u32> = list.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.len(), 4, "service, probes and profilers");

    bridge.running.signal(Signal::INT);
    assert_eq!(bridge.running.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(left_behind(&system).is_empty());
    for child in children {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "{child} goes on");
    }
}

#[test]
fn ferretto_takes_the_service_that_is_there() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let bridge = Bridge::spawn(of_ferretto(&system));
    assert!(!bridge.greeting.contains("of its own"), "{}", bridge.greeting);
    assert!(left_behind(&system).is_empty());
    bridge.page();
}
