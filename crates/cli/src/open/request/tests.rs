use super::*;
use crate::http::BadHead;

const UI: &str = "https://ui.perfetto.dev";

fn policy() -> Policy {
    Policy::new(Audience::PagesOf(UI.to_owned()), b"my trace.pftrace")
}

fn judged(request: &str) -> Answer {
    judged_by(&policy(), request)
}

/// Returns this policy's answer to a request. The server itself answers malformed heads before any policy sees them.
fn judged_by(policy: &Policy, request: &str) -> Answer {
    match Head::parse(request.as_bytes()) {
        Ok(Some(head)) => policy.answer(&head),
        Ok(None) => panic!("{request:?} is not whole"),
        Err(BadHead::Malformed) => Answer::Refused(Refusal::Malformed),
        Err(BadHead::TooLong) => panic!("{request:?} is too long"),
    }
}

/// A request for the file from the UI, with these values.
fn request(method: &str, path: &str, host: &str, origin: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nAccept: */*\r\n\r\n")
}

fn from_ui(method: &str, path: &str) -> Answer {
    judged(&request(method, path, "127.0.0.1:9001", UI))
}

#[test]
fn the_uis_pages_may_have_the_file() {
    assert_eq!(from_ui("GET", "/my%20trace.pftrace"), Answer::Trace(Part::All));
    assert_eq!(
        from_ui("GET", "/%6dy%20trace%2Epftrace"),
        Answer::Trace(Part::All)
    );
    assert_eq!(from_ui("HEAD", "/my%20trace.pftrace"), Answer::Trace(Part::Head));
    assert_eq!(
        from_ui("OPTIONS", "/my%20trace.pftrace"),
        Answer::Permission {
            private_network: false
        }
    );
    let preflight = request("OPTIONS", "/my%20trace.pftrace", "localhost:9001", UI)
        .replace("Accept: */*", "Access-Control-Request-Private-Network: true");
    assert_eq!(
        judged(&preflight),
        Answer::Permission {
            private_network: true
        }
    );
}

#[test]
fn nothing_else_is_served() {
    for path in [
        "/",
        "/other",
        "//my%20trace.pftrace",
        "/./my%20trace.pftrace",
        "/x/../my%20trace.pftrace",
        "/my%20trace.pftrace/",
        "/my%20trace.pftrace?x",
        "/my%20trace.pftrace%00",
        "/my%2520trace.pftrace",
        "/MY%20trace.pftrace",
        "http://127.0.0.1:9001/my%20trace.pftrace",
        "*",
    ] {
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(
                from_ui(method, path),
                Answer::Refused(Refusal::NoSuchFile),
                "{path}"
            );
        }
    }
}

#[test]
fn only_asking_is_allowed() {
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE", "get", "GETS",
    ] {
        let answer = from_ui(method, "/my%20trace.pftrace");
        assert_eq!(answer, Answer::Refused(Refusal::Method), "{method}");
    }
    // The UI does this to find trace processors.
    assert_eq!(from_ui("POST", "/status"), Answer::Refused(Refusal::Method));
}

#[test]
fn other_pages_are_refused_whatever_they_ask_for() {
    for origin in [
        "https://evil.example",
        "http://ui.perfetto.dev",
        "https://ui.perfetto.dev.evil.example",
        "https://ui.perfetto.dev:8443",
        "https://UI.perfetto.dev",
        "https://ui.perfetto.dev/",
        "http://127.0.0.1:9001",
        "null",
        "",
    ] {
        for (method, path) in [("GET", "/my%20trace.pftrace"), ("POST", "/"), ("GET", "/other")] {
            let answer = judged(&request(method, path, "127.0.0.1:9001", origin));
            let refusal = Refusal::ForeignOrigin(Some(origin.to_owned()));
            assert_eq!(answer, Answer::Refused(refusal), "{origin}");
        }
    }
    let without = "GET /my%20trace.pftrace HTTP/1.1\r\nHost: 127.0.0.1:9001\r\n\r\n";
    assert_eq!(judged(without), Answer::Refused(Refusal::ForeignOrigin(None)));
}

#[test]
fn names_that_others_can_give_this_machine_are_refused() {
    let hosts = [
        ("127.0.0.1", true),
        ("127.0.0.1:1", true),
        ("LocalHost:65535", true),
        ("[::1]:9001", true),
        ("rebound.example:9001", false),
        ("127.0.0.1.evil.example", false),
        ("localhost.evil.example:9001", false),
        ("localhostx", false),
        ("localhost:", false),
        ("localhost:9001:1", false),
        ("localhost:x", false),
        ("127.0.0.2", false),
        ("0.0.0.0:9001", false),
        ("[::1", false),
        ("192.168.0.3:9001", false),
        ("", false),
    ];
    for (host, good) in hosts {
        let expected = match good {
            true => Answer::Trace(Part::All),
            false => Answer::Refused(Refusal::ForeignHost(host.to_owned())),
        };
        assert_eq!(
            judged(&request("GET", "/my%20trace.pftrace", host, UI)),
            expected,
            "{host}"
        );
    }
}

#[test]
fn ambiguous_requests_are_refused() {
    let good = request("GET", "/my%20trace.pftrace", "127.0.0.1:9001", UI);
    for (line, with) in [
        ("Accept: */*", "Origin: https://evil.example"),
        ("Accept: */*", "host: evil.example"),
        ("Host: 127.0.0.1:9001\r\n", ""),
        ("HTTP/1.1", "HTTP/2.0"),
        ("HTTP/1.1", "HTTP/1.1 x"),
        ("Accept: */*", " folded"),
        ("Accept: */*", "no colon"),
    ] {
        let bad = good.replace(line, with);
        assert_eq!(judged(&bad), Answer::Refused(Refusal::Malformed), "{bad}");
    }
    for garbage in [
        "\0\r\n\r\n",
        "\x16\x03\x01\x02\x00",
        "GET\r\n\r\n",
        "EHLO x\r\n\r\n",
    ] {
        assert_eq!(
            judged(garbage),
            Answer::Refused(Refusal::Malformed),
            "{garbage:?}"
        );
    }
}

