use super::*;

fn ui(address: &str) -> Ui {
    address
        .parse()
        .unwrap_or_else(|error| panic!("{address}: {error}"))
}

#[test]
fn a_plain_name_gives_the_address_that_upstreams_tools_say() {
    assert_eq!(
        Ui::default().address(9001, b"trace_2026-11.pftrace"),
        "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/trace_2026-11.pftrace&referrer=open_trace_in_ui"
    );
}

/// Applies the UI's decoding of the argument, then the browser's handling of the address (URL standard, path state).
fn path_that_is_fetched(argument: &str) -> String {
    let url = String::from_utf8(decoded(argument)).unwrap();
    let url = url
        .trim_end_matches(|c: char| c <= ' ')
        .replace(['\t', '\n', '\r'], "");
    let path = url.split(['#', '?']).next().unwrap();
    path.replace('\\', "/")
        .chars()
        .map(|c| match c {
            '!'..='~' if !matches!(c, '"' | '<' | '>' | '^' | '`' | '{' | '}') => c.to_string(),
            c => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
        })
        .collect()
}

#[test]
fn the_browser_requests_the_file_under_any_name() {
    let mut names: Vec<Vec<u8>> = [
        "a b",
        " a ",
        "a  ",
        "a+b&c=d;e",
        "100%",
        "%41",
        "%2F",
        "#1?x=y",
        "a\\b",
        "ä€🦀",
        "a\"<>'`{}|^",
        "\t\r\n\u{7f}\u{85}",
        "..a",
    ]
    .map(|name| name.as_bytes().to_vec())
    .to_vec();
    names.extend((1..=u8::MAX).filter(|byte| *byte != b'/').map(|byte| vec![byte]));
    names.push((1..=u8::MAX).filter(|byte| *byte != b'/').collect());
    for name in names {
        let argument = encoded_twice_where_needed(&name);
        assert!(
            argument
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b)),
            "{argument} ends the argument"
        );
        let path = path_that_is_fetched(&argument);
        assert_eq!(decoded(&path), name, "{argument} -> {path}");
    }
}

#[test]
fn names_stay_readable_where_they_can() {
    let shown =
        |name: &str| String::from_utf8(decoded(&encoded_twice_where_needed(name.as_bytes()))).unwrap();
    for name in ["my trace (2).pftrace", "größe+1.pftrace"] {
        assert_eq!(shown(name), name);
    }
    assert_eq!(shown("100%.pftrace"), "100%25.pftrace");
}

#[test]
fn malformed_percent_encodings_are_taken_literally() {
    for (path, name) in [
        ("a%2", "a%2"),
        ("%zz", "%zz"),
        ("%", "%"),
        ("%+1", "%+1"),
        ("%e4%", "\u{fffd}%"),
    ] {
        assert_eq!(String::from_utf8_lossy(&decoded(path)), name, "{path}");
    }
    assert_eq!(decoded("%é"), "%é".as_bytes());
}

#[test]
fn an_origin_is_the_one_that_browsers_send() {
    for (address, base, origin) in [
        (
            "https://ui.perfetto.dev/",
            "https://ui.perfetto.dev",
            "https://ui.perfetto.dev",
        ),
        (
            "http://localhost:10000",
            "http://localhost:10000",
            "http://localhost:10000",
        ),
        (
            "HTTPS://Traces.Example:443/ui/v1//",
            "HTTPS://Traces.Example:443/ui/v1",
            "https://traces.example",
        ),
        ("http://[::1]:80", "http://[::1]:80", "http://[::1]"),
    ] {
        let ui = ui(address);
        assert_eq!((ui.base.as_str(), ui.origin()), (base, origin), "{address}");
    }
    assert!(ui("https://UI.perfetto.dev:443/").is_public());
    assert!(!ui("http://ui.perfetto.dev").is_public());
}

#[test]
fn invalid_addresses_of_a_ui_are_refused() {
    for text in [
        "",
        "ui.perfetto.dev",
        "https://",
        "https:///x",
        "http://:80",
        "ftp://x",
        "javascript://x",
        "null",
        "https://x/#!/",
        "https://x?y",
        "https://user@x",
        "https://x\r\nSet-Cookie: a",
        "https://x y",
        "https://ä",
    ] {
        assert_eq!(text.parse::<Ui>(), Err(NoUi), "{text}");
    }
}

#[test]
fn the_tunnel_leads_to_where_ssh_led() {
    let user = Some("maria".to_owned());
    let line = |connection, user: &Option<String>, far| {
        SshLogin::from_variables(connection, user.clone()).tunnel(9001, far)
    };
    assert_eq!(
        line("10.0.0.7 51234 192.0.2.1 22", &user, 9001),
        "ssh -L 9001:localhost:9001 maria@192.0.2.1"
    );
    assert_eq!(
        line("fe80::2%eth0 51234 fe80::1%eth0 2222", &None, 9100),
        "ssh -L 9001:localhost:9100 -p 2222 fe80::1%eth0"
    );
    for odd in ["", "a b", "1 2 $(reboot) 22"] {
        let expected = "ssh -L 9001:localhost:9001 HOST";
        assert_eq!(line(odd, &Some("a;b".to_owned()), 9001), expected, "{odd}");
    }
}

#[test]
fn where_a_ui_is_can_be_connected_to() {
    for (address, host, port) in [
        ("https://ui.perfetto.dev", "ui.perfetto.dev", 443),
        ("http://localhost/x", "localhost", 80),
        ("http://localhost:10000/", "localhost", 10_000),
        ("https://[::1]", "::1", 443),
        ("http://[::1]:8080", "::1", 8080),
    ] {
        let ui: Ui = address.parse().unwrap();
        assert_eq!(ui.host_and_port(), (host.to_owned(), port));
    }
}
