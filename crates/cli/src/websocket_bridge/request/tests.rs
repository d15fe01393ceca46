//! Verdicts on requests.

use super::*;
use crate::http::BadHead;

const UI: &str = "Origin: https://ui.perfetto.dev";
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A handshake of the UI in Chromium. `changes` replace lines with the same names, or are added.
fn handshake(path: &str, changes: &[&str]) -> Vec<u8> {
    let key = format!("Sec-WebSocket-Key: {KEY}");
    let usual = [
        "Host: 127.0.0.1:8037",
        "Connection: Upgrade",
        "Upgrade: websocket",
        UI,
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        &key,
    ];
    let name = |line: &str| line.split(':').next().unwrap().to_ascii_lowercase();
    let kept = usual
        .iter()
        .filter(|line| changes.iter().all(|change| name(change) != name(line)));
    // A line without a value removes the field.
    let lines: Vec<&str> = kept
        .chain(changes)
        .copied()
        .filter(|line| !line.ends_with(':'))
        .collect();
    format!("GET {path} HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

fn verdict(request: &[u8]) -> Verdict {
    let head = Head::parse(request).unwrap().expect("it is whole");
    judge(
        &head,
        &Origins::with_additional("http://a.example,,http://b.example:1"),
    )
}

/// Returns the status of the answer.
fn status(request: &[u8]) -> u16 {
    let response = match verdict(request) {
        Verdict::Grant(upgrade) => upgrade.grant(),
        Verdict::Respond(response) | Verdict::RefuseOrigin { response, .. } => response,
    };
    let text = String::from_utf8(response).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_uis_origins_and_those_added_may_connect() {
    for origin in [
        "https://ui.perfetto.dev",
        "http://localhost:10000",
        "http://127.0.0.1:10000",
        "http://a.example",
        "http://b.example:1",
        "HTTPS://UI.Perfetto.DEV",
    ] {
        let request = handshake("/traced", &[&format!("Origin: {origin}")]);
        assert_eq!(status(&request), 101, "{origin}");
    }
}

#[test]
fn all_other_origins_are_refused_whatever_they_ask_for() {
    for origin in [
        "https://evil.example",
        "null",
        "http://ui.perfetto.dev",
        "https://ui.perfetto.dev.evil.example",
        "https://ui.perfetto.dev:443",
        "https://ui.perfetto.dev/",
        "http://localhost:8037",
        "http://127.0.0.1:8037",
        "http://a.example,",
        "file://",
        "\u{ff}",
    ] {
        for path in ["/traced", "/adb", "/", "/nothing"] {
            let request = handshake(path, &[&format!("Origin: {origin}")]);
            assert_eq!(status(&request), 403, "{origin} {path}");
        }
    }
    assert_eq!(status(&handshake("/traced", &["Origin:"])), 403, "none");
    let twice = [UI, "Origin: https://evil.example"];
    assert_eq!(status(&handshake("/traced", &twice)), 403);
    assert_eq!(status(&handshake("/traced", &[UI, UI])), 403);
    let evil = "OPTIONS /traced HTTP/1.1\r\nOrigin: https://evil.example\r\n\r\n";
    assert_eq!(status(evil.as_bytes()), 403);
}

#[test]
fn each_path_has_its_target() {
    let target = |path| match verdict(&handshake(path, &[])) {
        Verdict::Grant(upgrade) => Some(upgrade.target),
        _ => None,
    };
    assert_eq!(target("/traced"), Some(Target::Traced));
    assert_eq!(target("/adb"), Some(Target::Adb));
    for path in [
        "/",
        "/traced/",
        "/traced?x",
        "/TRACED",
        "//traced",
        "http://127.0.0.1/traced",
    ] {
        assert_eq!(status(&handshake(path, &[])), 404, "{path}");
    }
}

#[test]
fn invalid_websocket_handshakes_are_refused() {
    for (change, expected) in [
        ("Upgrade:", 404),
        ("Upgrade: h2c", 404),
        ("Connection: keep-alive", 404),
        ("Connection:", 404),
        ("Sec-WebSocket-Version: 8", 505),
        ("Sec-WebSocket-Version:", 505),
        ("Sec-WebSocket-Key:", 400),
        ("Sec-WebSocket-Key: short", 400),
        ("Content-Length: 5", 400),
        ("Transfer-Encoding: chunked", 400),
    ] {
        assert_eq!(status(&handshake("/traced", &[change])), expected, "{change}");
    }
    let whole = String::from_utf8(handshake("/traced", &[])).unwrap();
    assert_eq!(status(whole.replace("GET", "POST").as_bytes()), 404);
    assert_eq!(status(whole.replace("HTTP/1.1", "HTTP/1.0").as_bytes()), 404);
    let refused = |request| Head::parse(request).unwrap_err();
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n";
    assert_eq!(refused(tls), BadHead::Malformed);
    let no_header = b"GET /traced HTTP/1.1\r\nno header\r\n\r\n";
    assert_eq!(refused(no_header), BadHead::Malformed);
    assert_eq!(
        status(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8037\r\n\r\n"),
        404,
        "typed in"
    );
}

#[test]
fn lists_in_headers_may_be_written_as_browsers_do() {
    for change in [
        "Connection: keep-alive, Upgrade",
        "Connection: upgrade",
        "Upgrade: WebSocket",
        "Content-Length: 0",
    ] {
        assert_eq!(status(&handshake("/traced", &[change])), 101, "{change}");
    }
}

#[test]
fn a_grant_answers_the_key_and_takes_no_extension() {
    let Verdict::Grant(upgrade) = verdict(&handshake("/traced", &[])) else {
        panic!("not granted");
    };
    let grant = String::from_utf8(upgrade.grant()).unwrap();
    // The example of RFC 6455, section 1.3.
    assert!(
        grant.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
        "{grant}"
    );
    assert!(
        !grant.contains("Extensions") && grant.ends_with("\r\n\r\n"),
        "{grant}"
    );
}

#[test]
fn a_preflight_request_of_an_allowed_page_is_granted_as_upstream_does() {
    let request = format!("OPTIONS /traced HTTP/1.1\r\n{UI}\r\n\r\n");
    let Verdict::Respond(response) = verdict(request.as_bytes()) else {
        panic!("no answer");
    };
    let text = String::from_utf8(response).unwrap();
    assert!(text.starts_with("HTTP/1.1 204 "), "{text}");
    for line in [
        "Access-Control-Allow-Origin: https://ui.perfetto.dev",
        "Access-Control-Allow-Private-Network: true",
        "Vary: Origin",
    ] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "{text}");
    }
}

#[test]
fn no_response_lets_pages_read_it_that_may_not() {
    for request in [
        handshake("/traced", &["Origin: https://evil.example"]),
        handshake("/nothing", &["Origin:"]),
    ] {
        let (Verdict::Respond(response) | Verdict::RefuseOrigin { response, .. }) = verdict(&request) else {
            panic!("granted");
        };
        let text = String::from_utf8(response).unwrap();
        assert!(
            !text.contains("Access-Control") && !text.contains("evil"),
            "{text}"
        );
    }
}
