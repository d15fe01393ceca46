//! The checks of `ferretto open` before it serves: whether the file is a trace, its compression, and whether the UI can be reached.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;

use super::open::{UI, answer, ask, ask_as_ui, assert_refused, fetch, folder, opener, status, trace};
use super::{SMALL, Serving, ferretto, free_port, trace_with};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(0)).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Joins the pieces of a chunked body.
pub(super) fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        body = &body[end + 2..];
        whole.extend_from_slice(&body[..length]);
        assert_eq!(&body[length..length + 2], b"\r\n");
        body = &body[length + 2..];
        if length == 0 {
            assert_eq!(body, b"", "behind the last piece");
            return whole;
        }
    }
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_the_reason() {
    let folder = folder();
    let noise: Vec<u8> = (0..200_000_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    for (bytes, words) in [
        (
            &noise[1..],
            "is no Perfetto trace, nor anything else that the UI is known to read",
        ),
        (
            b"# Notes\n\nNothing to see.\n",
            "is no Perfetto trace, nor anything else",
        ),
        (b"\n\x05hello, world\n", "is no Perfetto trace, nor anything else"),
        (
            b"BZh91AY&SY\0\0",
            "is no Perfetto trace: it is compressed with bzip2; expand it first",
        ),
        (b"\x7fELF\x02\x01\x01", "is no Perfetto trace: it is a program"),
        (
            b"\x0a\xff\x01",
            "ends inside its first packet: there is nothing to show yet",
        ),
        (
            &gzip(SMALL)[..9],
            "cannot be read: the file's gzip data end too early",
        ),
        (&gzip(b""), "is empty"),
        (
            &gzip(b"buffers {}"),
            "is no Perfetto trace: it is a trace config; record with it: `ferretto --txt -c FILE`",
        ),
    ] {
        let path = trace(&folder, bytes);
        assert_refused(&[path.to_str().unwrap()], words);
    }
    // With --force the user overrides the check.
    let path = trace(&folder, &noise);
    let serving = Serving::start(&path, |command| {
        command.args(["-n", "--force"]);
    });
    fetch(serving, "/t.pftrace", &noise);
}

#[test]
fn other_formats_that_the_ui_reads_are_shown() {
    let folder = folder();
    for (bytes, words) in [
        (&b" {\"traceEvents\": []}"[..], "it is JSON"),
        (b"PK\x03\x04 an archive of traces", "it is a zip archive"),
        (
            b"# tracer: nop\n",
            "it is the text of the kernel's own trace file",
        ),
    ] {
        let serving = Serving::start(&trace(&folder, bytes), |_| {});
        let said = fetch(serving, "/t.pftrace", bytes);
        assert!(
            said.contains(&format!("this is no Perfetto trace: {words}")),
            "{said}"
        );
    }
}

#[test]
fn compressed_traces_are_expanded_on_their_way() {
    let folder = folder();
    let payload: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 28) as u8)
        .collect();
    let whole = trace_with(&payload);
    for (name, bytes) in [
        ("gzip", gzip(&whole)),
        ("zstd", zstd::encode_all(whole.as_slice(), 1).unwrap()),
        ("xz", xz(&whole)),
    ] {
        let serving = Serving::start(&trace(&folder, &bytes), |_| {});
        let port = serving.port();
        let (head, body) = answer(ask_as_ui(port, "HEAD", "/t.pftrace"));
        assert_eq!((status(&head), body.len()), (200, 0));
        // A browser that hangs up may come again: each request has a reader of its own.
        drop(ask_as_ui(port, "GET", "/t.pftrace"));
        let (head, body) = answer(ask_as_ui(port, "GET", "/t.pftrace"));
        assert_eq!(status(&head), 200);
        assert!(
            head.contains("\r\nTransfer-Encoding: chunked\r\n") && !head.contains("Content-Length"),
            "{head}"
        );
        assert!(unchunked(&body) == whole, "{name}");
        let (status, said) = serving.end();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(
            said.contains(&format!(", expanding {name}) on 127.0.0.1")),
            "{said}"
        );
    }
}

#[test]
fn the_browser_gets_the_readable_part_of_a_cut_compressed_trace() {
    let folder = folder();
    let mut packets = Vec::new();
    for n in 0..50_000_u32 {
        packets.extend(trace_with(&n.wrapping_mul(0x9e37_79b9).to_le_bytes()));
    }
    let bytes = gzip(&packets);
    let cut = bytes.len() / 2;
    let serving = Serving::start(&trace(&folder, &bytes[..cut]), |_| {});
    let (head, body) = answer(ask_as_ui(serving.port(), "GET", "/t.pftrace"));
    assert_eq!(status(&head), 200);
    let got = unchunked(&body);
    assert!(
        packets.starts_with(&got) && got.len() > packets.len() / 3,
        "{}",
        got.len()
    );
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
    let expected = format!("the file's gzip data end too early, at byte {cut} of the file");
    assert!(
        said.contains(&expected) && said.contains("the browser gets what comes before"),
        "{said}"
    );
}

#[test]
fn a_trace_on_stdin_is_shown() {
    let mut child = ferretto("open")
        .args(["-n", "--port", "0", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(SMALL).unwrap();
    let serving = Serving::of(child);
    assert!(
        serving.address.ends_with("/stdin&referrer=open_trace_in_ui"),
        "{}",
        serving.address
    );
    fetch(serving, "/stdin", SMALL);
}

#[test]
fn an_unreachable_ui_is_reported_instead_of_opened() {
    let folder = folder();
    let path = trace(&folder, SMALL);
    let asked = opener(folder.path(), "");
    let search = format!("{}:/usr/bin:/bin", folder.path().display());
    let origin = format!("http://127.0.0.1:{}", free_port());
    let serving = Serving::start(&path, |command| {
        command
            .args(["--origin", &origin])
            .env("DISPLAY", ":7")
            .env("PATH", &search);
    });
    // It is served nevertheless, because a browser may have the UI already.
    let port = serving.port();
    let (head, body) = answer(ask(
        port,
        "GET",
        "/t.pftrace",
        &format!("127.0.0.1:{port}"),
        &origin,
    ));
    assert_eq!((status(&head), body.as_slice()), (200, SMALL));
    let (_, said) = serving.end();
    let words = format!("the UI at {origin} cannot be reached from here (Connection refused");
    assert!(said.contains(&words) && said.contains("--ui"), "{said}");
    assert!(!asked.exists(), "a browser was started");
    assert!(!said.contains(UI), "{said}");

    // Through a proxy it may be reachable.
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let serving = Serving::start(&path, |command| {
        command
            .args(["--origin", &origin])
            .env("https_proxy", format!("http://{}", proxy.local_addr().unwrap()))
            .env("DISPLAY", ":7")
            .env("PATH", &search);
    });
    serving.signal_after("a browser should show it in a moment");
}
