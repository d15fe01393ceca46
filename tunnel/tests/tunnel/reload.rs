//! What SIGHUP changes, and what it leaves: new certificates and authorities, revoked certificates, and files that are of no use.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::ends::{PATIENCE, Scene};
use crate::fleet::{Fleet, HOST, Identity, Valid, replace};
use crate::strangers::{assert_served, is_hung_up_on};

const DONE: &str = "has read the files anew";

/// Whether both sockets of a connection have been closed by the tunnel.
fn has_ended((client, served): &mut (UnixStream, TcpStream)) -> bool {
    matches!(client.read(&mut [0]), Ok(0)) && !matches!(served.read(&mut [0]), Ok(1..))
}

/// A scene whose host's end has a list, which revokes nobody.
fn scene_with_list() -> Scene {
    let fleet = Fleet::new();
    let mut identity = fleet.host();
    identity.crl = Some(fleet.revoke(&[], Valid::Now));
    Scene::with_host(fleet, &identity)
}

fn guest_named(fleet: &Fleet, name: &str) -> Identity {
    fleet.issue(name, ExtendedKeyUsagePurpose::ClientAuth, Valid::Now)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_reload_takes_new_certificates_keys_and_authorities_and_connections_go_on() {
    let mut scene = Scene::new();
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let others = Fleet::new();
    let (_other_guest, other_socket) = scene.guest_that_expects(&others.guest(), HOST);
    assert!(is_hung_up_on(&other_socket));
    // Both authorities issue certificates now, and the host's end has a new one of the second.
    let (mine, theirs) = (scene.fleet.host(), others.host());
    let ca = scene.fleet.path("ca.pem");
    replace(&ca, &(read(&ca) + &read(&others.path("ca.pem"))));
    replace(&mine.cert, &read(&theirs.cert));
    replace(&mine.key, &read(&theirs.key));
    scene.host.reload(DONE);
    drop(scene.connect(&other_socket));
    assert_served(&scene, &mut old, &other_socket);
    assert!(
        scene.host.log().contains("1 connections go on, 0 have ended"),
        "{}",
        scene.host.log()
    );
}

#[test]
fn a_guests_end_reloads_too() {
    let scene = Scene::new();
    let identity = guest_named(&scene.fleet, "renewed.example");
    let (mut guest, socket) = scene.guest_that_expects(&identity, HOST);
    let mut old = scene.connect(&socket);
    guest.reload(DONE);
    assert_served(&scene, &mut old, &socket);
    // Its own certificate is another's now.
    let fleet = Fleet::new();
    let others = fleet.guest();
    replace(&identity.cert, &read(&others.cert));
    replace(&identity.key, &read(&others.key));
    guest.reload(DONE);
    assert!(is_hung_up_on(&socket));
}

#[test]
fn files_that_are_of_no_use_change_nothing() {
    let mut scene = scene_with_list();
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let crl = scene.fleet.path("crl.pem");
    let cert = scene.fleet.path(&format!("{HOST}-Now.pem"));
    for (file, said) in [
        (&crl, "holds no list of revoked certificates"),
        (&cert, "holds no certificate"),
    ] {
        let good = read(file);
        replace(file, "");
        scene.host.reload("goes on by the files of before");
        assert!(scene.host.log().contains(said), "{}", scene.host.log());
        assert_served(&scene, &mut old, &socket);
        replace(file, &good);
    }
    scene.host.reload(DONE);
    assert_served(&scene, &mut old, &socket);
}

#[test]
fn connections_of_a_guest_that_is_revoked_end_and_those_of_others_go_on() {
    let mut scene = scene_with_list();
    let lost = guest_named(&scene.fleet, "lost.example");
    let (_guest, socket) = scene.guest();
    let (_lost_guest, lost_socket) = scene.guest_that_expects(&lost, HOST);
    let mut old = scene.connect(&socket);
    let mut old_lost = scene.connect(&lost_socket);
    scene.fleet.revoke(&[&lost], Valid::Now);
    scene.host.reload(DONE);
    assert!(has_ended(&mut old_lost));
    assert!(
        scene.host.log().contains("its certificate is revoked"),
        "{}",
        scene.host.log()
    );
    assert!(
        scene.host.log().contains("1 connections go on, 1 have ended"),
        "{}",
        scene.host.log()
    );
    // Nor does it come again.
    let (mut lost_guest, lost_socket) = scene.guest_that_expects(&lost, HOST);
    assert!(is_hung_up_on(&lost_socket));
    lost_guest.await_log("it says that the certificate in");
    assert_served(&scene, &mut old, &socket);
}

#[test]
fn a_guest_whose_handshake_began_before_it_was_revoked_is_refused() {
    let mut scene = scene_with_list();
    let lost = guest_named(&scene.fleet, "lost.example");
    let mut tls = ClientConnection::new(config_of(&lost), HOST.try_into().unwrap()).unwrap();
    let mut socket = TcpStream::connect(&scene.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // All but the last that a guest says in a handshake, which is its certificate.
    while tls.is_handshaking() {
        while tls.wants_write() {
            tls.write_tls(&mut socket).unwrap();
        }
        assert_ne!(tls.read_tls(&mut socket).unwrap(), 0);
        tls.process_new_packets().unwrap();
    }
    scene.fleet.revoke(&[&lost], Valid::Now);
    scene.host.reload(DONE);
    while tls.wants_write() {
        tls.write_tls(&mut socket).unwrap();
    }
    let mut end = [0; 100];
    while !matches!(socket.read(&mut end), Ok(0) | Err(_)) {}
    assert!(!scene.is_reached(), "the service has been reached");
    scene.host.await_log("its certificate is revoked");
}

/// TLS as the guest's end with these files speaks it.
fn config_of(identity: &Identity) -> Arc<ClientConfig> {
    let mut authorities = RootCertStore::empty();
    authorities
        .add(CertificateDer::from_pem_file(&identity.ca).unwrap())
        .unwrap();
    let certificate = CertificateDer::from_pem_file(&identity.cert).unwrap();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(authorities)
        .with_client_auth_cert(vec![certificate], key);
    Arc::new(config.unwrap())
}

#[test]
fn a_list_that_says_nothing_of_a_certificate_or_has_expired_lets_nobody_in() {
    // The first reload puts a list of another authority there, the second one that has expired.
    let strangers = Fleet::new();
    let of_strangers = read(&strangers.revoke(&[], Valid::Now));
    let mut scene = scene_with_list();
    let (_guest, socket) = scene.guest();
    replace(&scene.fleet.path("crl.pem"), &of_strangers);
    scene.host.reload(DONE);
    assert!(is_hung_up_on(&socket));
    scene
        .host
        .await_log("has no list of its certificate's authority, so it may be revoked");
    assert!(!scene.is_reached());

    scene.fleet.revoke(&[], Valid::Once);
    scene.host.reload("goes on by the files of before");
    assert!(
        scene.host.log().contains("the list of revoked certificates in"),
        "{}",
        scene.host.log()
    );
}

#[test]
fn a_guest_refuses_a_host_that_is_revoked() {
    let fleet = Fleet::new();
    let shown = fleet.host();
    let scene = Scene::with_host(fleet, &shown);
    let mut identity = scene.fleet.guest();
    identity.crl = Some(scene.fleet.revoke(&[], Valid::Now));
    let (mut guest, socket) = scene.guest_that_expects(&identity, HOST);
    let mut old = scene.connect(&socket);
    scene.fleet.revoke(&[&shown], Valid::Now);
    guest.reload(DONE);
    assert!(has_ended(&mut old));
    assert!(is_hung_up_on(&socket));
    assert!(
        guest.log().contains("its certificate is revoked"),
        "{}",
        guest.log()
    );
}
