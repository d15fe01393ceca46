#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use ferretto_wire::Writer;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);

/// Packets of this size each, as they stand in a trace file.
fn packets(count: usize, size: usize) -> Vec<u8> {
    let mut trace = Writer::new();
    for n in 0..count {
        trace.bytes_field(1, &vec![n as u8; size]);
    }
    trace.as_slice().to_vec()
}

fn writer(fd: impl Into<OwnedFd>) -> (PacketWriter, CancelWrites) {
    TraceFile::passed(PassedFd::from(fd.into()))
        .unwrap()
        .into_writer()
        .unwrap()
}

/// A file that has no more room than this, like a full disk.
fn small_file(size: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("small", flags).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    File::from(file)
}

/// systemd's unit has folders for temporary files that are read-only.
#[test]
fn a_folder_that_the_service_may_not_write_to_comes_with_another_way() {
    for reason in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
        assert!(hint(reason).contains("(perfetto -o)"), "{reason:?}");
    }
}

#[test]
fn a_file_that_took_a_part_of_a_packet_ends_with_the_one_before() {
    let mut file = small_file(3 * 4096);
    let (mut writer, _cancel) = writer(file.try_clone().unwrap());
    let trace = packets(10, 5000);
    writer.write(&trace[..5003]).unwrap();
    let error = writer.write(&trace[5003..]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(file.metadata().unwrap().len(), 2 * 5003);
    let mut kept = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut kept).unwrap();
    assert_eq!(kept, trace[..2 * 5003]);
}

#[test]
fn bytes_that_others_added_to_a_file_stay() {
    let file = tempfile::tempfile().unwrap();
    let (mut writer, _cancel) = writer(file.try_clone().unwrap());
    writer.write(&packets(1, 100)).unwrap();
    writer.take_back(50).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 52);
    file.set_len(60).unwrap();
    writer.take_back(50).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 60);
}

#[test]
fn a_pipe_gets_everything_in_order_as_it_is_read() {
    let (mut read, write) = std::io::pipe().unwrap();
    let (mut writer, _cancel) = writer(write);
    let trace = packets(100, 10_000);
    let expected = trace.clone();
    let writing = std::thread::spawn(move || writer.write(&trace));
    let mut got = Vec::new();
    read.read_to_end(&mut got).unwrap();
    writing.join().unwrap().unwrap();
    assert_eq!(got, expected);
}

#[test]
fn writes_without_a_reader_end_when_they_are_cancelled() {
    let (read, write) = std::io::pipe().unwrap();
    let (socket, far_socket) = UnixStream::pair().unwrap();
    let fds: [OwnedFd; 2] = [write.into(), socket.into()];
    for fd in fds {
        let (mut writer, cancel) = writer(fd);
        let (sender, done) = channel();
        std::thread::spawn(move || sender.send(writer.write(&packets(1, 10_000_000))));
        drop(cancel);
        let result = done.recv_timeout(PATIENCE).expect("an end");
        assert!(result.unwrap_err().to_string().contains("given up"));
    }
    drop((read, far_socket));
}

/// A file that holds a trace, open like one that a session streams into.
fn file_with(trace: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(trace).unwrap();
    file
}

#[test]
fn a_copy_has_the_contents_from_when_the_file_was_shared() {
    let trace = packets(100, 30_000);
    let (mut original, _cancel_original) = writer(file_with(&[]));
    original.write(&trace).unwrap();
    let (from, size) = original.share().unwrap();
    original.write(&packets(1, 100)).unwrap();
    let file = tempfile::tempfile().unwrap();
    let (mut clone, _cancel_clone) = writer(file.try_clone().unwrap());
    clone.copy(&from, size).unwrap();
    clone.write(&packets(1, 100)).unwrap();
    let mut copied = vec![0; trace.len()];
    file.read_exact_at(&mut copied, 0).unwrap();
    assert!(copied == trace);
    assert_eq!(file.metadata().unwrap().len(), size + 102);
}

#[test]
fn a_copy_that_fails_leaves_nothing_that_looks_like_a_trace() {
    let from = file_with(&packets(100, 30_000));
    let file = small_file(500 * 4096);
    let (mut clone, _cancel) = writer(file.try_clone().unwrap());
    let error = clone.copy(&from, from.metadata().unwrap().len()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn a_copy_ends_when_it_is_cancelled() {
    let from = file_with(&packets(100, 30_000));
    let file = tempfile::tempfile().unwrap();
    let (mut clone, cancel) = writer(file.try_clone().unwrap());
    drop(cancel);
    let error = clone.copy(&from, from.metadata().unwrap().len()).unwrap_err();
    assert!(error.to_string().contains("given up"), "{error}");
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn a_file_that_cannot_be_read_back_is_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let write_only = File::create(folder.path().join("trace")).unwrap();
    let (read, write) = std::io::pipe().unwrap();
    let fds: [(OwnedFd, &str); 2] = [
        (write.into(), "no regular file"),
        (write_only.into(), "open for writing only"),
    ];
    for (fd, reason) in fds {
        let (mut writer, _cancel) = writer(fd);
        let error = writer.share().unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    drop(read);
}

#[test]
fn a_reader_that_is_gone_is_an_error() {
    let (read, write) = std::io::pipe().unwrap();
    let (socket, far_socket) = UnixStream::pair().unwrap();
    drop((read, far_socket));
    let fds: [OwnedFd; 2] = [write.into(), socket.into()];
    for fd in fds {
        let (mut writer, _cancel) = writer(fd);
        let error = writer.write(&packets(1, 100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn descriptors_that_cannot_be_written_are_refused_at_once() {
    let refused = |fd: OwnedFd| match TraceFile::passed(fd.into()) {
        Ok(_) => panic!("accepted"),
        Err(error) => assert!(error.contains("not open for writing"), "{error}"),
    };
    refused(File::open("/dev/null").unwrap().into());
    refused(std::io::pipe().unwrap().0.into());
    let path = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::PATH.bits() as i32)
        .open("/dev/null");
    refused(path.unwrap().into());
    let (mut writer, _cancel) = writer(OpenOptions::new().write(true).open("/dev/null").unwrap());
    writer.write(&packets(10, 10_000)).unwrap();
    writer.sync().unwrap();
}

#[test]
fn only_packets_that_are_there_to_their_last_byte_count_as_whole() {
    let trace = packets(3, 200);
    let one = trace.len() / 3;
    for cut in 0..=trace.len() {
        assert_eq!(whole_packets(&trace[..cut]), cut / one * one);
    }
}
