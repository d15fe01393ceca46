//! The guarantees of an output: the file format, and which files remain in which cases.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;

use super::*;
use ferretto_wire::{Reader, Value};

fn open(path: &Path) -> Output {
    try_open(path, ExistingFile::Replace).unwrap()
}

fn try_open(path: &Path, existing: ExistingFile) -> Result<Output, OpenError> {
    Output::open(&Sink::File(path.to_owned()), existing).map(Option::unwrap)
}

#[test]
fn a_file_is_a_row_of_packets_in_field_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let packets = [
        vec![],
        vec![1; 1],
        vec![2; 127],
        vec![3; 128],
        vec![4; 20_000],
        vec![5; 3_000_000],
    ];
    let mut output = open(&path);
    for packet in &packets {
        output.write_packet(packet).unwrap();
    }
    output.finish().unwrap();

    let file = std::fs::read(&path).unwrap();
    let read: Vec<&[u8]> = Reader::new(&file)
        .map(|field| match field.unwrap() {
            ferretto_wire::Field {
                number: 1,
                value: Value::Bytes(bytes),
                ..
            } => bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(read, packets);
    assert_eq!(output.size(), Some(file.len() as u64));
    let mut read_back = Vec::new();
    output
        .read_back(|packet| read_back.push(packet.to_vec()))
        .unwrap();
    assert_eq!(read_back, packets);
}

#[test]
fn a_file_that_the_service_wrote_can_be_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut output = open(&path);
    output.begin(Writer::Service).unwrap();
    let mut theirs = File::from(output.descriptor().unwrap());
    let mut write = |bytes: &[u8]| theirs.write_all(bytes).unwrap();
    write(&[0x0a, 0x00, 0x0a, 0x02, 7, 7, 0x0a, 0x80, 0x01]);
    write(&[9; 128]);
    let mut sizes = Vec::new();
    output.read_back(|packet| sizes.push(packet.len())).unwrap();
    assert_eq!((sizes, output.size()), (vec![0, 2, 128], Some(137)));

    // A length beyond the end of the file, then bytes that are no packet.
    write(&[0x0a, 0x7f, 7]);
    let cut = output.read_back(|_| ()).unwrap().unwrap();
    output.cut_off(cut).unwrap();
    assert_eq!(
        (output.read_back(|_| ()).unwrap(), output.size()),
        (None, Some(137))
    );
    theirs.seek(SeekFrom::End(0)).unwrap();
    theirs.write_all(&[0x12, 0x00]).unwrap();
    assert!(output.read_back(|_| ()).is_err());
}

#[test]
fn the_size_of_a_pipe_that_the_service_fills_is_not_known() {
    let mut output = open(Path::new("/dev/null"));
    output.begin(Writer::Service).unwrap();
    assert_eq!(output.size(), None);
}

#[test]
fn only_the_user_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let _output = open(&path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
}

#[test]
fn a_recording_that_never_began_leaves_an_earlier_trace_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    std::fs::write(&path, "earlier").unwrap();
    assert_eq!(open(&path).discard(), Discarded::Left);
    assert_eq!(std::fs::read(&path).unwrap(), b"earlier");
}

#[test]
fn an_earlier_trace_stays_until_there_is_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let content = || std::fs::read(&path).unwrap();
    std::fs::write(&path, "an earlier trace").unwrap();
    let mut output = open(&path);
    output.expect(Writer::Us);
    assert_eq!((output.size(), output.salvage()), (Some(0), None));
    assert_eq!(content(), b"an earlier trace", "the service refused");
    let mut output = open(&path);
    output.expect(Writer::Us);
    output.begin(Writer::Us).unwrap();
    assert_eq!(content(), b"");
}

#[test]
fn a_failed_recording_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    assert_eq!(open(&path).discard(), Discarded::Removed);
    assert!(!path.exists());

    std::fs::write(&path, "earlier").unwrap();
    let mut output = open(&path);
    output.begin(Writer::Us).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    output.write_packet(b"half of a trace").unwrap();
    assert_eq!(output.discard(), Discarded::Removed);
    assert!(!path.exists());
}

#[test]
fn data_of_a_broken_recording_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut output = open(&path);
    output.begin(Writer::Us).unwrap();
    output.write_packet(b"data").unwrap();
    assert_eq!(output.salvage(), Some(6));
    assert_eq!(std::fs::read(&path).unwrap(), [&[0x0a, 4][..], b"data"].concat());

    let mut without_data = open(&path);
    without_data.begin(Writer::Us).unwrap();
    assert_eq!(without_data.salvage(), None);
    assert!(!path.exists());

    std::fs::write(&path, "earlier").unwrap();
    assert_eq!(open(&path).salvage(), None);
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"earlier",
        "this recording never began"
    );
}

