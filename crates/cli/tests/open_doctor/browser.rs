//! `ferretto open` and real browsers: what their rules about origins make of our headers, and the real UI.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::support::ui_port::UiPort;
use super::support::{PATIENCE, Running};
use super::{Serving, free_port};

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("CHROMIUM").map_or(PathBuf::from("/usr/bin/chromium"), PathBuf::from);
    if !path.exists() {
        println!(
            "skipped: there is no browser at {} (see CHROMIUM)",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// The test's own web server: gives whoever asks a page with this script, and hands on what pages post as their report. Browsers
/// open connections that they do not use at once, so each is a thread's; the threads end with the test.
fn serve(site: TcpListener, script: String) -> mpsc::Receiver<String> {
    let (reports, received) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in site.incoming().map_while(Result::ok) {
            let (script, reports) = (script.clone(), reports.clone());
            std::thread::spawn(move || {
                let request = request(&mut stream);
                let body = match request.split_once("\r\n\r\n") {
                    Some((head, report)) if head.starts_with("POST /report ") => {
                        // Nobody waits for it once the test has failed.
                        let _ = reports.send(report.to_owned());
                        String::new()
                    }
                    Some((head, _)) if head.starts_with("GET / ") => format!("<script>{script}</script>"),
                    _ => String::new(),
                };
                respond(&mut stream, &body);
            });
        }
    });
    received
}

/// A request with the body that it announces. What a browser opens and does not use is empty.
fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")?
                        .trim()
                        .parse()
                        .ok()
                })
                .unwrap_or(0);
            if body.len() >= length {
                return text;
            }
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
            _ => return text,
        }
    }
}

fn respond(stream: &mut TcpStream, body: &str) {
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn visit(chromium: &Path, profile: &Path, address: &str) -> Running {
    let child = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--remote-debugging-port=0",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

#[test]
fn a_browser_gives_the_trace_to_pages_of_the_ui_and_to_no_others() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("a b.pftrace");
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&trace, &bytes).unwrap();
    let site = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = site.local_addr().unwrap().port();
    let serving = Serving::start(&trace, |command| {
        command.args(["-n", "--origin", &format!("http://127.0.0.1:{port}")]);
    });
    let (_, url) = serving.address.split_once("?url=").unwrap();
    let url = url.split('&').next().unwrap();
    // As the UI does it, and at last in the way in which pages can send requests without asking.
    let script = format!(
        "(async () => {{
            let report;
            try {{
                const response = await fetch(decodeURIComponent('{url}'));
                const bytes = new Uint8Array(await (await response.blob()).arrayBuffer());
                report = `${{response.status}} ${{bytes.length}} ${{bytes.reduce((sum, byte) => sum + byte, 0)}}`;
            }} catch (error) {{
                await fetch(decodeURIComponent('{url}'), {{mode: 'no-cors'}}).catch(() => 0);
                report = error.name;
            }}
            await fetch('/report', {{method: 'POST', body: report}});
        }})()"
    );
    let reports = serve(site, script);
    // The same site under a name that makes it another origin.
    let stranger = visit(
        &chromium,
        &folder.path().join("stranger"),
        &format!("http://localhost:{port}/"),
    );
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap(), "TypeError");
    drop(stranger);
    let ui = visit(
        &chromium,
        &folder.path().join("ui"),
        &format!("http://127.0.0.1:{port}/"),
    );
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(
        reports.recv_timeout(PATIENCE).unwrap(),
        format!("200 {} {sum}", bytes.len())
    );
    drop(ui);
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("refused a page of http://localhost:"), "{said}");
}

/// Drives the real UI, which the tools beside the trace processor serve.
const VISIT_UI: &str = "
const [library, port, route] = process.argv.slice(1);
const {withUi, waitForTrace} = require(library);
withUi({width: 1000, height: 600, port: Number(port), timeout: 60}, async ({page, open}) => {
  await open(route);
  await waitForTrace(page);
  const {traceTitle, importErrors} = await page.evaluate(() => self.app.trace.traceInfo);
  console.log(`${importErrors} errors in ${traceTitle}`);
}).catch((error) => { console.error(error); process.exit(1); });
";

#[test]
fn the_real_ui_opens_the_trace() {
    let Some(tpq) = std::env::var_os("FERRETTO_TPQ").map(PathBuf::from) else {
        println!("skipped: FERRETTO_TPQ does not say where upstream's trace processor and UI are");
        return;
    };
    if chromium().is_none() {
        return;
    }
    let library = tpq.parent().unwrap().join("../lib/ui_page.js");
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("my trace.pftrace");
    // A packet with a clock snapshot: the boot clock at 1 s.
    let packet = [
        0x32, 0x0a, 0x0a, 0x08, 0x08, 0x06, 0x10, 0x80, 0x94, 0xeb, 0xdc, 0x03,
    ];
    std::fs::write(&trace, [&[0x0a, packet.len() as u8], &packet[..]].concat()).unwrap();

    let _port = UiPort::lock();
    let ui_port = free_port();
    let mut command = super::ferretto("open");
    command
        .arg(&trace)
        .args(["-n", "--origin", &format!("http://127.0.0.1:{ui_port}")]);
    let serving = Serving::of(command.spawn().unwrap());
    // The only one that the UI's content security policy allows.
    assert_eq!(serving.port(), 9001);
    let (_, route) = serving.address.split_once('#').unwrap();
    let output = Command::new("node")
        .args(["-e", VISIT_UI])
        .arg(&library)
        .args([ui_port.to_string(), format!("#{route}")])
        .output()
        .unwrap();
    let (shown, complaint) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{complaint}");
    assert!(shown.starts_with("0 errors in my trace.pftrace"), "{shown}");
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
}
