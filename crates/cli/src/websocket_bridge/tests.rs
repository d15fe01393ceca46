//! Flags and messages.

use std::net::TcpListener;

use super::*;

fn parsed(line: &str) -> Result<Args, clap::Error> {
    command(Program::Perfetto)
        .try_get_matches_from(std::iter::once(NAME).chain(line.split_whitespace()))
        .and_then(|matches| Args::from_arg_matches(&matches))
}

#[test]
fn the_last_list_of_origins_counts_and_the_flag_may_be_cut_short() {
    for line in [
        "--http-additional-cors-origins a,b",
        "--http-additional-cors-origins=a,b",
        "--http-additional-cors-origins c --http-additional-cors-origins a,b",
        "--http a,b",
    ] {
        let args = parsed(line).unwrap();
        assert_eq!(
            args.http_additional_cors_origins.as_deref(),
            Some("a,b"),
            "{line}"
        );
        assert_eq!(args.port, 8037);
    }
    assert!(parsed("").unwrap().http_additional_cors_origins.is_none());
    assert!(parsed("--http-additional-cors-origins").is_err());
    assert!(parsed("--other").is_err());
}

#[test]
fn the_debug_bridge_is_where_its_variable_says() {
    let at = |value: &str| adb_server(Some(value.into())).map(|address| address.to_string());
    assert_eq!(adb_server(None).unwrap().to_string(), "127.0.0.1:5037");
    assert_eq!(at("tcp:10.52.8.53:5038").unwrap(), "10.52.8.53:5038");
    for wrong in ["10.52.8.53:5037", "tcp:", "tcp:5037", "tcp:/path", ""] {
        assert!(at(wrong).unwrap_err().contains("tcp:HOST:PORT"), "{wrong}");
    }
}

#[test]
fn a_taken_port_is_reported_with_advice() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = listen(port).err().unwrap();
    for part in [format!(":{port}'"), "in use".into(), "ss -ltnp".into()] {
        assert!(error.contains(&part), "{error}");
    }
}
