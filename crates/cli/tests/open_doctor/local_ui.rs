//! `ferretto open --ui`: a copy of the UI, from a folder or an archive, requested by browsers and attackers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::open::{answer, assert_refused, connect, folder, status, trace};
use super::{SMALL, Serving, ferretto};
use crate::support::ui_port::UiPort;

const INDEX: &[u8] = b"<!doctype html><body data-perfetto_version='{\"stable\":\"v1\"}'></body>";

/// The files of a copy: an index, and a folder for each version.
fn files() -> BTreeMap<&'static str, Vec<u8>> {
    let wasm: Vec<u8> = (0..2_000_000_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 27) as u8)
        .collect();
    BTreeMap::from([
        ("index.html", INDEX.to_vec()),
        (
            "service_worker.js",
            b"self.addEventListener('fetch', () => {});".to_vec(),
        ),
        ("v1/index.html", INDEX.to_vec()),
        ("v1/frontend_bundle.js", b"console.log('hello');".to_vec()),
        ("v1/perfetto.css", Vec::new()),
        ("v1/engine.wasm", wasm),
        ("v1/assets/a b.png", b"\x89PNG".to_vec()),
    ])
}

/// Makes a folder with the copy, and with other files that must not be served.
fn unpacked(at: &Path) -> PathBuf {
    let ui = at.join("ui");
    for (name, content) in files() {
        let path = ui.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::write(ui.join(".secret"), "x").unwrap();
    std::fs::write(at.join("outside"), "x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", ui.join("v1/passwd")).unwrap();
    std::os::unix::fs::symlink("..", ui.join("v1/up")).unwrap();
    std::os::unix::fs::symlink("../index.html", ui.join("v1/inside.html")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        ui.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    ui
}

/// Packs entries into an archive.
fn pack(at: &Path, entries: &[(&str, &[u8])]) -> PathBuf {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (index, (name, content)) in entries.iter().enumerate() {
        let method = match index % 2 {
            0 => zip::CompressionMethod::Deflated,
            _ => zip::CompressionMethod::Stored,
        };
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.add_symlink(
        "v1/passwd",
        "/etc/passwd",
        zip::write::SimpleFileOptions::default(),
    )
    .unwrap();
    let path = at.join("perfetto-ui.zip");
    std::fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
    path
}

fn packed(at: &Path) -> PathBuf {
    let files = files();
    let mut entries: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, content)| (*name, content.as_slice()))
        .collect();
    entries.push(("../outside", b"x"));
    entries.push(("/absolute", b"x"));
    entries.push((".secret", b"x"));
    pack(at, &entries)
}

fn start(trace: &Path, ui: &Path) -> Serving {
    Serving::start(trace, |command| {
        command.arg("-n").arg("--ui").arg(ui);
    })
}

/// Requests like a page of the copy.
fn get(port: u16, path: &str, lines: &str) -> (String, Vec<u8>) {
    answer(asked(port, "GET", path, lines))
}

fn asked(port: u16, method: &str, path: &str, lines: &str) -> TcpStream {
    let mut stream = connect(port);
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n"
    )
    .unwrap();
    stream
}

