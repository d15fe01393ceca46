//! What SIGHUP changes, and what it leaves: new certificates and authorities, revoked certificates, and files that are of no use.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::ends::{PATIENCE, Running, Scene, command};
use crate::fleet::{Fleet, HOST, Identity, Valid, replace};
use crate::strangers::{assert_served, is_hung_up_on};

const DONE: &str = "has read the files anew";
const OLD_FILES: &str = "goes on by the files of before";
const OLD_CERTIFICATE: &str = "shows the certificate of before";

/// Whether both sockets of a connection have been closed by the tunnel.
fn has_ended((client, served): &mut (UnixStream, TcpStream)) -> bool {
    matches!(client.read(&mut [0]), Ok(0)) && !matches!(served.read(&mut [0]), Ok(1..))
}

/// A scene whose host's end has a list, which revokes nobody.
fn scene_with_list() -> Scene {
    scene_of_host_with_list().0
}

/// The same, and what the host's end shows.
fn scene_of_host_with_list() -> (Scene, Identity) {
    let fleet = Fleet::new();
    let mut identity = fleet.host();
    identity.crl = Some(fleet.revoke(&[], Valid::Now));
    (Scene::with_host(fleet, &identity), identity)
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
fn a_reload_that_comes_while_the_files_are_read_first_is_carried_out() {
    let scene = Scene::new();
    let mut identity = scene.fleet.guest();
    let authority = read(&identity.ca);
    identity.ca = scene.fleet.path("ca.pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&identity.ca)
            .status()
            .unwrap()
            .success()
    );
    let socket = scene.folder.path().join("guest");
    let mut command = command("guest", socket.to_str().unwrap(), &scene.address, &identity);
    command.args(["--tls-name", HOST]);
    let mut guest = Running::start(&mut command, &scene.folder.path().join("guest.log"));
    // A pipe is open once it is read.
    let mut pipe = File::create(&identity.ca).unwrap();
    guest.signal("-HUP");
    pipe.write_all(authority.as_bytes()).unwrap();
    drop(pipe);
    guest.await_log("ferretto-tunnel is listening");
    std::fs::write(&identity.ca, &authority).unwrap();
    guest.await_log(DONE);
    drop(scene.connect(&socket));
}

#[test]
fn files_that_are_of_no_use_change_nothing() {
    let mut scene = scene_with_list();
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let path = |name: &str| scene.fleet.path(name);
    for (file, of, said) in [
        (
            path("crl.pem"),
            OLD_FILES,
            "holds no list of revoked certificates",
        ),
        (path("ca.pem"), OLD_FILES, "holds no certificate"),
        (
            path(&format!("{HOST}-Now.pem")),
            OLD_CERTIFICATE,
            "holds no certificate",
        ),
        (
            path(&format!("{HOST}-Now.key")),
            OLD_CERTIFICATE,
            "holds no private key",
        ),
    ] {
        let good = read(&file);
        replace(&file, "");
        scene.host.reload(of);
        let said = format!("{} {said}", file.display());
        assert!(scene.host.log().contains(&said), "{}", scene.host.log());
        assert_served(&scene, &mut old, &socket);
        replace(&file, &good);
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

/// After `change`, which also revokes the certificate of the guest that has been lost, a reload ends that guest's connections. It keeps those of the
/// others, and what the host's end shows.
fn assert_lost_guest_is_cut_off_by_a_host(change: impl FnOnce(&Fleet, &Identity, &Identity), said: &str) {
    let (mut scene, shown) = scene_of_host_with_list();
    let lost = guest_named(&scene.fleet, "lost.example");
    let (_guest, socket) = scene.guest();
    let (_lost_guest, lost_socket) = scene.guest_that_expects(&lost, HOST);
    let mut old = scene.connect(&socket);
    let mut old_lost = [(); 2].map(|()| scene.connect(&lost_socket));
    change(&scene.fleet, &shown, &lost);
    scene.host.reload(DONE);
    for connection in &mut old_lost {
        assert!(has_ended(connection), "{}", scene.host.log());
    }
    assert!(is_hung_up_on(&lost_socket));
    assert_served(&scene, &mut old, &socket);
    let log = scene.host.log();
    assert!(log.contains(OLD_CERTIFICATE) && log.contains(said), "{log}");
    assert!(log.contains("1 connections go on, 2 have ended"), "{log}");
}

#[test]
fn a_host_that_is_revoked_itself_cuts_off_a_guest_that_is_revoked_too() {
    let change = |fleet: &Fleet, shown: &Identity, lost: &Identity| {
        fleet.revoke(&[shown, lost], Valid::Now);
    };
    assert_lost_guest_is_cut_off_by_a_host(change, "is revoked by the list in");
}

#[test]
fn a_host_whose_own_certificate_has_expired_cuts_off_a_guest_that_is_revoked() {
    let change = |fleet: &Fleet, shown: &Identity, lost: &Identity| {
        let expired = fleet.issue(HOST, ExtendedKeyUsagePurpose::ServerAuth, Valid::Once);
        replace(&shown.cert, &read(&expired.cert));
        replace(&shown.key, &read(&expired.key));
        fleet.revoke(&[lost], Valid::Now);
    };
    assert_lost_guest_is_cut_off_by_a_host(change, "has expired: have a new one issued");
}

#[test]
fn a_host_whose_own_key_cannot_be_read_cuts_off_a_guest_that_is_revoked() {
    let change = |fleet: &Fleet, shown: &Identity, lost: &Identity| {
        std::fs::remove_file(&shown.key).unwrap();
        fleet.revoke(&[lost], Valid::Now);
    };
    assert_lost_guest_is_cut_off_by_a_host(change, "cannot read");
}

#[test]
fn a_list_by_another_key_of_an_authority_of_the_same_name_changes_nothing() {
    let fleet = Fleet::named("one name");
    let mut identity = fleet.host();
    identity.crl = Some(fleet.revoke(&[], Valid::Now));
    let mut scene = Scene::with_host(fleet, &identity);
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let other = Fleet::named("one name");
    replace(
        &scene.fleet.path("crl.pem"),
        &read(&other.revoke(&[], Valid::Now)),
    );
    scene.host.reload(OLD_FILES);
    let said = "a list in ";
    assert!(scene.host.log().contains(said), "{}", scene.host.log());
    assert_served(&scene, &mut old, &socket);
}

#[test]
fn lists_that_let_no_present_guest_in_change_nothing() {
    let (mine, guests) = (Fleet::new(), Fleet::new());
    let mut identity = mine.host();
    let ca = mine.path("ca.pem");
    replace(&ca, &(read(&ca) + &read(&guests.path("ca.pem"))));
    let crl = mine.revoke(&[], Valid::Now);
    let list_of_host = read(&crl);
    replace(&crl, &(read(&guests.revoke(&[], Valid::Now)) + &list_of_host));
    identity.crl = Some(crl.clone());
    let mut scene = Scene::with_host(mine, &identity);
    let mut guest = guests.guest();
    guest.ca = ca;
    let (_guest, socket) = scene.guest_that_expects(&guest, HOST);
    let mut old = scene.connect(&socket);
    // The first list has expired, and the second file has none.
    let expired = read(&guests.revoke(&[], Valid::Once)) + &list_of_host;
    for (lists, said) in [
        (expired, "has expired: put a new one there"),
        (list_of_host, "has no list of its certificate's authority"),
    ] {
        replace(&crl, &lists);
        scene.host.reload(OLD_FILES);
        assert!(scene.host.log().contains(said), "{}", scene.host.log());
        assert_served(&scene, &mut old, &socket);
    }
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
    scene.host.reload(OLD_FILES);
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
