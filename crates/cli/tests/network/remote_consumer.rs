//! Recordings over a connection that carries no descriptors, as between machines: our command line writes the file that the service is to write.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use ferretto_proto::write::TracePacket;
use ferretto_wire::{Reader, Value};

use crate::support::{Program, Programs, Side, System, await_that};

/// It has no end but the size of the file, which is several times that of the buffer.
const ENDLESS: &str = r#"
buffers { size_kb: 64 }
write_into_file: true
file_write_period_ms: 100
max_file_size_bytes: 200000
data_sources { config { name: "linux.sys_stats" sys_stats_config { vmstat_period_ms: 10 stat_period_ms: 10 } } }
"#;

/// Listens on loopback, and connects each caller to this Unix socket. Returns the address. The threads end with the test's process.
fn forward_to(socket: PathBuf) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for caller in listener.incoming() {
            let caller = caller.unwrap();
            let service = UnixStream::connect(&socket).unwrap();
            let there = (caller.try_clone().unwrap(), service.try_clone().unwrap());
            thread::spawn(move || carry_requests(there.0, there.1));
            thread::spawn(move || carry_replies(service, caller));
        }
    });
    address
}

fn carry_requests(mut from: TcpStream, mut to: UnixStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn carry_replies(mut from: UnixStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn records_into_a_file(programs: &Programs, traced: Side) {
    let system = System::with_daemons(programs, traced, Side::Ours);
    let address = forward_to(system.consumer_socket());
    let (config, trace) = (system.path("config"), system.path("remote.pftrace"));
    std::fs::write(&config, ENDLESS).unwrap();
    let mut recording = system
        .command(&programs.path(Side::Ours, Program::Perfetto), "remote.log")
        .env("PERFETTO_CONSUMER_SOCK_NAME", address)
        .args(["--txt", "-c"])
        .arg(config)
        .arg("-o")
        .arg(&trace)
        .spawn()
        .unwrap();
    let mut status = None;
    await_that("the recording ends", || {
        status = recording.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success(), "{}", system.log("remote.log"));
    let bytes = std::fs::read(trace).unwrap();
    assert!(bytes.len() >= 200_000, "{traced} service: {} bytes", bytes.len());
    let mut of_sys_stats = 0;
    for packet in Reader::new(&bytes) {
        let Value::Bytes(packet) = packet.unwrap().value else {
            panic!("a trace has packets only");
        };
        let mut fields = Reader::new(packet).map(Result::unwrap);
        of_sys_stats += usize::from(fields.any(|field| field.number == TracePacket::SYS_STATS));
    }
    assert!(of_sys_stats > 100, "{traced} service: {of_sys_stats} packets");
}

#[test]
fn the_command_line_writes_the_file_of_a_service_that_it_cannot_give_one() {
    records_into_a_file(&Programs::ours(), Side::Ours);
}

#[test]
fn it_does_so_for_upstreams_service() {
    if let Some(programs) = Programs::of_both() {
        records_into_a_file(&programs, Side::Upstream);
    }
}

#[test]
fn a_command_is_not_sampled_by_the_process_id_that_it_has_on_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    let output = Command::new(env!("CARGO_BIN_EXE_ferretto"))
        .args(["profile", "-o", "remote.pftrace", "--", "touch"])
        .arg(&there)
        .current_dir(&folder)
        // An address for documentation: nobody connects to it.
        .env("PERFETTO_CONSUMER_SOCK_NAME", "192.0.2.1:20001")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("the service at 192.0.2.1:20001 may be on another machine"),
        "{said}"
    );
    assert!(!there.exists(), "the command has run");
    assert!(!folder.path().join("remote.pftrace").exists(), "a file is left");
}