fn port(serving: &Serving) -> u16 {
    let (_, rest) = serving.address.split_once("http://127.0.0.1:").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn its_files_are_served_with_their_types_and_nothing_else_is() {
    let folder = folder();
    let trace = trace(&folder, SMALL);
    for ui in [unpacked(folder.path()), packed(folder.path())] {
        let serving = start(&trace, &ui);
        let port = port(&serving);
        assert_eq!(
            serving.address,
            format!(
                "http://127.0.0.1:{port}/#!/?url=http://127.0.0.1:{port}/trace/t.pftrace&referrer=open_trace_in_ui"
            )
        );
        let files = files();
        for (path, name, media_type) in [
            ("/", "index.html", "text/html; charset=utf-8"),
            ("/?testing=1", "index.html", "text/html; charset=utf-8"),
            ("/v1/", "v1/index.html", "text/html; charset=utf-8"),
            (
                "/v1/frontend_bundle.js?x",
                "v1/frontend_bundle.js",
                "text/javascript; charset=utf-8",
            ),
            ("/v1/perfetto.css", "v1/perfetto.css", "text/css; charset=utf-8"),
            ("/v1/engine.wasm", "v1/engine.wasm", "application/wasm"),
            ("/v1/assets/a%20b.png", "v1/assets/a b.png", "image/png"),
        ] {
            let (head, body) = get(port, path, "");
            assert!(status(&head) == 200 && body == files[name], "{path}: {head}");
            for line in [
                &format!("Content-Type: {media_type}"),
                &format!("Content-Length: {}", body.len()),
                "X-Content-Type-Options: nosniff",
                "Content-Security-Policy: frame-ancestors 'none'",
                "Cross-Origin-Resource-Policy: same-origin",
            ] {
                assert!(
                    head.contains(&format!("\r\n{line}\r\n")),
                    "{path}: {line}: {head}"
                );
            }
            let (of_head, body) = answer(asked(port, "HEAD", path, ""));
            assert_eq!((of_head, body.len()), (head, 0));
        }
        for path in [
            "/../outside",
            "/v1/../../outside",
            "/%2e%2e/outside",
            "/v1/%2e%2e%2f%2e%2e%2foutside",
            "/..%5coutside",
            "//etc/passwd",
            "/absolute",
            "/v1/passwd",
            "/v1/up/index.html",
            "/v1/inside.html",
            "/.secret",
            "/pipe",
            "/v1",
            "/v1/index.html/",
            "/index.html%00.js",
            "/%ff",
            "/nothing",
            "/trace/",
            "/trace/other",
            "/t.pftrace",
            // A service worker would outlive this process in the browser.
            "/service_worker.js?v=v1",
            "*",
        ] {
            let (head, body) = get(port, path, "Sec-Fetch-Site: same-origin\r\n");
            assert_eq!((status(&head), body.len()), (404, 0), "{}: {path}", ui.display());
        }
        serving.signal(Signal::TERM);
        let (status, said) = serving.end();
        assert_eq!(status.code(), Some(1), "nobody fetched the trace: {said}");
    }
}

#[test]
fn the_trace_is_for_its_pages_and_serving_goes_on_until_it_is_ended() {
    let folder = folder();
    let trace = trace(&folder, SMALL);
    let serving = start(&trace, &packed(folder.path()));
    let port = port(&serving);
    for (lines, expected) in [
        ("", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        // A page of another program on this machine.
        ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n", 403),
        ("Origin: http://127.0.0.1:1\r\n", 403),
        ("Origin: https://ui.perfetto.dev\r\n", 403),
        (
            "Origin: https://evil.example\r\nSec-Fetch-Site: same-origin\r\n",
            403,
        ),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
    ] {
        let (head, body) = get(port, "/trace/t.pftrace", lines);
        assert_eq!(status(&head), expected, "{lines}");
        assert_eq!(
            body.as_slice(),
            if expected == 200 { SMALL } else { b"" },
            "{lines}"
        );
        assert!(!head.contains("Access-Control"), "{head}");
    }
    let mut rebound = connect(port);
    write!(rebound, "GET / HTTP/1.1\r\nHost: rebound.example:{port}\r\n\r\n").unwrap();
    assert_eq!(status(&answer(rebound).0), 403);
    // The UI does this to find a trace processor.
    assert_eq!(status(&answer(asked(port, "POST", "/status", "")).0), 405);
    let other = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), port));
    assert!(other.is_err(), "only 127.0.0.1 is listened on");
    serving.signal(Signal::INT);
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("; the browser has the trace now\n"), "{said}");
    assert!(
        said.contains("on 127.0.0.1:") && said.contains("until Ctrl-C ends it"),
        "{said}"
    );
}

