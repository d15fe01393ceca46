//! `ferretto open` with real browsers, whose rules about origins apply to our headers; and with the real UI.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;

use super::{Serving, free_port, trace_with};
use crate::support::socket_folder::parent_of_socket_folders;
use crate::support::ui_port::UiPort;
use crate::support::{PATIENCE, Running};

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

/// The test's own web server. It serves a page with this script, and passes on the reports that pages post. Browsers open connections that they do
/// not use at once, so each connection has a thread; the threads end with the test.
fn serve(site: TcpListener, script: String) -> mpsc::Receiver<String> {
    let (reports, received) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in site.incoming().map_while(Result::ok) {
            let (script, reports) = (script.clone(), reports.clone());
            std::thread::spawn(move || {
                let request = request(&mut stream);
                let body = match request.split_once("\r\n\r\n") {
                    Some((head, report)) if head.starts_with("POST /report ") => {
                        // After the test has failed, nobody receives it.
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

/// Returns a request with its announced body. A connection that a browser opens and does not use yields an empty text.
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
        .env("TMPDIR", parent_of_socket_folders())
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
    let payload: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    let bytes = trace_with(&payload);
    std::fs::write(&trace, &bytes).unwrap();
    let site = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = site.local_addr().unwrap().port();
    let serving = Serving::start(&trace, |command| {
        command.args(["-n", "--origin", &format!("http://127.0.0.1:{port}")]);
    });
    let (_, url) = serving.address.split_once("?url=").unwrap();
    let url = url.split('&').next().unwrap();
    // The page fetches as the UI does, and then in the way that pages can use without a preflight.
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

/// Returns the folder of the tools beside the trace processor, which include the real UI.
fn ui_tools() -> Option<PathBuf> {
    let Some(tpq) = std::env::var_os("FERRETTO_TPQ").map(PathBuf::from) else {
        println!("skipped: FERRETTO_TPQ does not say where upstream's trace processor and UI are");
        return None;
    };
    chromium()?;
    Some(tpq.parent().unwrap().join("../lib"))
}

/// A packet with a clock snapshot: the boot clock at 1 s.
fn with_a_clock() -> Vec<u8> {
    let packet = [
        0x32, 0x0a, 0x0a, 0x08, 0x08, 0x06, 0x10, 0x80, 0x94, 0xeb, 0xdc, 0x03,
    ];
    [&[0x0a, packet.len() as u8], &packet[..]].concat()
}

/// Runs a program of `node` with these arguments; returns its output.
fn node(script: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new("node")
        .args(["-e", script])
        .args(arguments)
        // Browsers make sockets there.
        .env("TMPDIR", parent_of_socket_folders())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_real_ui_opens_the_trace() {
    let Some(tools) = ui_tools() else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("my trace.pftrace");
    std::fs::write(&trace, with_a_clock()).unwrap();

    let _port = UiPort::lock();
    let ui_port = free_port();
    let mut command = super::ferretto("open");
    command
        .arg(&trace)
        .args(["-n", "--origin", &format!("http://127.0.0.1:{ui_port}")]);
    let serving = Serving::of(command.spawn().unwrap());
    // The only port that the UI's content security policy allows.
    assert_eq!(serving.port(), 9001);
    let (_, route) = serving.address.split_once('#').unwrap();
    let shown = node(
        VISIT_UI,
        &[
            tools.join("ui_page.js").as_os_str(),
            ui_port.to_string().as_ref(),
            format!("#{route}").as_ref(),
        ],
    );
    assert!(shown.starts_with("0 errors in my trace.pftrace"), "{shown}");
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
}

/// Visits an address with the tools' browser, which reaches only this machine, and prints the content of the UI there.
const VISIT_COPY: &str = "
const [tools, address] = process.argv.slice(1);
const fs = require('fs'), os = require('os'), path = require('path');
const {ensureSetup} = require(path.join(tools, 'setup.js'));
const {waitForTrace} = require(path.join(tools, 'ui_page.js'));
const {chromium} = require(path.join(ensureSetup('browser').nodeModules, 'playwright-core'));
(async () => {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'ferretto-test-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-dev-shm-usage',
           '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'],
  });
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    page.setDefaultTimeout(100000);
    const failed = [];
    page.on('response', (answer) => { if (answer.status() >= 400) failed.push(answer.url()); });
    page.on('pageerror', (error) => failed.push(error.message));
    await page.goto(address.replace('/#!', '/?testing=1#!'));
    await waitForTrace(page);
    const {traceTitle, importErrors} = await page.evaluate(() => self.app.trace.traceInfo);
    console.log(`${importErrors} errors in ${traceTitle}`);
    // The UI checks in vain whether a trace processor listens here.
    console.log(failed.filter((url) => !url.endsWith('/status')).join(' '));
  } finally {
    await context.close();
    fs.rmSync(profile, {recursive: true, force: true, maxRetries: 5, retryDelay: 100});
  }
})().catch((error) => { console.error(error); process.exit(1); });
";

/// Prints the folder of the UI's files.
const WEB_DIST: &str = "const path = require('path'); console.log(require(path.join(process.argv[1], 'setup.js')).ensureSetup('browser').webDist)";

#[test]
fn a_copy_of_the_real_ui_opens_the_trace_without_any_network() {
    let Some(tools) = ui_tools() else { return };
    let copy = PathBuf::from(node(WEB_DIST, &[tools.as_os_str()]).trim_end());
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("perfetto-ui.zip");
    zip_of(&copy, &archive);
    let trace = folder.path().join("my trace.pftrace.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&with_a_clock()).unwrap();
    std::fs::write(&trace, encoder.finish().unwrap()).unwrap();
    for ui in [copy, archive] {
        let serving = Serving::start(&trace, |command| {
            command.arg("--ui").arg(&ui).arg("-n");
        });
        let shown = node(VISIT_COPY, &[tools.as_os_str(), serving.address.as_ref()]);
        let (title, failed) = shown.split_once('\n').unwrap();
        assert!(
            title.starts_with("0 errors in my trace.pftrace.gz"),
            "{}: {title}",
            ui.display()
        );
        assert_eq!(failed.trim_end(), "", "{}", ui.display());
        serving.signal(Signal::INT);
        let (status, said) = serving.end();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("the browser has the trace now"), "{said}");
        assert!(
            !said.contains("cannot read") && !said.contains("refused"),
            "{said}"
        );
    }
}

/// Packs a folder as upstream packs releases of the UI.
fn zip_of(folder: &Path, archive: &Path) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(archive).unwrap());
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            let options = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Deflated)
                .compression_level(Some(1));
            zip.start_file(name, options).unwrap();
            zip.write_all(&std::fs::read(&path).unwrap()).unwrap();
        }
    }
    zip.finish().unwrap();
}