#[test]
fn a_file_that_another_program_put_there_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let output = open(&path);
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    std::fs::write(&path, "another's").unwrap();
    assert_eq!(output.discard(), Discarded::Left);
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

#[test]
fn devices_are_written_to_and_never_removed() {
    let mut output = open(Path::new("/dev/null"));
    output.begin(Writer::Us).unwrap();
    output.write_packet(b"x").unwrap();
    output.finish().unwrap();
    assert_eq!(output.discard(), Discarded::Left);
    assert!(Path::new("/dev/null").exists());
}

#[test]
fn a_link_is_followed_even_to_a_file_that_is_not_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("target"), &link).unwrap();
    let mut output = open(&link);
    output.begin(Writer::Us).unwrap();
    output.write_packet(b"x").unwrap();
    output.finish().unwrap();
    assert_eq!(std::fs::read(dir.path().join("target")).unwrap(), [0x0a, 1, b'x']);
}

#[test]
fn no_clobber_refuses_an_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    try_open(&path, ExistingFile::Refuse).unwrap();
    let error = try_open(&path, ExistingFile::Refuse).unwrap_err().to_string();
    assert!(
        error.contains("--no-clobber") && error.contains("trace"),
        "{error}"
    );
}

#[test]
fn an_output_that_cannot_be_opened_names_the_path_and_the_reason() {
    let error = try_open(Path::new("/nonexistent/trace"), ExistingFile::Replace)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nonexistent/trace") && error.contains("No such file"),
        "{error}"
    );
}

/// Makes a FIFO, and a packet that is much larger than the FIFO's capacity.
fn fifo(dir: &tempfile::TempDir) -> (PathBuf, Vec<u8>) {
    let path = dir.path().join("fifo");
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &path,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
    (path, vec![7; 1_000_000])
}

#[test]
fn a_pipe_may_be_read_late() {
    let dir = tempfile::tempdir().unwrap();
    let (path, packet) = fifo(&dir);
    let mut output = open(&path);
    // A clone does this if this process turns out to write the output.
    for writer in [Writer::Service, Writer::Us, Writer::Us] {
        output.begin(writer).unwrap();
    }
    assert!(output.awaits_reader());
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    output.write_packet(&packet).unwrap();
    output.finish().unwrap();
    assert!(!output.awaits_reader());
    assert_eq!(output.size(), Some(4 + packet.len() as u64));
    drop(output);
    assert_eq!(reader.join().unwrap()[4..], packet);
}

#[test]
fn a_reader_that_goes_away_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (path, packet) = fifo(&dir);
    let mut output = open(&path);
    let reader = File::open(&path).unwrap();
    output.begin(Writer::Us).unwrap();
    assert!(!output.awaits_reader());
    drop(reader);
    let error = output
        .write_packet(&packet)
        .and_then(|()| output.finish())
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(output.discard(), Discarded::Left);
    assert!(path.exists());
}

#[test]
fn two_signals_end_the_wait_for_a_reader_that_never_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (path, packet) = fifo(&dir);
    let (interrupted, came) = Interrupted::by(ferretto_ipc::reactor::Signal::Interrupt);
    let mut output = open(&path);
    output.heed(interrupted);
    output.begin(Writer::Us).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        use std::sync::atomic::Ordering::Relaxed;
        scope.spawn(|| {
            while !done.load(Relaxed) {
                came.store(true, Relaxed);
                std::thread::yield_now();
            }
        });
        let error = output.write_packet(&packet).and_then(|()| output.finish());
        done.store(true, Relaxed);
        error.unwrap_err()
    });
    assert!(error.to_string().contains("a signal ended the wait"), "{error}");
}

#[test]
fn a_service_may_write_into_a_pipe_before_anybody_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = fifo(&dir);
    let mut output = open(&path);
    output.begin(Writer::Service).unwrap();
    File::from(output.descriptor().unwrap())
        .write_all(b"early")
        .unwrap();
    let mut reader = File::open(&path).unwrap();
    drop(output);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"early");

    // Once there was a reader, writing fails after it has gone.
    let mut output = open(&path);
    output.begin(Writer::Service).unwrap();
    drop(reader);
    let error = File::from(output.descriptor().unwrap())
        .write_all(b"late")
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
