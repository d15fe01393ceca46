//! The tunnel does not start, and says which file or flag has which mistake.

use std::process::Stdio;

use rcgen::ExtendedKeyUsagePurpose;

use crate::ends::command;
use crate::fleet::{Fleet, HOST, Identity, Valid};

/// Why a tunnel with these files and flags does not start.
fn refusal(end: &str, to: &str, identity: &Identity, flags: &[&str]) -> String {
    let mut command = command(end, "127.0.0.1:0", to, identity);
    let output = command.args(flags).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn errors_say_what_is_wrong_with_which_file() {
    let fleet = Fleet::new();
    let good = fleet.guest();
    let other = fleet.host();
    let path = |name: &str, text: &str| {
        let path = fleet.path(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let empty = path("empty", "");
    let broken = path(
        "broken",
        "-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----\n",
    );
    let nonsense = path(
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let key = path(
        "nonsense.key",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    );
    let missing = fleet.path("missing");
    let expired = fleet.issue("old.example", ExtendedKeyUsagePurpose::ClientAuth, Valid::Once);
    let early = fleet.issue("new.example", ExtendedKeyUsagePurpose::ClientAuth, Valid::OneDay);
    let no_list = path("list", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let revoked = fleet.issue("revoked.example", ExtendedKeyUsagePurpose::ClientAuth, Valid::Now);
    let list = fleet.revoke(&[&revoked], Valid::Now);
    let strangers = Fleet::new();
    let old_list = fleet.path("old-list");
    std::fs::rename(fleet.revoke(&[], Valid::Once), &old_list).unwrap();
    let list_of_strangers = strangers.revoke(&[], Valid::Now);
    fleet.revoke(&[&revoked], Valid::Now);
    let with_crl = |identity: &Identity, crl: &std::path::Path| Identity {
        crl: Some(crl.to_owned()),
        ..identity.clone()
    };
    let with_ca = |ca: &std::path::Path| Identity {
        ca: ca.to_owned(),
        ..good.clone()
    };
    let with_cert = |cert: &std::path::Path| Identity {
        cert: cert.to_owned(),
        ..good.clone()
    };
    let with_key = |key: &std::path::Path| Identity {
        key: key.to_owned(),
        ..good.clone()
    };
    let cases = [
        (with_ca(&missing), &missing, "No such file"),
        (with_ca(&empty), &empty, "holds no certificate"),
        (with_ca(&good.key), &good.key, "holds no certificate"),
        (with_ca(&broken), &broken, "is no PEM"),
        (with_ca(&nonsense), &nonsense, "is of no use as an authority"),
        (with_cert(&missing), &missing, "No such file"),
        (with_cert(&empty), &empty, "holds no certificate"),
        (with_cert(&nonsense), &nonsense, "is of no use"),
        (with_cert(&other.cert), &other.cert, "does not belong to"),
        (with_key(&missing), &missing, "No such file"),
        (with_key(&empty), &empty, "holds no private key"),
        (with_key(&good.cert), &good.cert, "holds no private key"),
        (with_key(&key), &key, "cannot be used"),
        (expired.clone(), &expired.cert, "has expired"),
        (early.clone(), &early.cert, "not valid yet"),
        (with_crl(&good, &missing), &missing, "No such file"),
        (
            with_crl(&good, &empty),
            &empty,
            "holds no list of revoked certificates",
        ),
        (with_crl(&good, &no_list), &no_list, "is of no use"),
    ];
    for (identity, file, said) in cases {
        for end in ["guest", "host"] {
            let log = refusal(end, "127.0.0.1:1", &identity, &[]);
            assert!(log.contains(&file.display().to_string()), "{end}: {log}");
            assert!(log.contains(said), "{end}, {said}: {log}");
        }
    }
    let log = refusal("guest", "127.0.0.1:1", &with_crl(&revoked, &list), &[]);
    assert!(log.contains("is revoked by the list in"), "{log}");
    let log = refusal("guest", "127.0.0.1:1", &with_crl(&good, &old_list), &[]);
    assert!(log.contains("has expired: have a new one issued"), "{log}");
    // Others may have been issued by other authorities than this end's.
    let log = refusal("host", "127.0.0.1:0", &with_crl(&other, &list_of_strangers), &[]);
    assert!(log.contains("would connect to itself"), "{log}");
}

#[test]
fn errors_say_what_is_wrong_with_which_flag() {
    let fleet = Fleet::new();
    let (guest, host) = (fleet.guest(), fleet.host());
    let cases = [
        ("guest", "vsock://2:1", &[][..], "--tls-name"),
        (
            "guest",
            "127.0.0.1:1",
            &["--tls-name", "a b"],
            "no name that a certificate can have",
        ),
        (
            "host",
            "127.0.0.1:1",
            &["--tls-name", HOST],
            "is for a guest's end",
        ),
        ("host", "127.0.0.1:0", &[], "would connect to itself"),
    ];
    for (end, to, flags, said) in cases {
        let identity = if end == "guest" { &guest } else { &host };
        let log = refusal(end, to, identity, flags);
        assert!(log.contains(said), "{end} {to} {flags:?}: {log}");
    }
}