#[test]
fn an_invalid_copy_of_the_ui_is_refused_with_the_reason() {
    let folder = folder();
    let trace = trace(&folder, SMALL);
    let at = folder.path();
    let file = |name: &str, content: &[u8]| {
        std::fs::write(at.join(name), content).unwrap();
        at.join(name)
    };
    std::fs::create_dir_all(at.join("bare/v1")).unwrap();
    std::fs::create_dir(at.join("site")).unwrap();
    file("site/index.html", b"<html>My home page</html>");
    let zip = |name: &str, entries: &[(&str, &[u8])]| {
        std::fs::rename(pack(at, entries), at.join(name)).unwrap();
        at.join(name)
    };
    let huge = {
        let mut bytes = std::fs::read(zip("x.zip", &[("index.html", INDEX)])).unwrap();
        // The size field in the archive's directory, 24 bytes after the signature.
        let entry = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        bytes[entry + 24..entry + 28].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
        bytes
    };
    for (ui, words) in [
        (at.join("missing"), "cannot open the UI "),
        (
            at.join("bare"),
            "is no copy of the Perfetto UI, as index.html is not there",
        ),
        (at.join("site"), "as index.html is not the UI's"),
        (
            zip("a.zip", &[("ui/index.html", INDEX)]),
            "as index.html is not there",
        ),
        (
            file("b.zip", b"PK\x03\x04 and no more"),
            "cannot read the archive of the UI ",
        ),
        (
            file("c.zip", &huge),
            "\"index.html\" claims to have 2147483647 bytes",
        ),
        (trace.clone(), "cannot read the archive of the UI "),
    ] {
        assert_refused(&["--ui", ui.to_str().unwrap(), trace.to_str().unwrap()], words);
    }
    let both = ferretto("open")
        .args(["--ui", ".", "--origin", "http://localhost:1"])
        .arg(&trace)
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn an_archive_that_lies_gives_no_more_than_it_says_and_nothing_that_looks_whole() {
    let folder = folder();
    let trace = trace(&folder, SMALL);
    let bomb = vec![0; 8 << 20];
    let honest = std::fs::read(pack(
        folder.path(),
        &[("bomb", bomb.as_slice()), ("stored", b""), ("index.html", INDEX)],
    ))
    .unwrap();
    for (claimed, whole) in [(1000_u32, true), (9 << 20, false)] {
        let mut bytes = honest.clone();
        let entry = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        bytes[entry + 24..entry + 28].copy_from_slice(&claimed.to_le_bytes());
        let ui = folder.path().join("lying.zip");
        std::fs::write(&ui, bytes).unwrap();
        let serving = start(&trace, &ui);
        let mut stream = asked(port(&serving), "GET", "/bomb", "");
        let head = super::open::head(&mut stream);
        assert!(
            head.contains(&format!("\r\nContent-Length: {claimed}\r\n")),
            "{head}"
        );
        let mut body = Vec::new();
        // The connection may be reset, or end.
        let _ = stream.read_to_end(&mut body);
        assert_eq!(
            body.len() == claimed as usize,
            whole,
            "{} of {claimed}",
            body.len()
        );
        serving.signal(Signal::TERM);
        serving.end();
    }
}

#[test]
fn a_port_that_is_taken_is_no_obstacle_for_a_copy() {
    let folder = folder();
    let trace = trace(&folder, SMALL);
    let ui = packed(folder.path());
    let _lock = UiPort::lock();
    // It does not matter if another program has the port already.
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 9001));
    let child = ferretto("open")
        .arg("-n")
        .arg("--ui")
        .arg(&ui)
        .arg(&trace)
        .spawn()
        .unwrap();
    let mut serving = Serving::of(child);
    assert_ne!(port(&serving), 9001);
    let (head, _) = get(
        port(&serving),
        "/trace/t.pftrace",
        "Sec-Fetch-Site: same-origin\r\n",
    );
    assert_eq!(status(&head), 200);
    // It has the trace only when it has closed the connection.
    serving.until_said("the browser has the trace now");
    serving.signal(Signal::INT);
    assert_eq!(serving.end().0.code(), Some(0));
}