#[test]
fn heads_name_the_ui_only_to_its_own_pages() {
    let head = |answer| String::from_utf8(policy().head(&answer, "a/b", Some(5_000_000_000))).unwrap();
    let allows = "\r\nAccess-Control-Allow-Origin: https://ui.perfetto.dev\r\n";
    for answer in [
        Answer::Trace(Part::All),
        Answer::Trace(Part::Head),
        Answer::Permission {
            private_network: true,
        },
        Answer::Refused(Refusal::Method),
        Answer::Refused(Refusal::NoSuchFile),
    ] {
        assert!(head(answer.clone()).contains(allows), "{answer:?}");
    }
    for refusal in [
        Refusal::Malformed,
        Refusal::Busy,
        Refusal::ForeignHost("x".into()),
        Refusal::ForeignOrigin(None),
    ] {
        let head = head(Answer::Refused(refusal));
        assert!(
            (head.starts_with("HTTP/1.1 4") || head.starts_with("HTTP/1.1 503 "))
                && !head.contains("perfetto"),
            "{head}"
        );
    }
    assert!(head(Answer::Trace(Part::All)).contains("\r\nContent-Length: 5000000000\r\n"));
    assert_eq!(head(Answer::Trace(Part::All)), head(Answer::Trace(Part::Head)));
    let permission = head(Answer::Permission {
        private_network: true,
    });
    assert!(
        permission.contains("\r\nAccess-Control-Allow-Private-Network: true\r\n"),
        "{permission}"
    );
    assert!(permission.starts_with("HTTP/1.1 204 ") && !permission.contains("Content-Length"));
}

#[test]
fn texts_of_strangers_cannot_control_the_terminal() {
    let answer = judged(&request(
        "GET",
        "/",
        "127.0.0.1",
        &format!("a\u{9b}2J{}", "x".repeat(200)),
    ));
    let Answer::Refused(Refusal::ForeignOrigin(Some(quote))) = answer else {
        panic!("{answer:?}");
    };
    assert!(quote.starts_with("a\\u{9b}2Jx") && quote.len() < 100, "{quote}");
}

/// Sends these fields to the copy of the UI.
fn to_own(method: &str, path: &str, lines: &str) -> Answer {
    let policy = Policy::new(Audience::OwnPages, b"my trace.pftrace");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:9001\r\n{lines}\r\n");
    judged_by(&policy, &request)
}

#[test]
fn a_copy_of_the_ui_is_for_everybody_and_the_trace_for_its_own_pages() {
    let page = |path: &str, part| Answer::Page(path.to_owned(), part);
    assert_eq!(to_own("GET", "/?testing=1", ""), page("/", Part::All));
    assert_eq!(to_own("HEAD", "/v1/a%20b.js", ""), page("/v1/a b.js", Part::Head));
    // The path is decoded once. The site judges the result.
    assert_eq!(to_own("GET", "/%2e%2e%2fx%252e", ""), page("/../x%2e", Part::All));
    assert_eq!(to_own("GET", "/%ff", ""), Answer::Refused(Refusal::NoSuchFile));

    let trace = "/trace/my%20trace.pftrace";
    for lines in [
        "Sec-Fetch-Site: same-origin\r\n",
        "Origin: http://127.0.0.1:9001\r\n",
    ] {
        assert_eq!(to_own("GET", trace, lines), Answer::Trace(Part::All));
        assert_eq!(to_own("HEAD", trace, lines), Answer::Trace(Part::Head));
        assert_eq!(to_own("OPTIONS", trace, lines), Answer::Refused(Refusal::Method));
    }
    // Other pages, also those on other ports of this machine; pictures and scripts in them; links; and programs that are no browsers.
    for (lines, origin) in [
        ("Sec-Fetch-Site: same-site\r\n", None),
        ("Sec-Fetch-Site: cross-site\r\n", None),
        ("Sec-Fetch-Site: none\r\n", None),
        ("", None),
        ("Origin: http://127.0.0.1:9002\r\n", Some("http://127.0.0.1:9002")),
        ("Origin: http://localhost:9001\r\n", Some("http://localhost:9001")),
        (
            "Origin: https://127.0.0.1:9001\r\n",
            Some("https://127.0.0.1:9001"),
        ),
        ("Origin: null\r\nSec-Fetch-Site: same-origin\r\n", Some("null")),
        (
            "Origin: https://ui.perfetto.dev\r\n",
            Some("https://ui.perfetto.dev"),
        ),
    ] {
        let refusal = Refusal::ForeignOrigin(origin.map(str::to_owned));
        assert_eq!(to_own("GET", trace, lines), Answer::Refused(refusal), "{lines}");
    }
    let twice = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(to_own("GET", trace, twice), Answer::Refused(Refusal::Malformed));
    let policy = Policy::new(Audience::OwnPages, b"t");
    let rebound = judged_by(&policy, "GET / HTTP/1.1\r\nHost: rebound.example:9001\r\n\r\n");
    let refusal = Refusal::ForeignHost("rebound.example:9001".to_owned());
    assert_eq!(rebound, Answer::Refused(refusal));
    let head = String::from_utf8(policy.head(&page("/", Part::All), "text/html", Some(5))).unwrap();
    assert!(
        head.contains("\r\nContent-Security-Policy: frame-ancestors 'none'\r\n"),
        "{head}"
    );
    assert!(!head.contains("Access-Control"), "{head}");
}
