use super::*;

const WHOLE: &str =
    "GET /a%20b?c HTTP/1.1\r\nHost: 127.0.0.1:9001\r\nAccept: */*\r\naccept: text/html\r\n\r\n";

#[test]
fn a_head_has_its_parts_and_excludes_the_bytes_after_it() {
    let bytes = format!("{WHOLE}\x7frest");
    let head = Head::parse(bytes.as_bytes()).unwrap().unwrap();
    assert_eq!(
        (head.method, head.path, head.minor_version),
        ("GET", "/a%20b?c", 1)
    );
    assert_eq!(head.rest, b"\x7frest");
    assert_eq!(head.one("hOST"), Ok(Some(&b"127.0.0.1:9001"[..])));
    assert_eq!(head.one("Origin"), Ok(None));
    assert_eq!(head.one("Accept"), Err(Repeated));
    assert_eq!(
        head.all("Accept").collect::<Vec<_>>(),
        [&b"*/*"[..], b"text/html"]
    );
}

#[test]
fn a_head_is_waited_for_but_not_for_ever() {
    for end in 0..WHOLE.len() {
        assert!(
            Head::parse(&WHOLE.as_bytes()[..end]).unwrap().is_none(),
            "{end} bytes"
        );
    }
    for start in ["GET /", "GET / HTTP/1.1\r\nX: "] {
        let endless = start.to_owned() + &"x".repeat(LONGEST_HEAD);
        let (most, one_less) = (
            &endless.as_bytes()[..LONGEST_HEAD],
            &endless.as_bytes()[..LONGEST_HEAD - 1],
        );
        assert!(Head::parse(one_less).unwrap().is_none());
        assert_eq!(Head::parse(most).unwrap_err(), BadHead::TooLong);
    }
    let long = WHOLE.replace("*/*", &"x".repeat(LONGEST_HEAD));
    assert_eq!(Head::parse(long.as_bytes()).unwrap_err(), BadHead::TooLong);
    let many = WHOLE.replace("Accept: */*\r\n", &"A: b\r\n".repeat(MOST_FIELDS));
    assert_eq!(Head::parse(many.as_bytes()).unwrap_err(), BadHead::TooLong);
}

#[test]
fn invalid_requests_are_recognised_at_once() {
    for garbage in [
        "\0\r\n\r\n",
        "\x16\x03\x01\x02\x00",
        "GET\r\n\r\n",
        "EHLO x\r\n\r\n",
        "GET / HTTP/2.0\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n",
        "GET / HTTP/1.1\r\nA: b\r\n folded\r\n",
    ] {
        let error = Head::parse(garbage.as_bytes()).unwrap_err();
        assert_eq!(error, BadHead::Malformed, "{garbage:?}");
    }
}

#[test]
fn an_answer_is_one_that_every_browser_takes_for_the_last() {
    let text = |response: Vec<u8>| String::from_utf8(response).unwrap();
    for (bad, status) in [(BadHead::Malformed, "400 "), (BadHead::TooLong, "431 ")] {
        let answer = text(bad.response());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(
            answer.contains("\r\nConnection: close\r\n") && !answer.contains("Access-Control"),
            "{answer}"
        );
    }
    let answer = text(Response::new("404 Not Found").with("Allow", 7).text("No.\n"));
    assert!(
        answer.contains("\r\nAllow: 7\r\n") && answer.contains("\r\nContent-Length: 4\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\nNo.\n"), "{answer}");
    assert!(text(Response::new("204 No Content").head()).ends_with("\r\n\r\n"));
}

#[test]
fn texts_of_strangers_cannot_control_the_terminal() {
    let quote = quoted(format!("a\u{9b}2J{}", "x".repeat(200)).as_bytes());
    assert!(quote.starts_with("a\\u{9b}2Jx") && quote.len() < 100, "{quote}");
    assert_eq!(quoted(b"\xff\"\n"), "\u{fffd}\\\"\\n");
}
